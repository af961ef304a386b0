// ContextImpl: peers come and go.
//
// Two Contexts may connect to each other at the same time. The connection that the smaller ContextId made wins; the accepting side
// of the other one refuses it (`duplicate`) and its maker waits for the winner. A hello carries the number of the sender's
// PeerState, so that a peer which left and came back is told from one that connects twice.
#include <algorithm>

#include "base/log.h"
#include "comm/pending_channel.h"

namespace hmc {
namespace {

constexpr double hello_seconds = 10;
constexpr std::size_t max_pending_channels = 256;
constexpr std::size_t max_left_unaccepted = 64;
constexpr std::size_t max_held_control = 4096;

}  // namespace

PendingChannel::PendingChannel(ContextImpl& context, std::unique_ptr<Channel> channel)
    : context_(context), channel_(std::move(channel)) {
  channel_->set_sink(*this);
  timer_ = context_.engine()->at(Deadline::after_seconds(hello_seconds), [this] {
    timer_ = 0;
    context_.drop_pending(*this);
  });
}

PendingChannel::~PendingChannel() {
  if (timer_ != 0) context_.engine()->cancel_timer(timer_);
}

void PendingChannel::on_message(MessageType type, ByteSpan payload, std::vector<UniqueFd>) {
  if (!channel_) return;
  if (type == wire::hello) {
    context_.on_hello(*this, payload);
  } else {
    context_.drop_pending(*this);
  }
}

void PendingChannel::on_closed(const Status&) { context_.drop_pending(*this); }

void ContextImpl::drop_pending(PendingChannel& pending) {
  const auto found =
      std::find_if(pending_channels_.begin(), pending_channels_.end(), [&](const auto& p) { return p.get() == &pending; });
  if (found == pending_channels_.end()) return;
  engine_->defer([gone = std::shared_ptr<PendingChannel>(std::move(*found))] {});
  pending_channels_.erase(found);
}

void ContextImpl::on_accept(std::unique_ptr<Channel> channel) {
  if (closed()) return;
  if (pending_channels_.size() >= max_pending_channels) drop_pending(*pending_channels_.front());
  pending_channels_.push_back(std::make_unique<PendingChannel>(*this, std::move(channel)));
}

void ContextImpl::on_hello(PendingChannel& pending, ByteSpan payload) {
  const auto hello = wire::decode_hello(payload);
  const ContextId id = pending.channel().identity().context_id;
  if (!hello || id == id_ || closed()) return drop_pending(pending);
  std::shared_ptr<PeerImpl> peer;
  if (const auto found = peers_.find(id); found != peers_.end()) peer = found->second;
  if (peer && peer->attached()) {
    if (peer->remote_session() == hello->session) {
      static_cast<void>(pending.channel().send(wire::duplicate, {}));
      pending.channel().close();
      return drop_pending(pending);
    }
    // It has given the old connection up, which we have not heard yet.
    peer->end(Status(Code::closed, peer->describe() + " came back by a new connection"), PeerPhase::closed);
    peer = nullptr;
  }
  if (peer && peer->has_channel()) {
    if (id_ < id) {
      static_cast<void>(pending.channel().send(wire::duplicate, {}));
      pending.channel().close();
      return drop_pending(pending);
    }
    peer->drop_outgoing();
  }
  if (!peer) peer = new_peer(id, false);
  auto channel = pending.take();
  drop_pending(pending);
  peer->attach_incoming(std::move(channel), *hello);
}

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
  peer->expect(id, std::move(addresses), std::move(name));
  return peer;
}

// One Context::connect() under way. Shared by the caller's frame and the control plane's callback.
struct ConnectAttempt {
  std::atomic<std::uint32_t> done{0};
  Status status;
  std::shared_ptr<PeerImpl> peer;
};

Result<std::shared_ptr<PeerImpl>> ContextImpl::connect(std::string_view address, Deadline deadline) {
  HMC_TRY(usable());
  const auto attempt = std::make_shared<ConnectAttempt>();
  {
    const auto lock = engine_->lock();
    HMC_TRY(usable());
    control_->connect(address, deadline,
                      [this, attempt](Result<std::unique_ptr<Channel>> channel) { on_connected(attempt, std::move(channel)); });
  }
  const bool done = engine_->drive_flag(deadline, attempt->done);
  const auto lock = engine_->lock();
  if (!done && attempt->done.load() == 0) {
    HMC_TRY(usable());
    return Status(Code::timeout, "connect to " + std::string(address) +
                                     " did not finish in time; is a Context listening there, and does it make progress?");
  }
  if (!attempt->status.ok()) return attempt->status.with_context("connect to " + std::string(address));
  // Wanted by us, so nobody needs to accept it.
  std::erase(accept_queue_, attempt->peer);
  return attempt->peer;
}

