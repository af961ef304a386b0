// The wire format of a data connection: 32-byte little-endian headers, extent lists, and the blobs exchanged before it exists.
// Pure functions over untrusted bytes: every field is checked against a limit before it is believed. Fuzzed by tests/fuzz.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/blob.h"
#include "hmc/status.h"

namespace hmc::tcp {

inline constexpr std::uint16_t wire_version = 1;
inline constexpr std::size_t header_bytes = 32;
inline constexpr std::size_t extent_bytes = 12;      // u64 offset, u32 length
inline constexpr std::size_t max_extents = 1024;     // per frame
inline constexpr std::size_t max_payload = 1 << 20;  // data bytes per frame
inline constexpr std::size_t max_signal_bytes = 32 << 10;
inline constexpr std::size_t max_streams = 16;
inline constexpr std::size_t max_split_puts = 512;  // puts of several frames in flight at once
inline constexpr std::size_t max_addresses = 16;
inline constexpr std::size_t ticket_bytes = 16;
// What follows the magic on a fresh connection: u64 link, u8 stream, 7 zero bytes, the ticket.
inline constexpr std::size_t hello_bytes = 32;

// What is not listed per type is zero on the wire, and checked to be.
enum class FrameType : std::uint8_t {
  signal = 1,  // length bytes of signal follow
  put = 2,     // op, a = region, extents; `length` bytes of data follow (after the extent list)
  put_end =
      3,  // op, a = bytes of the whole op; `length` bytes of its attached signal follow. On any stream, after its own stream's data
  ack = 4,       // ops [op, op + a) are in the target memory
  refuse = 5,    // op was not (wholly) written, a = Refusal. All its bytes have been read
  get = 6,       // op, a = region, extents of `length` bytes together; only the extent list follows
  get_data = 7,  // op; `length` bytes follow
  get_end = 8,   // op, a = Refusal or none: what get_data brought is valid
};

enum class Refusal : std::uint8_t { none = 0, stale = 1, range = 2, access = 3 };
[[nodiscard]] Status to_status(Refusal refusal);

struct Header {
  FrameType type = FrameType::signal;
  std::uint16_t extents = 0;  // put, get: 1: at offset b. More: a list follows the header, and b is zero
  std::uint32_t length = 0;
  std::uint64_t op = 0;
  std::uint64_t a = 0;
  std::uint64_t b = 0;
};

// A contiguous range of a region.
struct Extent {
  std::uint64_t offset = 0;
  std::uint32_t length = 0;
};

void encode_header(std::byte* out, const Header& header) noexcept;  // writes header_bytes
void append(Bytes& out, const Header& header);
inline void append(Bytes& out, ByteSpan bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); }
void encode_extent(std::byte* out, const Extent& extent) noexcept;  // writes extent_bytes
// False: not a header this version could have written. `in` has header_bytes.
[[nodiscard]] bool decode_header(const std::byte* in, Header& out) noexcept;
// Bytes after the header that must be at hand as a whole before the frame can be acted on: extent list or signal.
[[nodiscard]] std::size_t inline_bytes(const Header& header) noexcept;
// The extents of a put or get header; `list` is its inline part. False when they do not add up to header.length.
[[nodiscard]] bool decode_extents(const Header& header, ByteSpan list, std::vector<Extent>& out);
// Is every extent inside a region of `bytes`?
[[nodiscard]] bool inside(std::span<const Extent> extents, std::uint64_t bytes) noexcept;

using Ticket = std::array<std::byte, ticket_bytes>;
[[nodiscard]] bool equal_tickets(const Ticket& left, const Ticket& right) noexcept;  // in constant time

struct Hello {
  std::uint64_t link = 0;
  std::uint8_t stream = 0;
  Ticket ticket{};
};
void encode_hello(std::byte* out, const Hello& hello) noexcept;  // writes hello_bytes
[[nodiscard]] bool decode_hello(const std::byte* in, Hello& out) noexcept;
inline constexpr std::byte welcome{'+'};  // the answer to a good one

// What Endpoint::address() gives away: how to reach this side, and the one-time right to do so.
struct Address {
  std::uint64_t link = 0;            // names the endpoint within its process
  std::uint64_t order[2] = {0, 0};   // random: the lower side dials first
  std::vector<Ticket> tickets;       // one per stream
  std::vector<std::string> listens;  // "tcp://10.0.0.1:7000", best first
};
[[nodiscard]] Bytes encode_address(const Address& address);
[[nodiscard]] Result<Address> decode_address(ByteSpan bytes);

// What Transport::domain() says.
struct Domain {
  bool listens = false;  // beyond this host, on TCP
};
[[nodiscard]] Bytes encode_domain(const Domain& domain);
[[nodiscard]] Result<Domain> decode_domain(ByteSpan bytes);

}  // namespace hmc::tcp
