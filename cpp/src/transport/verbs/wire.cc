#include "transport/verbs/wire.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/wire.h"

namespace hmc::verbs {
namespace {

constexpr std::uint8_t wire_version = 1;

Status malformed(const char* what) { return Status(Code::protocol, std::string("malformed verbs ") + what); }

Status check_version(std::uint8_t version, const char* what) {
  if (version == wire_version) return {};
  return Status(Code::protocol, std::string("verbs ") + what + " of version " + std::to_string(version) + ", this is version " +
                                    std::to_string(wire_version));
}

void put_port(WireWriter& writer, const PortInfo& port) {
  writer.u8(port.nic).u8(port.ethernet ? 1 : 0).u16(port.lid).raw(std::as_bytes(std::span(port.gid)));
  writer.u8(port.mtu).u8(port.read_atom).u64(port.rate);
}

PortInfo take_port(WireReader& reader) {
  PortInfo port;
  port.nic = reader.u8();
  const std::uint8_t ethernet = reader.u8();
  port.ethernet = ethernet == 1;
  port.lid = reader.u16();
  const ByteSpan gid = reader.raw(gid_bytes);
  if (reader.ok()) std::ranges::transform(gid, port.gid.begin(), [](std::byte b) { return static_cast<std::uint8_t>(b); });
  port.mtu = reader.u8();
  port.read_atom = reader.u8();
  port.rate = reader.u64();
  if (port.nic >= max_nics || ethernet > 1 || port.mtu < 1 || port.mtu > max_mtu) reader.fail();
  return port;
}

}  // namespace

bool is_ipv4(const Gid& gid) noexcept {
  return std::all_of(gid.begin(), gid.begin() + 10, [](std::uint8_t b) { return b == 0; }) && gid[10] == 0xFF && gid[11] == 0xFF;
}

Bytes encode_domain(const Domain& domain) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.u8(wire_version).u8(static_cast<std::uint8_t>(domain.ports.size()));
  for (const PortInfo& port : domain.ports) put_port(writer, port);
  return bytes;
}

Result<Domain> decode_domain(ByteSpan bytes) {
  WireReader reader(bytes);
  const std::uint8_t version = reader.u8();
  if (reader.ok()) HMC_TRY(check_version(version, "domain"));
  const std::size_t count = reader.u8();
  if (count > max_nics) reader.fail();
  Domain domain;
  for (std::size_t i = 0; i < count && reader.ok(); ++i) domain.ports.push_back(take_port(reader));
  if (!reader.finish()) return malformed("domain");
  return domain;
}

Bytes encode_address(const Address& address) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.u8(wire_version);
  put_port(writer, address.port);
  writer.u32(address.outbound).u32(address.inbound).u32(address.sequence);
  return bytes;
}

Result<Address> decode_address(ByteSpan bytes) {
  WireReader reader(bytes);
  const std::uint8_t version = reader.u8();
  if (reader.ok()) HMC_TRY(check_version(version, "address"));
  Address address;
  address.port = take_port(reader);
  address.outbound = reader.u32();
  address.inbound = reader.u32();
  address.sequence = reader.u32();
  if (!reader.finish() || address.outbound > number_mask || address.inbound > number_mask || address.sequence > number_mask) {
    return malformed("address");
  }
  return address;
}

Bytes encode_region(const RegionKeys& region) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.u8(wire_version).u8(static_cast<std::uint8_t>(region.access)).u64(region.address).u64(region.bytes);
  writer.u8(static_cast<std::uint8_t>(region.keys.size()));
  for (const std::uint32_t key : region.keys) writer.u32(key);
  return bytes;
}

Result<RegionKeys> decode_region(ByteSpan bytes) {
  WireReader reader(bytes);
  const std::uint8_t version = reader.u8();
  if (reader.ok()) HMC_TRY(check_version(version, "region"));
  RegionKeys region;
  const std::uint8_t access = reader.u8();
  region.address = reader.u64();
  region.bytes = reader.u64();
  const std::size_t count = reader.u8();
  if (count > max_nics) reader.fail();
  for (std::size_t i = 0; i < count && reader.ok(); ++i) region.keys.push_back(reader.u32());
  if (!reader.finish() ||
      (access != static_cast<std::uint8_t>(Access::read) && access != static_cast<std::uint8_t>(Access::read_write))) {
    return malformed("region");
  }
  if (region.address > std::numeric_limits<std::uint64_t>::max() - region.bytes) return malformed("region: it wraps around");
  region.access = static_cast<Access>(access);
  return region;
}

void encode_head(std::byte* out, const MessageHead& head) noexcept {
  std::fill_n(out, head_bytes, std::byte{0});
  out[0] = static_cast<std::byte>(head.kind);
  for (std::size_t i = 0; i < sizeof head.consumed; ++i) out[4 + i] = static_cast<std::byte>(head.consumed >> (8 * i));
}

bool decode_head(ByteSpan message, MessageHead& out) noexcept {
  if (message.size() < head_bytes ||
      std::any_of(message.begin() + 1, message.begin() + 4, [](std::byte b) { return b != std::byte{0}; })) {
    return false;
  }
  out.kind = static_cast<MessageKind>(message[0]);
  out.consumed = 0;
  for (std::size_t i = 0; i < sizeof out.consumed; ++i) out.consumed |= static_cast<std::uint32_t>(message[4 + i]) << (8 * i);
  switch (out.kind) {
    case MessageKind::signal:
      return true;
    case MessageKind::credit:
      return message.size() == head_bytes;
  }
  return false;
}

}  // namespace hmc::verbs
