// What verbs endpoints tell each other: through control (domain, address, region) and in the head of every message. Pure functions
// over untrusted bytes: every field is checked against a limit before it is believed. Fuzzed by tests/fuzz.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/blob.h"
#include "hmc/buffer.h"
#include "hmc/status.h"

namespace hmc::verbs {

inline constexpr std::size_t max_nics = 16;
inline constexpr std::size_t max_rails = 8;
inline constexpr std::size_t gid_bytes = 16;
inline constexpr std::uint8_t max_mtu = 5;              // ibv_mtu: 4096 bytes
inline constexpr std::uint32_t number_mask = 0xFFFFFF;  // queue pair numbers and packet sequence numbers have 24 bits

using Gid = std::array<std::uint8_t, gid_bytes>;
[[nodiscard]] bool is_ipv4(const Gid& gid) noexcept;

// A port as peers see it.
struct PortInfo {
  std::uint8_t nic = 0;        // which protection domain of its process it belongs to
  bool ethernet = false;       // RoCE; else InfiniBand
  std::uint16_t lid = 0;       // InfiniBand
  Gid gid{};                   // the one to be reached by
  std::uint8_t mtu = 0;        // ibv_mtu: 1 (256 bytes) to 5 (4096)
  std::uint8_t read_atom = 0;  // reads that it answers at once
  bool devices = false;        // it may reach memory of devices
  std::uint64_t rate = 0;      // bytes per second
};

// What Transport::domain() says. No ports: nothing can be reached through it.
struct Domain {
  std::vector<PortInfo> ports;
};
[[nodiscard]] Bytes encode_domain(const Domain& domain);
[[nodiscard]] Result<Domain> decode_domain(ByteSpan bytes);

// A pair of connections between two ports. Each direction has a queue pair of its own.
struct RailAddress {
  PortInfo port;
  std::uint32_t outbound = 0;  // number of the queue pair that it sends and reads with
  std::uint32_t inbound = 0;   // of the one that it is written to and read from by
  std::uint32_t sequence = 0;  // first packet sequence number of the outbound one
  std::uint32_t sink = 0;      // key of the byte that the peer may write to, to no effect
};

// What Endpoint::address() gives away. Rail i here and rail i there belong together; the shorter list counts.
struct Address {
  std::uint64_t sink = 0;  // where that byte is
  std::vector<RailAddress> rails;
};
[[nodiscard]] Bytes encode_address(const Address& address);
[[nodiscard]] Result<Address> decode_address(ByteSpan bytes);

// What LocalRegion::exported() gives away. A key per protection domain of the owner, by PortInfo::nic.
struct RegionKeys {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  Access access = Access::read_write;
  bool device = false;                             // memory of a device
  std::vector<std::optional<std::uint32_t>> keys;  // none: not registered there
};
[[nodiscard]] Bytes encode_region(const RegionKeys& region);
[[nodiscard]] Result<RegionKeys> decode_region(ByteSpan bytes);

// In front of every message that is sent.
inline constexpr std::size_t head_bytes = 8;
// signal_head: what signals that come as immediates begin with (signal_heads.h). It counts as a signal.
enum class MessageKind : std::uint8_t { signal = 1, credit = 2, rail_down = 3, rail_up = 4, signal_head = 5 };
[[nodiscard]] constexpr bool counts_as_signal(MessageKind kind) noexcept {
  return kind == MessageKind::signal || kind == MessageKind::signal_head;
}
struct MessageHead {
  MessageKind kind = MessageKind::signal;
  std::uint8_t rail = 0;       // rail_down: the sender has left it, and nothing of the receiver's arrives there any more
  std::uint16_t life = 0;      // of that rail: how often it has been made anew. Of rail_up: which of its lives it is about
  std::uint32_t consumed = 0;  // signals of the receiver's that the sender has taken so far, modulo 2^32
};
void encode_head(std::byte* out, const MessageHead& head) noexcept;           // writes head_bytes
[[nodiscard]] bool decode_head(ByteSpan message, MessageHead& out) noexcept;  // false: not a message of this version

// Behind the head of rail_up: a rail that both sides have left is made anew, and this is the sender's end of it.
struct RailOffer {
  std::uint32_t rank = 0;  // signals go by the rail of the lowest
  RailAddress address;
};
[[nodiscard]] Bytes encode_offer(const RailOffer& offer);
[[nodiscard]] Result<RailOffer> decode_offer(ByteSpan bytes);

}  // namespace hmc::verbs
