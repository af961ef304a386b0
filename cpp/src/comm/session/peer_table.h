// PeerTable: every peer of a Context from its first sight until nothing of it is left, and which of them have something to post.
// Owned by ContextImpl. Engine lock held.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/session/peer_events.h"
#include "comm/session/rank_scopes.h"
#include "control/channel.h"
#include "hmc/status.h"

namespace hmc {

class ContextImpl;
class PeerImpl;

class PeerTable {
 public:
  explicit PeerTable(ContextImpl& context) noexcept : context_(context), events_(context), scopes_(context) {}

  // Peers that have not ended.
  [[nodiscard]] const std::map<ContextId, std::shared_ptr<PeerImpl>>& by_id() const noexcept { return by_id_; }
  [[nodiscard]] std::shared_ptr<PeerImpl> find(const ContextId& id) const;  // null: unknown
  std::shared_ptr<PeerImpl> make(const ContextId& id);
  // As ContextState::expect_peer().
  std::shared_ptr<PeerState> expect(const ContextId& id, std::vector<std::string> addresses, std::string name);
  [[nodiscard]] std::vector<std::shared_ptr<PeerImpl>> connected() const;
  // Ended peers of which something is left.
  [[nodiscard]] const std::vector<std::shared_ptr<PeerImpl>>& ending() const noexcept { return ending_; }
  [[nodiscard]] bool empty() const noexcept { return by_id_.empty() && ending_.empty(); }
  void clear();

  // ---- the Context itself as a peer, which does not count among the others ----
  void add_self();
  [[nodiscard]] const std::shared_ptr<PeerState>& self() const noexcept { return self_; }
  // For users: keeps the Context's object alive, as other peers do.
  [[nodiscard]] std::shared_ptr<PeerImpl> self_handle() const;

  // Peers by their ranks.
  [[nodiscard]] RankScopes& scopes() noexcept { return scopes_; }

  // ---- the life of a peer, in order ----
  void on_ready(PeerImpl& peer, bool connected_to_us);
  void on_ended(PeerImpl& peer);  // it is no longer found
  void on_torn_down(PeerImpl& peer, const Status& reason);
  void forget(PeerImpl& peer);  // if nothing of it is left

  // ---- posting ----
  // The next poll posts what the peer has pending.
  void pump_soon(PeerImpl& peer);
  // A connection has no room for what the peer has pending: every poll tries, and the transport ends the engine's sleep.
  void pump_with_room(PeerImpl& peer);
  bool pump();  // true if anything moved
  [[nodiscard]] bool to_pump() const noexcept { return !to_pump_.empty(); }

 private:
  ContextImpl& context_;
  std::shared_ptr<PeerState> self_;
  std::map<ContextId, std::shared_ptr<PeerImpl>> by_id_;
  std::vector<std::shared_ptr<PeerImpl>> ending_;
  // All of them in by_id_ or ending_, or the Context itself as a peer.
  std::vector<PeerImpl*> to_pump_, without_room_;
  bool pumping_ = false;
  PeerEvents events_;
  RankScopes scopes_;
  std::uint64_t next_session_ = 1;
};

}  // namespace hmc
