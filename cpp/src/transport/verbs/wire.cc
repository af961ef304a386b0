#include "transport/verbs/wire.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/wire.h"

namespace hmc::verbs {
namespace {

constexpr std::uint8_t wire_version = 4;

Status malformed(const char* what) { return Status(Code::protocol, std::string("malformed verbs ") + what); }

Status check_version(std::uint8_t version, const char* what) {
  if (version == wire_version) return {};
  return Status(Code::protocol, std::string("verbs ") + what + " of version " + std::to_string(version) + ", this is version " +
                                    std::to_string(wire_version));
}

void put_port(WireWriter& writer, const PortInfo& port) {
  writer.u8(port.nic).u8(port.ethernet ? 1 : 0).u16(port.lid).raw(std::as_bytes(std::span(port.gid)));
  writer.u8(port.mtu).u8(port.read_atom).u8(port.devices ? 1 : 0).u64(port.rate);
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
  const std::uint8_t devices = reader.u8();
  port.devices = devices == 1;
  port.rate = reader.u64();
  if (port.nic >= max_nics || ethernet > 1 || devices > 1 || port.mtu < 1 || port.mtu > max_mtu) reader.fail();
  return port;
}

void put_rail(WireWriter& writer, const RailAddress& rail) {
  put_port(writer, rail.port);
  writer.u32(rail.outbound).u32(rail.inbound).u32(rail.sequence).u32(rail.sink);
}

RailAddress take_rail(WireReader& reader) {
  RailAddress rail;
  rail.port = take_port(reader);
  rail.outbound = reader.u32();
  rail.inbound = reader.u32();
  rail.sequence = reader.u32();
  rail.sink = reader.u32();
  if (std::max({rail.outbound, rail.inbound, rail.sequence}) > number_mask) reader.fail();
  return rail;
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
  writer.u8(wire_version).u64(address.sink).u8(static_cast<std::uint8_t>(address.rails.size()));
  for (const RailAddress& rail : address.rails) put_rail(writer, rail);
  return bytes;
}

Result<Address> decode_address(ByteSpan bytes) {
  WireReader reader(bytes);
  const std::uint8_t version = reader.u8();
  if (reader.ok()) HMC_TRY(check_version(version, "address"));
  Address address;
  address.sink = reader.u64();
  const std::size_t count = reader.u8();
  if (count == 0 || count > max_rails) reader.fail();
  for (std::size_t i = 0; i < count && reader.ok(); ++i) address.rails.push_back(take_rail(reader));
  if (!reader.finish()) return malformed("address");
  return address;
}

Bytes encode_region(const RegionKeys& region) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.u8(wire_version).u8(static_cast<std::uint8_t>(region.access)).u8(region.device ? 1 : 0);
  writer.u64(region.address).u64(region.bytes).u8(static_cast<std::uint8_t>(region.keys.size()));
  for (const auto& key : region.keys) {
    writer.u8(key ? 1 : 0);
    if (key) writer.u32(*key);
  }
  return bytes;
}

Result<RegionKeys> decode_region(ByteSpan bytes) {
  WireReader reader(bytes);
  const std::uint8_t version = reader.u8();
  if (reader.ok()) HMC_TRY(check_version(version, "region"));
  RegionKeys region;
  const std::uint8_t access = reader.u8();
  const std::uint8_t device = reader.u8();
  region.device = device == 1;
  region.address = reader.u64();
  region.bytes = reader.u64();
  const std::size_t count = reader.u8();
  if (count > max_nics || device > 1) reader.fail();
  for (std::size_t i = 0; i < count && reader.ok(); ++i) {
    const std::uint8_t known = reader.u8();
    if (known > 1) reader.fail();
    region.keys.push_back(known == 1 ? std::optional(reader.u32()) : std::nullopt);
  }
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
  out[1] = static_cast<std::byte>(head.rail);
  out[2] = static_cast<std::byte>(head.life);
  out[3] = static_cast<std::byte>(head.life >> 8);
  for (std::size_t i = 0; i < sizeof head.consumed; ++i) out[4 + i] = static_cast<std::byte>(head.consumed >> (8 * i));
}

bool decode_head(ByteSpan message, MessageHead& out) noexcept {
  if (message.size() < head_bytes) return false;
  out.kind = static_cast<MessageKind>(message[0]);
  out.rail = static_cast<std::uint8_t>(message[1]);
  out.life = static_cast<std::uint16_t>(static_cast<unsigned>(message[2]) | static_cast<unsigned>(message[3]) << 8);
  const bool of_rail = out.kind == MessageKind::rail_down || out.kind == MessageKind::rail_up;
  if (of_rail ? out.rail >= max_rails : out.rail != 0 || out.life != 0) return false;
  out.consumed = 0;
  for (std::size_t i = 0; i < sizeof out.consumed; ++i) out.consumed |= static_cast<std::uint32_t>(message[4 + i]) << (8 * i);
  switch (out.kind) {
    case MessageKind::signal:
    case MessageKind::signal_head:
    case MessageKind::rail_up:
      return true;
    case MessageKind::credit:
    case MessageKind::rail_down:
      return message.size() == head_bytes;
  }
  return false;
}

Bytes encode_offer(const RailOffer& offer) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.u32(offer.rank);
  put_rail(writer, offer.address);
  return bytes;
}

Result<RailOffer> decode_offer(ByteSpan bytes) {
  WireReader reader(bytes);
  RailOffer offer;
  offer.rank = reader.u32();
  offer.address = take_rail(reader);
  if (!reader.finish()) return malformed("offer of a rail");
  return offer;
}

}  // namespace hmc::verbs
