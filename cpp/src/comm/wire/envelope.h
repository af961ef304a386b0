// Envelope: which group and which Members a signal between two peers belongs to.
#pragma once

#include <cstdint>

namespace hmc {

inline constexpr std::uint32_t any_rank = 0xffffffffU;

// scope 0: plain Peer calls, src = dst = 0. A Communicator has its own scope; src and dst are its ranks.
struct Envelope {
  std::uint32_t scope = 0;
  std::uint32_t src = 0;
  std::uint32_t dst = 0;
  friend bool operator==(const Envelope&, const Envelope&) noexcept = default;
};

// Kinds: the first byte of every signal between comm layers.
inline constexpr std::uint8_t messaging_kinds_first = 1, messaging_kinds_last = 15;
// In the first byte of a signal that travels with a put: it has no place in the order of signals, and is not sent again.
inline constexpr std::uint8_t attached_bit = 0x80;
inline constexpr std::uint8_t signal_kind(std::byte first) noexcept { return static_cast<std::uint8_t>(first) & 0x7f; }
inline constexpr std::uint8_t notify_kinds_first = 16, notify_kinds_last = 31;

}  // namespace hmc
