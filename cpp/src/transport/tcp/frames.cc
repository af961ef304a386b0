#include "transport/tcp/frames.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/wire.h"

namespace hmc::tcp {
namespace {

constexpr std::size_t max_address_text = 128;

constexpr bool little = std::endian::native == std::endian::little;

template <class T>
void store(std::byte* out, T value) noexcept {
  if constexpr (little) {
    std::memcpy(out, &value, sizeof value);
  } else {
    for (std::size_t i = 0; i < sizeof(T); ++i) out[i] = static_cast<std::byte>(value >> (8 * i));
  }
}

template <class T>
T load(const std::byte* in) noexcept {
  T value = 0;
  if constexpr (little) {
    std::memcpy(&value, in, sizeof value);
  } else {
    for (std::size_t i = 0; i < sizeof(T); ++i) value = static_cast<T>(value | static_cast<T>(static_cast<T>(in[i]) << (8 * i)));
  }
  return value;
}

bool plausible_extents(const Header& header) noexcept {
  return header.extents >= 1 && header.extents <= max_extents && header.length >= header.extents && header.length <= max_payload &&
         (header.extents == 1 || header.b == 0);
}

bool plausible(const Header& header) noexcept {
  const bool no_extents = header.extents == 0;
  switch (header.type) {
    case FrameType::signal:
      return no_extents && header.length <= max_signal_bytes && header.op == 0 && header.a == 0 && header.b == 0;
    case FrameType::put:
    case FrameType::get:
      return plausible_extents(header);
    case FrameType::put_end:
      return no_extents && header.length <= max_signal_bytes && header.b == 0;
    case FrameType::ack:
      return no_extents && header.length == 0 && header.b == 0 && header.a >= 1 &&
             header.op <= std::numeric_limits<std::uint64_t>::max() - header.a;
    case FrameType::refuse:
      return no_extents && header.length == 0 && header.b == 0 && header.a >= 1 &&
             header.a <= static_cast<std::uint64_t>(Refusal::access);
    case FrameType::get_data:
      return no_extents && header.length >= 1 && header.length <= max_payload && header.a == 0 && header.b == 0;
    case FrameType::get_end:
      return no_extents && header.length == 0 && header.b == 0 && header.a <= static_cast<std::uint64_t>(Refusal::access);
  }
  return false;
}

}  // namespace

Status to_status(Refusal refusal) {
  switch (refusal) {
    case Refusal::none:
      return {};
    case Refusal::stale:
      return Status(Code::stale, "the peer has closed that region");
    case Refusal::range:
      return Status(Code::invalid_argument, "the peer found the range outside its region");
    case Refusal::access:
      return Status(Code::invalid_argument, "the peer registered that region for reading only");
  }
  return Status(Code::protocol, "unknown refusal");
}

void encode_header(std::byte* out, const Header& header) noexcept {
  out[0] = static_cast<std::byte>(header.type);
  out[1] = std::byte{0};
  store(out + 2, header.extents);
  store(out + 4, header.length);
  store(out + 8, header.op);
  store(out + 16, header.a);
  store(out + 24, header.b);
}

void append(Bytes& out, const Header& header) {
  const std::size_t at = out.size();
  out.resize(at + header_bytes);
  encode_header(out.data() + at, header);
}

void encode_extent(std::byte* out, const Extent& extent) noexcept {
  store(out, extent.offset);
  store(out + 8, extent.length);
}

bool decode_header(const std::byte* in, Header& out) noexcept {
  const auto type = static_cast<std::uint8_t>(in[0]);
  if (type < static_cast<std::uint8_t>(FrameType::signal) || type > static_cast<std::uint8_t>(FrameType::get_end)) return false;
  if (in[1] != std::byte{0}) return false;
  out.type = static_cast<FrameType>(type);
  out.extents = load<std::uint16_t>(in + 2);
  out.length = load<std::uint32_t>(in + 4);
  out.op = load<std::uint64_t>(in + 8);
  out.a = load<std::uint64_t>(in + 16);
  out.b = load<std::uint64_t>(in + 24);
  return plausible(out);
}

std::size_t inline_bytes(const Header& header) noexcept {
  switch (header.type) {
    case FrameType::signal:
    case FrameType::put_end:
      return header.length;
    case FrameType::put:
    case FrameType::get:
      return header.extents > 1 ? header.extents * extent_bytes : 0;
    case FrameType::ack:
    case FrameType::refuse:
    case FrameType::get_data:
    case FrameType::get_end:
      return 0;
  }
  return 0;
}

bool decode_extents(const Header& header, ByteSpan list, std::vector<Extent>& out) {
  out.clear();
  if (list.size() != inline_bytes(header)) return false;
  if (header.extents == 1) {
    out.push_back({header.b, header.length});
    return true;
  }
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < header.extents; ++i) {
    const std::byte* at = list.data() + i * extent_bytes;
    const Extent extent{load<std::uint64_t>(at), load<std::uint32_t>(at + 8)};
    if (extent.length == 0) return false;
    total += extent.length;  // at most 1024 * 2^32
    out.push_back(extent);
  }
  return total == header.length;
}

