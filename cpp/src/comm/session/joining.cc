// ContextImpl: peers from their first sight to their end.
#include <algorithm>

#include "comm/context_impl.h"

namespace hmc {

std::shared_ptr<PeerImpl> ContextImpl::new_peer(const ContextId& id, bool self) {
  auto peer = std::make_shared<PeerImpl>(std::static_pointer_cast<ContextImpl>(shared_from_this()), next_session_++, self);
  peers_[id] = peer;
  return peer;
}

std::shared_ptr<PeerImpl> ContextImpl::self_handle() {
  struct Both {
    std::shared_ptr<ContextState> context;
    std::shared_ptr<PeerState> peer;
  };
  const auto both = std::make_shared<Both>(Both{shared_from_this(), self_});
  return {both, static_cast<PeerImpl*>(self_.get())};
}

std::shared_ptr<PeerState> ContextImpl::expect_peer(const ContextId& id, std::vector<std::string> addresses, std::string name) {
  if (id == id_) return self_;
  auto found = peers_.find(id);
  const auto peer = found != peers_.end() ? found->second : new_peer(id, false);
  peer->handshake().expect(id, std::move(addresses), std::move(name));
  return peer;
}

void ContextImpl::peer_ready(PeerImpl& peer, bool connected_to_us) {
  auto shared = std::static_pointer_cast<PeerImpl>(peer.shared_from_this());
  if (connected_to_us && !peer.handshake().expected()) {
    joins_.add(shared);
  }
  if (options_.on_joined) {
    engine_->dispatch([callback = options_.on_joined, shared] { callback(Peer(shared)); });
  }
}

void ContextImpl::peer_ended(PeerImpl& peer) {
  auto shared = std::static_pointer_cast<PeerImpl>(peer.shared_from_this());
  if (const auto found = peers_.find(peer.identity().context_id); found != peers_.end() && found->second == shared)
    peers_.erase(found);
  joins_.peer_ended(shared);
  if (!peer.is_self() && std::find(ending_.begin(), ending_.end(), shared) == ending_.end()) ending_.push_back(std::move(shared));
}

void ContextImpl::peer_torn_down(PeerImpl& peer, const Status& reason) {
  auto shared = std::static_pointer_cast<PeerImpl>(peer.shared_from_this());
  group_events_.peer_gone(peer, reason);
  if (options_.on_left && peer.handshake().joined() && !closed()) {
    const Status outcome = reason.code() == Code::closed ? Status() : reason;
    engine_->dispatch([callback = options_.on_left, shared, outcome] { callback(Peer(shared), outcome); });
  }
  std::erase(to_pump_, &peer);
  if (peer.closing().gone()) forget(peer);
}

void ContextImpl::forget(PeerImpl& peer) {
  std::erase(to_pump_, &peer);
  if (!peer.closing().gone()) return;
  const auto found = std::find_if(ending_.begin(), ending_.end(), [&](const auto& p) { return p.get() == &peer; });
  if (found == ending_.end()) return;
  engine_->defer([last = std::move(*found)] {});
  ending_.erase(found);
}

std::vector<std::shared_ptr<PeerImpl>> ContextImpl::connected_peers() {
  std::vector<std::shared_ptr<PeerImpl>> result;
  if (!usable().ok()) return result;
  const auto lock = engine_->lock();
  for (const auto& [id, peer] : peers_) {
    if (peer->phase() == PeerPhase::ready) result.push_back(peer);
  }
  return result;
}

Status ContextImpl::wait_ready(const std::shared_ptr<PeerImpl>& peer, Deadline deadline) {
  HMC_TRY(usable());
  struct Wait {
    std::atomic<std::uint32_t> done{0};
    Status status;
  };
  const auto wait = std::make_shared<Wait>();
  {
    const auto lock = engine_->lock();
    if (peer->phase() == PeerPhase::ready) return {};
    peer->when_ready([wait, engine = engine_](const Status& status) {
      wait->status = status;
      wait->done.store(1);
      engine->wake_waiters();
    });
  }
  if (engine_->drive_flag(deadline, wait->done)) return wait->status;
  HMC_TRY(usable());
  return Status(Code::timeout, "the peer was not connected in time");
}

void ContextImpl::leave(const std::shared_ptr<PeerImpl>& peer) {
  if (!usable().ok() || peer->is_self()) return;
  const auto lock = engine_->lock();
  peer->closing().leave();
  engine_->kick();
}

void ContextImpl::remove_scope(std::uint32_t scope) {
  scopes_.remove(scope);
  notify_.drop_scope(scope);
  messenger_->drop_scope(scope);
  engine_->wake_waiters();
}

}  // namespace hmc
