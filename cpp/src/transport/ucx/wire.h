// What two ucx transports tell one another: in the handshake, in endpoint addresses, about regions, and in front of every signal.
#pragma once

#include <array>
#include <cstdint>

#include "base/blob.h"
#include "hmc/buffer.h"
#include "hmc/status.h"

namespace hmc::ucx {

// Kinds of memory that UCX moves by itself.
enum class MemoryKind : std::uint8_t { host, cuda, rocm };
inline constexpr std::size_t memory_kinds = 3;

// UCX makes no promise about what its versions say to one another, so HMC connects only equal ones.
struct Domain {
  std::uint16_t major = 0;
  std::uint16_t minor = 0;
  bool rdma = false;               // has network cards that move the bytes themselves
  bool shares[memory_kinds] = {};  // has a way between processes of a host for device memory of that kind
  std::uint64_t id = 0;            // of this transport of this Context
};
Bytes encode_domain(const Domain& domain);
Result<Domain> decode_domain(ByteSpan bytes);

inline constexpr std::size_t max_worker_address = 12 << 10;
struct Address {
  std::uint64_t token = 0;  // names the endpoint in signals to it
  Bytes worker;             // UCX's own
};
Bytes encode_address(const Address& address);
Result<Address> decode_address(ByteSpan bytes);

inline constexpr std::size_t max_key = 2048;
struct RegionKey {
  std::uint64_t id = 0;  // for messages
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  Access access = Access::read_write;
  MemoryKind kind = MemoryKind::host;
  Bytes key;  // UCX's packed remote key; empty for a region of no bytes, and where no network card uses host memory
};
Bytes encode_region(const RegionKey& region);
Result<RegionKey> decode_region(ByteSpan bytes);

// Of a message: in one piece over shared memory, whose segments have 8 KiB, and over TCP.
inline constexpr std::size_t max_body = 7936;
// Of bytes of a put or get over a connection that has nothing but TCP, with the segments that HMC asks UCX for.
inline constexpr std::size_t max_piece = 31 << 10;

// Puts in messages that have begun and that the peer has not answered, at most.
inline constexpr std::size_t max_unanswered_puts = 1024;

enum class MessageKind : std::uint8_t {
  hello = 1,
  signal,      // body: the signal
  put,         // body: bytes for `region` from `offset` on
  put_last,    // the same, and the end of the put
  put_signal,  // the end of the put; body: the signal that is attached to it
  put_done,    // answer to the end, with `code`
  get,         // asks for `bytes` of `region` from `offset` on
  got,         // answer: body, `offset` bytes into what was asked for
  get_failed,  // answer, with `code`
};
constexpr bool carries_bytes(MessageKind kind) noexcept {
  return kind == MessageKind::put || kind == MessageKind::put_last || kind == MessageKind::got;
}

// Of signals just what they need: with a short message they fit into what UCX moves without a buffer (92 bytes over shared memory).
inline constexpr std::size_t head_bytes = 48;
inline constexpr std::size_t signal_head_bytes = 18;
constexpr bool is_signal(MessageKind kind) noexcept { return kind == MessageKind::hello || kind == MessageKind::signal; }
struct MessageHead {
  std::uint64_t token = 0;   // of the receiving endpoint
  std::uint64_t number = 0;  // order of sending
  MessageKind kind = MessageKind::hello;
  Code code = Code::ok;
  std::uint32_t bytes = 0;  // get: asked for. Of what carries bytes: how many; the receiver fills it in
  std::uint64_t op = 0;     // of who puts or gets
  std::uint64_t region = 0;
  std::uint64_t offset = 0;
};
// Returns how many of the bytes are the head's.
std::size_t encode_head(const MessageHead& head, std::array<std::byte, head_bytes>& out) noexcept;
bool decode_head(ByteSpan bytes, MessageHead& out) noexcept;

}  // namespace hmc::ucx