bool inside(std::span<const Extent> extents, std::uint64_t bytes) noexcept {
  return std::all_of(extents.begin(), extents.end(),
                     [bytes](const Extent& extent) { return extent.length <= bytes && extent.offset <= bytes - extent.length; });
}

bool equal_tickets(const Ticket& left, const Ticket& right) noexcept {
  unsigned difference = 0;
  for (std::size_t i = 0; i < ticket_bytes; ++i) difference |= static_cast<unsigned>(left[i] ^ right[i]);
  // Read back through a volatile, so that the compiler may not turn the loop into an early exit.
  const volatile unsigned result = difference;
  return result == 0;
}

void encode_hello(std::byte* out, const Hello& hello) noexcept {
  store(out, hello.link);
  store(out + 8, std::uint64_t{hello.stream});
  std::copy(hello.ticket.begin(), hello.ticket.end(), out + 16);
}

bool decode_hello(const std::byte* in, Hello& out) noexcept {
  out.link = load<std::uint64_t>(in);
  const auto stream = load<std::uint64_t>(in + 8);
  if (stream >= max_streams) return false;
  out.stream = static_cast<std::uint8_t>(stream);
  std::copy(in + 16, in + 16 + ticket_bytes, out.ticket.begin());
  return true;
}

Bytes encode_address(const Address& address) {
  Bytes out;
  WireWriter writer(out);
  writer.u16(wire_version).u64(address.link).u64(address.order[0]).u64(address.order[1]);
  writer.u8(static_cast<std::uint8_t>(address.tickets.size()));
  for (const Ticket& ticket : address.tickets) writer.raw(ticket);
  writer.u8(static_cast<std::uint8_t>(address.listens.size()));
  for (const std::string& text : address.listens) writer.text(text);
  return out;
}

Result<Address> decode_address(ByteSpan bytes) {
  WireReader reader(bytes);
  const std::uint16_t version = reader.u16();
  if (reader.ok() && version != wire_version) {
    return Status(Code::protocol, "the peer's tcp transport speaks version " + std::to_string(version) + ", this one version " +
                                      std::to_string(wire_version));
  }
  Address address;
  address.link = reader.u64();
  address.order[0] = reader.u64();
  address.order[1] = reader.u64();
  const std::size_t streams = reader.u8();
  if (streams < 1 || streams > max_streams) reader.fail();
  for (std::size_t i = 0; reader.ok() && i < streams; ++i) {
    const ByteSpan raw = reader.raw(ticket_bytes);
    if (!reader.ok()) break;
    std::copy(raw.begin(), raw.end(), address.tickets.emplace_back().begin());
  }
  const std::size_t listens = reader.u8();
  if (listens > max_addresses) reader.fail();
  for (std::size_t i = 0; reader.ok() && i < listens; ++i) address.listens.push_back(reader.text(max_address_text));
  if (!reader.finish()) return Status(Code::protocol, "the peer's tcp address is malformed");
  return address;
}

Bytes encode_domain(const Domain& domain) {
  Bytes out;
  WireWriter(out).u16(wire_version).u8(domain.listens ? 1 : 0);
  return out;
}

Result<Domain> decode_domain(ByteSpan bytes) {
  WireReader reader(bytes);
  const std::uint16_t version = reader.u16();
  const std::uint8_t flags = reader.u8();
  if (reader.ok() && version != wire_version) {
    return Status(Code::unsupported, "the peer's tcp transport speaks version " + std::to_string(version) + ", this one version " +
                                         std::to_string(wire_version));
  }
  if (!reader.finish() || flags > 1) return Status(Code::protocol, "the peer's tcp domain is malformed");
  return Domain{flags != 0};
}

}  // namespace hmc::tcp
