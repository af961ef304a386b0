// ContextState: what is behind a Context handle, as the other files of comm and the collective layer see it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/messages/messenger.h"
#include "comm/peer_state.h"
#include "comm/wire/envelope.h"
#include "hmc/buffer.h"
#include "hmc/context.h"
#include "progress/engine.h"

namespace hmc {

class Counters;     // comm/counters.h
class GroupEvents;  // comm/session/group_events.h
class Notifier;     // comm/onesided/notifier.h
class RankScopes;   // comm/session/rank_scopes.h
class Transfers;    // comm/onesided/transfers.h

class ContextState : public std::enable_shared_from_this<ContextState> {
 public:
  virtual ~ContextState() = default;
  [[nodiscard]] virtual const std::shared_ptr<Engine>& engine() const noexcept = 0;
  [[nodiscard]] virtual const ContextId& id() const noexcept = 0;
  [[nodiscard]] virtual const ContextOptions& options() const noexcept = 0;
  // ok while open; closed or forked otherwise. Every public call asks first. Any thread, no lock needed.
  [[nodiscard]] virtual Status usable() const = 0;

  // ---- engine lock held ----
  [[nodiscard]] virtual Messenger& messenger() noexcept = 0;
  // This process itself, through the local transport; always ready.
  [[nodiscard]] virtual const std::shared_ptr<PeerState>& self() noexcept = 0;
  // The peer with that id, made idle if unknown: it connects to one of `addresses` at first use, or is met when it connects to us
  // (simultaneous connects between two Contexts end in one Peer).
  virtual std::shared_ptr<PeerState> expect_peer(const ContextId& id, std::vector<std::string> addresses, std::string name) = 0;
  // Ranks of Communicators.
  [[nodiscard]] virtual RankScopes& scopes() noexcept = 0;
  [[nodiscard]] virtual GroupEvents& group_events() noexcept = 0;
  [[nodiscard]] virtual Counters& counters() noexcept = 0;

  // Peers with pending fences: collectives wait for those of their ranks.
  [[nodiscard]] std::size_t fenced_peers() const noexcept { return fenced_peers_; }

  // A complete Work, the same for every post that is over at once.
  [[nodiscard]] const std::shared_ptr<WorkState>& done_work();

  // ---- engine lock NOT held ----
  // Each takes it.
  [[nodiscard]] virtual Transfers& transfers() noexcept = 0;
  [[nodiscard]] virtual Notifier& notifier() noexcept = 0;

 private:
  friend class PeerState;
  std::size_t fenced_peers_ = 0;
  std::shared_ptr<WorkState> done_work_;
};

inline void PeerState::add_fence() noexcept {
  if (fences_++ == 0) ++context().fenced_peers_;
}
inline void PeerState::remove_fence() noexcept {
  if (--fences_ == 0) --context().fenced_peers_;
}

// The peer that owns an imported buffer.
std::shared_ptr<PeerState> owner_of(const RemoteBuffer& remote);

}  // namespace hmc