void ContextImpl::on_connected(const std::shared_ptr<ConnectAttempt>& attempt, Result<std::unique_ptr<Channel>> channel) {
  const auto finish = [engine = engine_, attempt](const Status& status) {
    attempt->status = status;
    attempt->done.store(1);
    engine->wake_waiters();
  };
  if (closed()) return finish(usable());
  if (!channel.ok()) return finish(channel.status());
  const ContextId id = (*channel)->identity().context_id;
  std::shared_ptr<PeerImpl> peer;
  if (id == id_) {
    peer = self_handle();
  } else if (const auto found = peers_.find(id); found != peers_.end()) {
    peer = found->second;
  } else {
    peer = new_peer(id, false);
  }
  attempt->peer = peer;
  if (peer->is_self() || peer->has_channel()) {
    engine_->defer([extra = std::shared_ptr<Channel>(std::move(*channel))] {});
  } else {
    peer->attach_outgoing(std::move(*channel));
  }
  peer->when_ready(finish);
}

Result<std::shared_ptr<PeerImpl>> ContextImpl::accept(Deadline deadline) {
  HMC_TRY(usable());
  std::atomic<std::uint32_t> ready{0};
  auto lock = engine_->lock();
  while (true) {
    HMC_TRY(usable());
    if (!accept_queue_.empty()) {
      auto peer = std::move(accept_queue_.front());
      accept_queue_.pop_front();
      return peer;
    }
    ready.store(0);
    accept_waiters_.push_back(&ready);
    lock.unlock();
    const bool woken = engine_->drive_flag(deadline, ready);
    lock = engine_->lock();
    std::erase(accept_waiters_, &ready);
    if (!woken && accept_queue_.empty()) {
      HMC_TRY(usable());
      return Status(Code::timeout, "nobody connected to this Context in time");
    }
  }
}

void ContextImpl::peer_ready(PeerImpl& peer, bool connected_to_us) {
  auto shared = std::static_pointer_cast<PeerImpl>(peer.shared_from_this());
  if (connected_to_us && !peer.expected()) {
    accept_queue_.push_back(shared);
    for (auto* waiter : accept_waiters_) waiter->store(1);
  }
  if (options_.on_joined) {
    engine_->dispatch([callback = options_.on_joined, shared] { callback(Peer(shared)); });
  }
}

void ContextImpl::peer_ended(PeerImpl& peer) {
  auto shared = std::static_pointer_cast<PeerImpl>(peer.shared_from_this());
  if (const auto found = peers_.find(peer.identity().context_id); found != peers_.end() && found->second == shared)
    peers_.erase(found);
  // Who came, said something and left properly can still be accepted and heard, if it was not long ago.
  if (peer.phase() == PeerPhase::lost || accept_queue_.size() > max_left_unaccepted) std::erase(accept_queue_, shared);
  if (!peer.is_self() && std::find(ending_.begin(), ending_.end(), shared) == ending_.end()) ending_.push_back(std::move(shared));
}

void ContextImpl::peer_torn_down(PeerImpl& peer, const Status& reason) {
  auto shared = std::static_pointer_cast<PeerImpl>(peer.shared_from_this());
  for (const auto& watcher : std::vector(gone_watchers_)) watcher(peer, reason);
  if (options_.on_left && peer.joined() && !closed()) {
    const Status outcome = reason.code() == Code::closed ? Status() : reason;
    engine_->dispatch([callback = options_.on_left, shared, outcome] { callback(Peer(shared), outcome); });
  }
  std::erase(to_pump_, &peer);
  if (peer.gone()) forget(peer);
}

void ContextImpl::forget(PeerImpl& peer) {
  std::erase(to_pump_, &peer);
  if (!peer.gone()) return;
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

std::vector<std::string> ContextImpl::addresses() {
  if (!usable().ok()) return {};
  const auto lock = engine_->lock();
  return listener_ ? listener_->addresses() : std::vector<std::string>();
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
  peer->leave();
  engine_->kick();
}

void ContextImpl::add_scope(std::uint32_t scope, std::vector<std::shared_ptr<PeerState>> owner_by_rank) {
  scopes_[scope] = std::move(owner_by_rank);
}

void ContextImpl::remove_scope(std::uint32_t scope) {
  scopes_.erase(scope);
  notify_.drop_scope(scope);
}

bool ContextImpl::scope_has(std::uint32_t scope, std::uint32_t rank, const PeerState& peer) const noexcept {
  const auto found = scopes_.find(scope);
  return found != scopes_.end() && rank < found->second.size() && found->second[rank].get() == &peer;
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
    peer.end(Status(Code::protocol, peer.describe() + " sends group messages, and no group was formed here"), PeerPhase::lost);
    return;
  }
  held_control_.push_back({peer.shared_from_this(), type, Bytes(payload.begin(), payload.end())});
}

void ContextImpl::on_peer_gone(std::function<void(PeerState&, const Status&)> watcher) {
  gone_watchers_.push_back(std::move(watcher));
}

}  // namespace hmc
