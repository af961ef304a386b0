// WaitWork, and waiting for notifications and for room to raise one.
#include "comm/waits.h"

#include "comm/onesided/notify.h"
#include "comm/onesided/transfer.h"

namespace hmc {

WaitWork::WaitWork(ContextImpl& context)
    : WorkState(context.engine()), weak_context_(std::static_pointer_cast<ContextImpl>(context.shared_from_this())) {}

void WaitWork::begin(Deadline deadline) {
  if (done()) return;
  accepted();
  listed_ = weak_context_.lock().get();
  place_ = listed_->waits().insert(listed_->waits().end(), this);
  if (deadline.passed()) return expire();
  if (!deadline.is_never()) {
    timer_ = engine()->at(deadline, [this] {
      timer_ = 0;
      expire();
    });
  }
}

void WaitWork::end(Status reason) {
  leave();
  complete(std::move(reason));
}

void WaitWork::released() noexcept {
  if (timer_ != 0) engine()->cancel_timer(std::exchange(timer_, 0));
  if (listed_ != nullptr) std::exchange(listed_, nullptr)->waits().erase(place_);
}

Status WaitWork::cancel_locked() {
  end(Status(Code::cancelled, "cancelled; nothing was consumed"));
  return {};
}

Status WaitWork::withdraw_locked() {
  if (!done()) return cancel_locked();
  if (!status().ok() || withdrawn_) return {Code::invalid_argument, "the operation is already complete"};
  withdrawn_ = true;
  put_back();
  engine()->wake_waiters();
  return {};
}

void ContextImpl::end_waits(const Status& reason) {
  while (!waits_.empty()) waits_.front()->end(reason);
}

namespace {

class NotifyWait final : public WaitWork {
 public:
  NotifyWait(std::shared_ptr<PeerImpl> peer, const Envelope& envelope, std::uint64_t id, std::uint64_t count)
      : WaitWork(peer->impl()), peer_(std::move(peer)), slot_(peer_->notify_slot()), envelope_(envelope), id_(id), count_(count) {}
  void start(Deadline deadline) {
    slot_->wait(envelope_, id_, count_, waiter_);
    begin(deadline);
  }

 private:
  void leave() noexcept override { slot_->cancel(envelope_, id_, waiter_); }
  void put_back() override { slot_->give_back(envelope_, id_, count_); }
  [[nodiscard]] Status too_late() const override { return not_raised_in_time(*peer_, id_, count_); }

  const std::shared_ptr<PeerImpl> peer_;
  const std::shared_ptr<NotifySlot> slot_;
  const Envelope envelope_;
  const std::uint64_t id_, count_;
  NotifyWaiter waiter_{*this};
};

class NotificationsWait final : public ResultWork<std::vector<Notification>>, private NotifyTable::Taker {
 public:
  NotificationsWait(ContextImpl& context, std::shared_ptr<NotifySlot> slot, const Envelope& envelope)
      : ResultWork(context), Taker(std::move(slot), envelope), context_(context), table_(context.notify_table()) {}
  // Untaken payloads return to their queues.
  ~NotificationsWait() override {
    const auto owner = taken_.payloads.empty() ? nullptr : context();
    if (!owner) return;
    owner->toss([raw = owner.get(), taken = std::move(taken_)]() mutable { raw->notify_table().put_back(std::move(taken)); });
  }
  void start(Deadline deadline) {
    taken_ = table_.take_out(slot_.get(), envelope_);
    if (!taken_.payloads.empty()) return complete({});
    if (Status reason = over(); !reason.ok()) return complete(std::move(reason));
    table_.add_taker(*this);
    begin(deadline);
  }

 private:
  void deliver(TakenPayloads taken) override {
    taken_ = std::move(taken);
    complete({});
  }
  void fail(const Status& reason) override { complete(reason); }
  [[nodiscard]] Status over() const override {
    return slot_ ? NotifyTable::ended(*slot_) : context_.scopes().senders_left(envelope_.scope, envelope_.dst);
  }
  void leave() noexcept override { table_.remove_taker(*this); }
  void expire() override { end({}); }  // an empty list
  [[nodiscard]] Status too_late() const override { return {}; }
  void put_back() override {
    if (!taken_.payloads.empty() && context()) table_.put_back(std::exchange(taken_, {}));
    fetched_ = true;
  }
  std::optional<std::vector<Notification>> take_locked() override {
    if (std::exchange(fetched_, true)) return std::nullopt;
    auto result = NotifyTable::release(std::exchange(taken_, {}));
    if (!result.empty()) engine()->kick();  // the sender may wait for the credit
    return result;
  }

