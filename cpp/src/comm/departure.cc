// PeerImpl: its beginning as an object, and its end: goodbye, death, breach of protocol.
#include "comm/context_impl.h"
#include "comm/peer_impl.h"
#include "comm/transfer.h"

namespace hmc {
namespace {

// How long a goodbye may take: the other side has to see everything sent before it, and the channel to send what is queued.
constexpr double goodbye_seconds = 1;
// Without an answer; what fails beyond them is reported as it failed.
constexpr std::size_t max_questions = 1024;
// A process that is dying ends its channel sooner.
constexpr double answer_seconds = 2;

}  // namespace

PeerImpl::PeerImpl(const std::shared_ptr<ContextImpl>& context, std::uint64_t session, bool self)
    : owner_(self ? nullptr : context), context_(*context), session_(session), self_(self) {
  notify_slot_ = context_.notify_table().add_peer();
  if (!self_) notify_slot_->grant = [this](std::uint64_t total) { grant_credit(total); };
}

PeerImpl::~PeerImpl() = default;

ContextState& PeerImpl::context() noexcept { return context_; }

std::string PeerImpl::describe() const {
  if (self_) return "this Context";
  std::string text = "peer " + (identity_.name.empty() ? std::string("?") : identity_.name);
  if (!identity_.address.empty()) text += " (" + identity_.address + ")";
  return text;
}

void PeerImpl::become_self() {
  phase_ = PeerPhase::connecting;
  identity_.context_id = context_.id();
  identity_.name = context_.options().name;
  identity_.address = "self";
  identity_.same_host = true;
  identity_.epoch = session_;
  for (const auto& slot : context_.transports()) domains_.push_back({slot->name, slot->domain});
  std::vector<std::string> rejected;
  for (const Candidate& candidate : rank(Device::cpu(), Device::cpu(), 0, rejected)) {
    EndpointSlot* slot = open_endpoint(*candidate.transport, 0);
    if (slot->state == EndpointSlot::State::failed) continue;
    message_slot_ = slot;
    connect_self(*slot);
    if (slot->state != EndpointSlot::State::failed) return;
    message_slot_ = nullptr;
  }
  std::string message = "no transport moves memory within this Context:";
  for (const auto& reason : rejected) message += "\n  " + reason;
  for (const auto& reason : tried_) message += "\n  " + reason;
  end(Status(Code::unsupported, std::move(message)), PeerPhase::lost);
}

void PeerImpl::on_closed(const Status& reason) {
  const auto keep = shared_from_this();
  channel_over_ = true;
  if (torn_down_) {
    drop_channel();  // our goodbye is out
  } else if (leaving_) {
    end(failure_, PeerPhase::closed);
  } else if (reason.code() == Code::closed && phase_ == PeerPhase::connecting && !tried_.empty()) {
    end(no_transport(), PeerPhase::lost);  // it gave up for the same reason
  } else if (reason.code() == Code::closed) {
    end(Status(Code::closed, describe() + " said goodbye"), PeerPhase::closed);
  } else {
    end(Status(reason.code(), describe() + ": " + std::string(reason.message()), reason.native()), PeerPhase::lost);
  }
}

bool PeerImpl::when_alive(std::function<void()> action) {
  if (self_ || phase_ != PeerPhase::ready || questions_.size() >= max_questions) return false;
  const std::uint64_t number = asked_ + 1;
  const Status sent = send_control(wire::are_you_alive, wire::encode_request(number));
  if (sent.code() == Code::would_block) return false;
  if (!sent.ok()) return true;  // the channel is broken, and about to tell its end
  asked_ = number;
  const auto timer = context_.engine()->at(Deadline::after_seconds(answer_seconds), [this, number] { answered(number); });
  questions_.emplace(number, Question{std::move(action), timer});
  return true;
}

void PeerImpl::on_alive(std::uint64_t question) {
  if (question <= answered_ || question > asked_) return broken("an answer to what was not asked");
  answered_ = question;
  if (const auto found = questions_.find(question); found != questions_.end()) {
    context_.engine()->cancel_timer(found->second.timer);
    answered(question);
  }
}

// By the peer, or by its silence: one that is stopped does not answer, and has not died.
void PeerImpl::answered(std::uint64_t question) {
  const auto keep = shared_from_this();
  const auto node = questions_.extract(question);
  if (!node.empty()) node.mapped().action();
  context_.engine()->wake_waiters();
}

void PeerImpl::drop_questions() {
  for (const auto& [number, question] : std::exchange(questions_, {})) context_.engine()->cancel_timer(question.timer);
}

void PeerImpl::leave() {
  if (leaving_ || phase_ == PeerPhase::lost || phase_ == PeerPhase::closed) return;
  const auto keep = shared_from_this();
  const Status reason(Code::closed, describe() + " was closed by this process");
  if (phase_ != PeerPhase::ready || self_) {
    end(reason, PeerPhase::closed);
    return;
  }
  const bool torn = message_slot_ == nullptr || !outbox_.at_end();
  const Status said = signal(signal_head(NotifyKind::bye, {}), {});
  if (!said.ok()) {
    // Without a goodbye where messages are still to be sent again: the other side must not take it for all that there was.
    end(reason, torn ? PeerPhase::lost : PeerPhase::closed);
    return;
  }
  leaving_ = true;
  phase_ = PeerPhase::closed;
  failure_ = reason;
  context_.peer_ended(*this);
  for (auto& op : std::exchange(pending_, {})) op->abandon(reason);
  for (auto& op : std::exchange(credit_wait_, {})) op->abandon(reason);
  end_requests(reason);
  notify_slot_->end(reason);
  start_timer(goodbye_seconds, [this] { end(failure_, PeerPhase::closed); });
}

void PeerImpl::end(const Status& why, PeerPhase phase) {
  if (torn_down_ || (phase_ == PeerPhase::lost) || (phase_ == PeerPhase::closed && !leaving_)) return;
  const auto keep = std::static_pointer_cast<PeerImpl>(shared_from_this());
  const Status reason = why;
  leaving_ = false;
  phase_ = phase;
  failure_ = reason;
  ++route_epoch_;
  stop_timer();
  for (const auto& slot : slots_) stop_retry(*slot);
  context_.peer_ended(*this);
  for (auto& op : std::exchange(pending_, {})) op->abandon(reason);
  for (auto& op : std::exchange(credit_wait_, {})) op->abandon(reason);
  end_requests(reason);
  drop_questions();
  notify_slot_->end(reason);
  context_.notify_table().wake_waiters();
  run_ready_actions(reason);
  if (channel_ && phase == PeerPhase::closed) channel_->close();
  // We may be inside a callback of the channel or of an endpoint: they go once it has returned.
  context_.engine()->defer([keep] { keep->tear_down(); });
  context_.engine()->wake_waiters();
}

void PeerImpl::tear_down() {
  if (torn_down_) return;
  torn_down_ = true;
  const auto keep = shared_from_this();
  drop_questions();
  // Endpoints first: their end completes what is under way, after which nothing touches regions or buffers.
  forget_flush();
  for (const auto& slot : slots_) {
    stop_retry(*slot);
    slot->state = EndpointSlot::State::failed;
    if (slot->failure.ok()) slot->failure = failure_;
    slot->endpoint.reset();
  }
  for (TransferWork* work = works_; work != nullptr; work = works_) {
    const auto holder = work->shared_from_this();
    work->abandon(failure_);  // whose parts were never posted
    if (works_ == work) unlink(*work);
  }
  for (const auto& record : std::exchange(records_, {})) {
    record->alive.store(false);
    record->dead = failure_;
    record->retiring = true;
    record->acknowledge = false;
    if (record->operations == 0) record->entries.clear();  // else when the preparation under way ends
  }
  context_.messenger().on_peer_gone(*this, failure_);
  context_.notify_table().remove_peer(notify_slot_, failure_);
  drop_grants();
  routes_.clear();
  old_routes_.clear();
  if (phase_ == PeerPhase::closed && channel_ && !channel_over_) {
    start_timer(goodbye_seconds, [this] { drop_channel(); });  // until on_closed() says that the goodbye is out
  } else {
    drop_channel();
  }
  context_.peer_torn_down(*this, failure_);
  context_.engine()->wake_waiters();
}

void PeerImpl::tear_down_now() {
  if (phase_ != PeerPhase::lost && phase_ != PeerPhase::closed)
    end(Status(Code::closed, "the Context is closed"), PeerPhase::closed);
  leaving_ = false;
  tear_down();
  drop_channel();
}

void PeerImpl::drop_channel() {
  stop_timer();
  if (!channel_) return;
  context_.engine()->defer([channel = std::shared_ptr<Channel>(std::move(channel_)), keep = shared_from_this()] {});
  channel_ = nullptr;
  context_.forget(*this);
  context_.engine()->wake_waiters();
}

}  // namespace hmc
