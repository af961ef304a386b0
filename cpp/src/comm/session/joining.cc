// ContextImpl: peers from their first sight to their end.
#include <algorithm>

#include "comm/context_impl.h"

namespace hmc {
namespace {

constexpr std::size_t max_held_control = 4096;

}  // namespace

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
  for (const auto& watcher : std::vector(gone_watchers_)) watcher(peer, reason);
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

void ContextImpl::add_scope(std::uint32_t scope, std::vector<std::shared_ptr<PeerState>> owner_by_rank) {
  scopes_[scope] = std::move(owner_by_rank);
}

void ContextImpl::remove_scope(std::uint32_t scope) {
  scopes_.erase(scope);
  notify_.drop_scope(scope);
  messenger_->drop_scope(scope);
  engine_->wake_waiters();
}

bool ContextImpl::scope_has(std::uint32_t scope, std::uint32_t rank, const PeerState& peer) const noexcept {
  const auto found = scopes_.find(scope);
  return found != scopes_.end() && rank < found->second.size() && found->second[rank].get() == &peer;
}

Status ContextImpl::senders_left(std::uint32_t scope, std::uint32_t rank) const {
  Status last;
  const auto found = scopes_.find(scope);
  if (found == scopes_.end()) return last;
  for (std::uint32_t r = 0; r < found->second.size(); ++r) {
    const PeerState& peer = *found->second[r];
    if (r == rank) continue;
    if (peer.phase() != PeerPhase::lost && peer.phase() != PeerPhase::closed) return {};
    if (last.ok() || last.code() == Code::closed) last = peer.failure();
  }
  return last.with_context("no other rank is left to send");
}

void ContextImpl::set_control_handler(ControlHandler handler) {
  control_handler_ = std::move(handler);
  if (!control_handler_) return;
  for (const auto& held : std::exchange(held_control_, {})) {
    if (const auto peer = held.peer.lock(); peer && control_handler_) control_handler_(*peer, held.type, held.payload);
  }
}

void ContextImpl::deliver_control(PeerImpl& peer, MessageType type, ByteSpan payload) {
  if (control_handler_) {
    control_handler_(peer, type, payload);
    engine_->wake_waiters();
    return;
  }
  if (held_control_.size() >= max_held_control) {
    peer.fail(Status(Code::protocol, peer.describe() + " sends group messages, and no group was formed here"));
    return;
  }
  held_control_.push_back({peer.shared_from_this(), type, Bytes(payload.begin(), payload.end())});
}

void ContextImpl::on_peer_gone(std::function<void(PeerState&, const Status&)> watcher) {
  gone_watchers_.push_back(std::move(watcher));
}

}  // namespace hmc
