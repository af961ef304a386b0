// PeerImpl: its beginning as an object, and its end: after closing, by death, by breach of protocol.
//
// Memory that the peer's process accesses by itself (LocalRegion::peer_moves) outlives end(): operations and imports on it end when
// the peer has ended its side of the control channel, which it does after its endpoints, or when its process is dead.
#include "comm/context_impl.h"
#include "comm/peer_impl.h"

namespace hmc {
namespace {

// For the channel to send what is queued.
constexpr double goodbye_seconds = 1;

}  // namespace

PeerImpl::PeerImpl(const std::shared_ptr<ContextImpl>& context, std::uint64_t session, bool self)
    : owner_(self ? nullptr : context),
      context_(*context),
      session_(session),
      self_(self),
      timer_(*context_.engine()),
      messages_(*this, *context_.engine()) {
  notify_slot_ = context_.notify_table().add_peer();
  if (!self_) notify_slot_->grant = [this](std::uint64_t total) { posts_.grant(total); };
}

PeerImpl::~PeerImpl() {
  if (lane == nullptr || self_) return;
  context_.toss([&messenger = context_.messenger(), name = static_cast<const PeerState*>(this)] { messenger.drop_departed(name); });
}

ContextState& PeerImpl::context() noexcept { return context_; }

std::string PeerImpl::describe() const {
  if (self_) return "this Context";
  std::string text = "peer " + (identity_.name.empty() ? std::string("?") : identity_.name);
  if (!identity_.address.empty()) text += " (" + identity_.address + ")";
  if (!job_ranks().empty()) text = job_ranks() + ", " + text;
  return text;
}

void PeerImpl::become_self() {
  phase_ = PeerPhase::connecting;
  identity_.context_id = context_.id();
  identity_.name = context_.options().name;
  identity_.address = "self";
  identity_.same_host = true;
  identity_.epoch = session_;
  std::vector<wire::Hello::TransportDomain> own;
  for (const auto& slot : context_.transports()) own.push_back({slot->name, slot->domain});
  routes_.offer(std::move(own));
  std::vector<std::string> rejected;
  for (const auto& candidate : routes_.rank(Device::cpu(), Device::cpu(), 0, rejected)) {
    EndpointSlot* slot = connections_.open(*candidate.transport, 0);
    if (slot->state == EndpointSlot::State::failed) continue;
    messages_.attach(*slot);
    connections_.connect_self(*slot);
    if (slot->state != EndpointSlot::State::failed) return;
  }
  std::string message = "no transport moves memory within this Context:";
  for (const auto& reason : rejected) message += "\n  " + reason;
  for (const auto& reason : tried_) message += "\n  " + reason;
  end(Status(Code::unsupported, std::move(message)), PeerPhase::lost);
}

void PeerImpl::on_closed(const Status& reason) {
  const auto keep = shared_from_this();
  channel_over_ = true;
  channel_broken_ = reason.code() != Code::closed && reason.code() != Code::peer_lost;
  if (torn_down_) {
    drop_channel();  // the peer has ended its side, or our goodbye is out
  } else if (closing_ == Closing::said || (closing_ == Closing::draining && reason.code() == Code::closed)) {
    end(failure_, PeerPhase::closed);
  } else if (reason.code() == Code::closed && phase_ == PeerPhase::connecting && !tried_.empty()) {
    end(no_transport(), PeerPhase::lost);  // it gave up for the same reason
  } else if (reason.code() == Code::closed) {
    end(Status(Code::closed, describe() + " said goodbye"), PeerPhase::closed);
  } else {
    end(Status(reason.code(), describe() + ": " + std::string(reason.message()), reason.native()), PeerPhase::lost);
  }
}

void PeerImpl::end(const Status& why, PeerPhase phase) {
  if (std::exchange(ended_, true)) return;
  const auto keep = std::static_pointer_cast<PeerImpl>(shared_from_this());
  const Status reason = why;
  cut_short_ = closing_ == Closing::draining;
  closing_ = Closing::no;
  phase_ = phase;
  failure_ = reason;
  routes_.changed();
  timer_.stop();
  messages_.end();
  connections_.stop_retries();
  context_.peer_ended(*this);
  posts_.abandon(reason);
  imports_.end_requests(reason);
  liveness_.end();
  notify_slot_->end(reason);
  context_.notify_table().wake_waiters();
  run_ready_actions(reason);
  // We may be inside a callback of the channel or of an endpoint: they go once it has returned.
  context_.engine()->defer([keep] { keep->tear_down(); });
  context_.engine()->wake_waiters();
}

void PeerImpl::tear_down() {
  if (torn_down_) return;
  torn_down_ = true;
  const auto keep = shared_from_this();
  liveness_.end();
  // Endpoints first: their end completes what is under way, after which nothing touches regions or buffers.
  connections_.tear_down(failure_);
  works_.abandon(failure_);
  imports_.tear_down(failure_);
  context_.messenger().on_peer_gone(*this, failure_);
  context_.notify_table().remove_peer(notify_slot_, failure_);
  grants_.drop(false);
  routes_.clear();
  // Only now, after the endpoints: the end of this side of the channel tells the peer that nothing here touches its memory.
  const bool open = channel_ && !channel_over_;
  if (open && holds()) {
    channel_->await_end(phase_ == PeerPhase::closed);  // on_closed() follows
  } else if (open && phase_ == PeerPhase::closed) {
    channel_->close();
    timer_.start(Deadline::after_seconds(goodbye_seconds),
                 [this] { drop_channel(); });  // until on_closed() says that the goodbye is out
  } else {
    drop_channel();
  }
  context_.peer_torn_down(*this, failure_);
  context_.engine()->wake_waiters();
}

void PeerImpl::tear_down_now(std::vector<std::shared_ptr<const void>>& kept) {
  if (!ended_) {
    const Status reason = phase_ == PeerPhase::closed ? failure_ : Status(Code::closed, "the Context is closed");
    end(reason, PeerPhase::closed);
  }
  tear_down();
  if (holds()) {
    grants_.keep(kept);
    context_.messenger().abandon(*this, kept);
  }
  death_.reset();
  channel_broken_ = false;
  drop_channel();
}

void PeerImpl::drop_channel() {
  timer_.stop();
  if (channel_broken_ && holds() && !death_) {
    auto death = ProcessEnd::watch(context_.engine(), identity_.pid, [this] {
      const auto keep = shared_from_this();
      channel_broken_ = false;
      context_.engine()->defer([death = std::shared_ptr<ProcessEnd>(std::move(death_))] {});
      drop_channel();
    });
    if (death) death_ = std::move(death);  // null: it is dead already
  }
  if (!death_) let_go();
  if (channel_) {
    context_.engine()->defer([channel = std::shared_ptr<Channel>(std::move(channel_)), keep = shared_from_this()] {});
    channel_ = nullptr;
  }
  context_.forget(*this);
  context_.engine()->wake_waiters();
}

// The peer's process accesses nothing of this one's memory any more.
void PeerImpl::let_go() {
  context_.messenger().on_peer_let_go(*this);
  grants_.drop(true);
}

}  // namespace hmc