  ContextImpl& context_;  // while it waits
  NotifyTable& table_;
  TakenPayloads taken_;
  bool fetched_ = false;
};

// A notification on its way to the transport: raised, or withdrawn without a trace.
class NotifyWork final : public WaitWork, public PendingOp {
 public:
  NotifyWork(std::shared_ptr<PeerImpl> peer, EncodedNotify notify)
      : WaitWork(peer->impl()), peer_(std::move(peer)), notify_(std::move(notify)) {}
  void start(Deadline deadline) {
    const auto self = std::static_pointer_cast<NotifyWork>(shared_from_this());
    if (peer_->may_post() && peer_->posts().empty() && post() == Outcome::posted) return;
    if (peer_->phase() == PeerPhase::idle) peer_->handshake().connect();
    peer_->posts().add(self);
    begin(deadline);
  }
  Outcome post() override {
    Status failure;
    const Outcome outcome = post_notify(*peer_, notify_, failure);
    if (outcome == Outcome::posted) complete(std::move(failure));
    return outcome;
  }
  void abandon(const Status& reason) override { complete(reason.with_context("notify")); }

 private:
  void leave() noexcept override { peer_->posts().remove(this); }
  [[nodiscard]] Status too_late() const override { return no_room_for_notify(*peer_); }

  const std::shared_ptr<PeerImpl> peer_;
  const EncodedNotify notify_;
};

}  // namespace

Status not_raised_in_time(PeerImpl& peer, std::uint64_t id, std::uint64_t count) {
  return {Code::timeout, "notification " + std::to_string(id) + " was not raised " + std::to_string(count) + " times by " +
                             peer.describe() + " in time; nothing was consumed"};
}

Status no_room_for_notify(PeerImpl& peer) {
  return {Code::timeout, "notify: " + peer.describe() +
                             " accepted no further notification in time; nothing was sent. It may be stopped, or does not read its "
                             "notifications"};
}

Result<std::shared_ptr<WorkState>> ContextImpl::iwait_notify(const std::shared_ptr<PeerState>& state, const Envelope& envelope,
                                                             std::uint64_t id, std::uint64_t count, Deadline deadline) {
  HMC_TRY(usable());
  HMC_TRY(check_notification_id(id));
  const auto lock = engine_->lock();
  HMC_TRY(usable());
  if (count == 0) return done_work();
  const auto peer = std::static_pointer_cast<PeerImpl>(state);
  if (peer->phase() == PeerPhase::idle) peer->handshake().connect();
  const auto work = std::make_shared<NotifyWait>(peer, envelope, id, count);
  work->start(deadline);
  return std::shared_ptr<WorkState>(work);
}

Result<std::shared_ptr<WorkState>> ContextImpl::inotifications(const std::shared_ptr<PeerState>& state, const Envelope& envelope,
                                                               Deadline deadline) {
  HMC_TRY(usable());
  const auto lock = engine_->lock();
  HMC_TRY(usable());
  const auto slot = state ? static_cast<PeerImpl&>(*state).notify_slot() : nullptr;
  const auto work = std::make_shared<NotificationsWait>(*this, slot, envelope);
  work->start(deadline);
  return std::shared_ptr<WorkState>(work);
}

Result<std::shared_ptr<WorkState>> ContextImpl::inotify(const std::shared_ptr<PeerState>& state, const Notify& notify,
                                                        const Envelope& envelope, Deadline deadline) {
  HMC_TRY(usable());
  HMC_TRY(check_notification(notify));
  EncodedNotify encoded(notify, envelope);
  const auto lock = engine_->lock();
  HMC_TRY(usable());
  const auto peer = std::static_pointer_cast<PeerImpl>(state);
  if (peer->phase() == PeerPhase::lost || peer->phase() == PeerPhase::closed) return peer->failure().with_context("notify");
  const auto work = std::make_shared<NotifyWork>(peer, std::move(encoded));
  work->start(deadline);
  return std::shared_ptr<WorkState>(work);
}

template <>
Result<std::vector<Notification>> WorkOf<std::vector<Notification>>::take() const {
  if (!valid()) return Status(Code::invalid_argument, "this Work is empty: it names no operation");
  return static_cast<ResultWork<std::vector<Notification>>&>(*state()).take();
}

}  // namespace hmc
