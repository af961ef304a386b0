#include "comm/session/peer_table.h"

#include <algorithm>
#include <utility>

#include "comm/context_impl.h"

namespace hmc {

std::shared_ptr<PeerImpl> PeerTable::find(const ContextId& id) const {
  const auto found = by_id_.find(id);
  return found != by_id_.end() ? found->second : nullptr;
}

std::shared_ptr<PeerImpl> PeerTable::make(const ContextId& id) {
  auto peer =
      std::make_shared<PeerImpl>(std::static_pointer_cast<ContextImpl>(context_.shared_from_this()), next_session_++, false);
  by_id_[id] = peer;
  return peer;
}

std::shared_ptr<PeerState> PeerTable::expect(const ContextId& id, std::vector<std::string> addresses, std::string name) {
  if (id == context_.id()) return self_;
  auto peer = find(id);
  if (!peer) peer = make(id);
  peer->handshake().expect(id, std::move(addresses), std::move(name));
  return peer;
}

void PeerTable::add_self() {
  auto self = std::make_shared<PeerImpl>(std::static_pointer_cast<ContextImpl>(context_.shared_from_this()), 0, true);
  self_ = self;
  self->handshake().join_self();
}

std::shared_ptr<PeerImpl> PeerTable::self_handle() const {
  struct Both {
    std::shared_ptr<ContextState> context;
    std::shared_ptr<PeerState> peer;
  };
  const auto both = std::make_shared<Both>(Both{context_.shared_from_this(), self_});
  return {both, static_cast<PeerImpl*>(self_.get())};
}

std::vector<std::shared_ptr<PeerImpl>> PeerTable::connected() const {
  std::vector<std::shared_ptr<PeerImpl>> result;
  for (const auto& [id, peer] : by_id_) {
    if (peer->phase() == PeerPhase::ready) result.push_back(peer);
  }
  return result;
}

void PeerTable::clear() {
  ending_.clear();
  by_id_.clear();
  events_.clear();
  scopes_.clear();
}

void PeerTable::on_ready(PeerImpl& peer, bool connected_to_us) {
  auto shared = std::static_pointer_cast<PeerImpl>(peer.shared_from_this());
  if (connected_to_us && !peer.handshake().expected()) context_.joins().add(shared);
  events_.joined(std::move(shared));
}

void PeerTable::on_ended(PeerImpl& peer) {
  auto shared = std::static_pointer_cast<PeerImpl>(peer.shared_from_this());
  if (const auto found = by_id_.find(peer.identity().context_id); found != by_id_.end() && found->second == shared)
    by_id_.erase(found);
  context_.joins().peer_ended(shared);
  if (!peer.is_self() && std::find(ending_.begin(), ending_.end(), shared) == ending_.end()) ending_.push_back(std::move(shared));
}

void PeerTable::on_torn_down(PeerImpl& peer, const Status& reason) {
  const auto keep = peer.shared_from_this();
  context_.group_events().peer_gone(peer, reason);
  if (!context_.closing().begun()) events_.left(peer, reason);
  std::erase(to_pump_, &peer);
  std::erase(without_room_, &peer);
  if (peer.closing().gone()) forget(peer);
}

void PeerTable::forget(PeerImpl& peer) {
  std::erase(to_pump_, &peer);
  std::erase(without_room_, &peer);
  if (!peer.closing().gone()) return;
  const auto found = std::find_if(ending_.begin(), ending_.end(), [&](const auto& p) { return p.get() == &peer; });
  if (found == ending_.end()) return;
  context_.engine()->defer([last = std::move(*found)] {});
  ending_.erase(found);
}

void PeerTable::pump_soon(PeerImpl& peer) {
  if (std::find(to_pump_.begin(), to_pump_.end(), &peer) != to_pump_.end()) return;
  to_pump_.push_back(&peer);
  context_.engine()->kick();
}

void PeerTable::pump_with_room(PeerImpl& peer) {
  if (std::ranges::find(without_room_, &peer) != without_room_.end()) return;
  without_room_.push_back(&peer);
  if (!pumping_) context_.engine()->kick();
}

bool PeerTable::pump() {
  if (to_pump_.empty() && without_room_.empty()) return false;
  auto peers = std::exchange(to_pump_, {});
  for (PeerImpl* peer : std::exchange(without_room_, {})) {
    if (std::ranges::find(peers, peer) == peers.end()) peers.push_back(peer);
  }
  pumping_ = true;
  bool moved = false;
  for (PeerImpl* peer : peers) moved = peer->posts().pump() || moved;
  pumping_ = false;
  return moved;
}

}  // namespace hmc
