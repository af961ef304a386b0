// Notification and bookkeeping signals between the comm layers of two peers, as pure functions over untrusted bytes.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>

#include "base/blob.h"
#include "comm/wire/envelope.h"

namespace hmc {

enum class NotifyKind : std::uint8_t {
  counted = 16,   // envelope, u64 id
  payload = 17,   // envelope, bytes
  credit = 18,    // envelope (zero), u64: cost of all payloads consumed so far
  bye = 19,       // envelope (zero), u64 group messages sent: the last signal of a peer that leaves
  received = 20,  // envelope (zero), u64: signals received so far; attached ones, these and marks not counted
  mark = 21,      // envelope (zero), u64: to be named in the answer, once what came before on this connection is delivered
};

inline constexpr std::size_t signal_head_bytes = 13;                       // kind and envelope
inline constexpr std::size_t number_signal_bytes = signal_head_bytes + 8;  // all but payload
using SignalHead = std::array<std::byte, signal_head_bytes>;
using NumberSignal = std::array<std::byte, number_signal_bytes>;

inline void write_signal_head(std::byte* out, NotifyKind kind, const Envelope& envelope) noexcept {
  out[0] = static_cast<std::byte>(kind);
  std::memcpy(out + 1, &envelope.scope, 4);
  std::memcpy(out + 5, &envelope.src, 4);
  std::memcpy(out + 9, &envelope.dst, 4);
}

inline NumberSignal number_signal(NotifyKind kind, const Envelope& envelope, std::uint64_t number) noexcept {
  NumberSignal out;
  write_signal_head(out.data(), kind, envelope);
  std::memcpy(out.data() + signal_head_bytes, &number, 8);
  return out;
}

inline SignalHead signal_head(NotifyKind kind, const Envelope& envelope) noexcept {
  SignalHead out;
  write_signal_head(out.data(), kind, envelope);
  return out;
}

struct NotifySignal {
  NotifyKind kind = NotifyKind::counted;
  Envelope envelope;
  std::uint64_t number = 0;  // counted: id; credit, received, bye: total; mark: its number
  ByteSpan payload;
};
std::optional<NotifySignal> decode_notify_signal(ByteSpan signal) noexcept;

}  // namespace hmc
