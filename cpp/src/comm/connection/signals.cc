#include "comm/connection/signals.h"

#include "base/wire.h"
#include "hmc/peer.h"

namespace hmc {

std::optional<NotifySignal> decode_notify_signal(ByteSpan signal) noexcept {
  WireReader in(signal);
  NotifySignal m;
  const std::uint8_t kind = signal_kind(static_cast<std::byte>(in.u8()));
  m.envelope.scope = in.u32();
  m.envelope.src = in.u32();
  m.envelope.dst = in.u32();
  switch (kind) {
    case static_cast<std::uint8_t>(NotifyKind::counted):
    case static_cast<std::uint8_t>(NotifyKind::credit):
    case static_cast<std::uint8_t>(NotifyKind::received):
    case static_cast<std::uint8_t>(NotifyKind::mark):
    case static_cast<std::uint8_t>(NotifyKind::bye):
      m.number = in.u64();
      break;
    case static_cast<std::uint8_t>(NotifyKind::payload):
      m.payload = in.rest();
      if (m.payload.empty() || m.payload.size() > max_notify_payload) return std::nullopt;
      break;
    default:
      return std::nullopt;
  }
  m.kind = static_cast<NotifyKind>(kind);
  if (!in.finish()) return std::nullopt;
  if (m.kind == NotifyKind::counted && (m.number >> 63) != 0) return std::nullopt;
  return m;
}

}  // namespace hmc
