// Target: the other end of a post: a peer, and the group and ranks that the post belongs to.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/wire/envelope.h"

namespace hmc {

class PeerState;

// Peer, Member and the collectives resolve one per call and post messages by it through the Messenger, which keeps the peer's
// fences as the ContextState does for one-sided calls. Lives no longer than the call.
struct Target {
  const std::shared_ptr<PeerState>& peer;  // null: any source of the scope (envelope.src = any_rank); receives only
  Envelope envelope;
  // Collectives: which call of the group the message belongs to. A receive meets no message of another. Low byte: the kind of call
  // and its algorithm; the other two say what the user may want to read in an error. 0: no collective.
  std::uint32_t call = 0;
};

inline constexpr std::uint32_t call_kind_mask = 0xff;
inline constexpr std::uint32_t max_call = 0xffffff;
// Calls from this kind on belong together only where all three bytes are equal.
inline constexpr std::uint32_t first_exact_kind = 16;

[[nodiscard]] constexpr bool different_calls(std::uint32_t a, std::uint32_t b) noexcept {
  return a != b && (((a ^ b) & call_kind_mask) != 0 || (a & call_kind_mask) >= first_exact_kind);
}

// Told of messages of a scope that belong to another call than the receive that they met, or that met none. Engine lock held; it
// posts nothing from there.
class CallWatcher {
 public:
  virtual ~CallWatcher() = default;
  virtual void on_call(const PeerState& peer, const Envelope& envelope, std::int64_t tag, std::uint32_t call) = 0;
};

}  // namespace hmc
