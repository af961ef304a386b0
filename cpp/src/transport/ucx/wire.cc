#include "transport/ucx/wire.h"

#include <limits>
#include <string>
#include <string_view>

#include "base/wire.h"

namespace hmc::ucx {
namespace {

constexpr std::uint8_t wire_version = 3;
constexpr auto max_code = static_cast<std::uint8_t>(Code::protocol);

Status malformed(std::string_view what) { return Status(Code::protocol, "malformed ucx " + std::string(what)); }

Status check_version(std::uint8_t version, std::string_view what) {
  if (version == wire_version) return {};
  return Status(Code::protocol, "ucx " + std::string(what) + " of version " + std::to_string(version) +
                                    "; this side speaks version " + std::to_string(wire_version));
}

}  // namespace

Bytes encode_domain(const Domain& domain) {
  Bytes bytes;
  unsigned ways = domain.rdma ? 1 : 0;
  for (std::size_t kind = 1; kind < memory_kinds; ++kind) ways |= domain.shares[kind] ? 1U << kind : 0;
  WireWriter(bytes).u8(wire_version).u16(domain.major).u16(domain.minor).u8(static_cast<std::uint8_t>(ways)).u64(domain.id);
  return bytes;
}

Result<Domain> decode_domain(ByteSpan bytes) {
  WireReader reader(bytes);
  const std::uint8_t version = reader.u8();
  if (reader.ok()) HMC_TRY(check_version(version, "domain"));
  Domain domain;
  domain.major = reader.u16();
  domain.minor = reader.u16();
  const unsigned ways = reader.u8();
  domain.rdma = (ways & 1) != 0;
  for (std::size_t kind = 1; kind < memory_kinds; ++kind) domain.shares[kind] = (ways >> kind & 1) != 0;
  domain.id = reader.u64();
  if (!reader.finish() || ways >> memory_kinds != 0) return malformed("domain");
  return domain;
}

Bytes encode_address(const Address& address) {
  Bytes bytes;
  WireWriter(bytes).u8(wire_version).u64(address.token).bytes(address.worker);
  return bytes;
}

Result<Address> decode_address(ByteSpan bytes) {
  WireReader reader(bytes);
  const std::uint8_t version = reader.u8();
  if (reader.ok()) HMC_TRY(check_version(version, "address"));
  Address address;
  address.token = reader.u64();
  const ByteSpan worker = reader.bytes(max_worker_address);
  if (!reader.finish() || worker.empty()) return malformed("address");
  address.worker.assign(worker.begin(), worker.end());
  return address;
}

Bytes encode_region(const RegionKey& region) {
  Bytes bytes;
  WireWriter(bytes)
      .u8(wire_version)
      .u8(static_cast<std::uint8_t>(region.access))
      .u8(static_cast<std::uint8_t>(region.kind))
      .u64(region.id)
      .u64(region.address)
      .u64(region.bytes)
      .bytes(region.key);
  return bytes;
}

Result<RegionKey> decode_region(ByteSpan bytes) {
  WireReader reader(bytes);
  const std::uint8_t version = reader.u8();
  if (reader.ok()) HMC_TRY(check_version(version, "region"));
  RegionKey region;
  const std::uint8_t access = reader.u8(), kind = reader.u8();
  region.id = reader.u64();
  region.address = reader.u64();
  region.bytes = reader.u64();
  const ByteSpan key = reader.bytes(max_key);
  if (!reader.finish() || (!key.empty() && region.bytes == 0) || kind >= memory_kinds ||
      (access != static_cast<std::uint8_t>(Access::read) && access != static_cast<std::uint8_t>(Access::read_write))) {
    return malformed("region");
  }
  if (region.address > std::numeric_limits<std::uint64_t>::max() - region.bytes) return malformed("region: it wraps around");
  region.access = static_cast<Access>(access);
  region.kind = static_cast<MemoryKind>(kind);
  region.key.assign(key.begin(), key.end());
  return region;
}

std::size_t encode_head(const MessageHead& head, std::array<std::byte, head_bytes>& out) noexcept {
  std::size_t at = 0;
  const auto add = [&](std::uint64_t value, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) out[at++] = static_cast<std::byte>(value >> (8 * i));
  };
  add(head.token, 8);
  add(head.number, 8);
  add(static_cast<std::uint8_t>(head.kind), 1);
  add(static_cast<std::uint8_t>(head.code), 1);
  if (is_signal(head.kind)) return at;
  add(head.op, 8);
  add(head.region, 8);
  add(head.offset, 8);
  add(head.bytes, 4);
  add(0, 2);
  return at;
}

bool decode_head(ByteSpan bytes, MessageHead& out) noexcept {
  if (bytes.size() != head_bytes && bytes.size() != signal_head_bytes) return false;
  std::size_t at = 0;
  const auto take = [&](std::size_t count) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < count; ++i) value |= static_cast<std::uint64_t>(bytes[at++]) << (8 * i);
    return value;
  };
  out.token = take(8);
  out.number = take(8);
  const std::uint64_t kind = take(1), code = take(1);
  out.kind = static_cast<MessageKind>(kind);
  out.code = static_cast<Code>(code);
  const bool known = kind >= static_cast<std::uint8_t>(MessageKind::hello) &&
                     kind <= static_cast<std::uint8_t>(MessageKind::get_failed) && code <= max_code;
  if (!known || is_signal(out.kind) != (bytes.size() == signal_head_bytes)) return false;
  if (is_signal(out.kind)) return true;
  out.op = take(8);
  out.region = take(8);
  out.offset = take(8);
  out.bytes = static_cast<std::uint32_t>(take(4));
  return take(2) == 0;
}

}  // namespace hmc::ucx
