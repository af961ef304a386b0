#include "comm/onesided/notifier.h"

#include <optional>
#include <string>
#include <utility>

#include "comm/context_impl.h"
#include "comm/onesided/transfer_notify.h"
#include "comm/waits.h"

namespace hmc {
namespace {

// Notifications without data that may wait for room at one peer before notify() waits too.
constexpr std::size_t max_waiting_notifies = 4096;

Status check_notification(const Notify& notify) {
  if (notify.empty()) return {Code::invalid_argument, "an empty notification; give it an id or a payload"};
  return check_notify(notify);
}

Status check_notification_id(std::uint64_t id) {
  if ((id >> 63) == 0) return {};
  return {Code::invalid_argument, "notification id " + std::to_string(id) + "; ids are below 2^63"};
}

Status not_raised_in_time(PeerImpl& peer, std::uint64_t id, std::uint64_t count) {
  return {Code::timeout, "notification " + std::to_string(id) + " was not raised " + std::to_string(count) + " times by " +
                             peer.describe() + " in time; nothing was consumed"};
}

Status no_room_for_notify(PeerImpl& peer) {
  return {Code::timeout, "notify: " + peer.describe() +
                             " accepted no further notification in time; nothing was sent. It may be stopped, or does not read its "
                             "notifications"};
}

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
  bool put_back() override {
    if (!peer_->impl().scopes().is_over(envelope_.scope)) slot_->give_back(envelope_, id_, count_);
    return true;
  }
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
      : ResultWork(context), Taker(std::move(slot), envelope), context_(context), table_(context.notifier().table()) {}
  // Untaken payloads return to their queues.
  ~NotificationsWait() override {
    const auto owner = taken_.payloads.empty() ? nullptr : context();
    if (!owner) return;
    owner->toss([raw = owner.get(), taken = std::move(taken_)]() mutable { give_back(*raw, std::move(taken)); });
  }
  void start(Deadline deadline) {
    taken_ = table_.take_out(slot_.get(), envelope_);
    if (!taken_.payloads.empty()) return complete({});
    if (Status reason = over(); !reason.ok()) return complete(std::move(reason));
    table_.add_taker(*this);
    begin(deadline);
  }

 private:
  // Those of a Communicator that is closed meanwhile are discarded, and their senders get the credit.
  static void give_back(ContextImpl& context, TakenPayloads taken) {
    if (context.scopes().is_over(taken.payloads.front().envelope.scope))
      return static_cast<void>(NotifyTable::release(std::move(taken)));
    context.notifier().table().put_back(std::move(taken));
  }
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
  bool put_back() override {
    if (std::exchange(fetched_, true)) return false;
    if (!taken_.payloads.empty() && context()) give_back(context_, std::exchange(taken_, {}));
    return true;
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

Notifier::Notifier(ContextImpl& context)
    : context_(context), table_([&context](std::uint32_t scope, std::uint32_t rank, const NotifySlot& slot) {
        PeerState* const owner = context.scopes().owner(scope, rank);
        return owner != nullptr && static_cast<PeerImpl*>(owner)->notify_slot().get() == &slot;
      }) {}

Status Notifier::notify(const std::shared_ptr<PeerState>& state, const Notify& notify, const Envelope& envelope,
                        Deadline deadline) {
  HMC_TRY(context_.usable());
  HMC_TRY(check_notification(notify));
  PeerImpl& peer = static_cast<PeerImpl&>(*state);
  EncodedNotify encoded(notify, envelope);
  auto lock = context_.engine()->lock();
  while (peer.posts().size() >= max_waiting_notifies) {
    lock.unlock();
    const bool room = context_.engine()->drive(deadline, [&] {
      return peer.posts().size() < max_waiting_notifies || context_.closing().begun() || peer.phase() == PeerPhase::lost ||
             peer.phase() == PeerPhase::closed || context_.scopes().is_over(envelope.scope);
    });
    lock = context_.engine()->lock();
    if (!room) return no_room_for_notify(peer);
    HMC_TRY(context_.usable());
    HMC_TRY(context_.scopes().open(envelope.scope));
    if (peer.phase() == PeerPhase::lost || peer.phase() == PeerPhase::closed)
      break;  // what is queued may drain, but for no new one
  }
  if (peer.phase() == PeerPhase::lost || peer.phase() == PeerPhase::closed) return peer.failure().with_context("notify");
  Status failure;
  if (peer.may_post() && peer.posts().empty() && post_notify(peer, encoded, failure) == PendingOp::Outcome::posted) return failure;
  if (peer.phase() == PeerPhase::idle) peer.handshake().connect();
  peer.posts().add(std::make_shared<NotifyOp>(peer, std::move(encoded)));
  context_.engine()->kick();
  return {};
}

Status Notifier::fence(const std::shared_ptr<PeerState>& state) {
  HMC_TRY(context_.usable());
  const auto lock = context_.engine()->lock();
  return state->posts().fence();
}

Status Notifier::wait_notify(const std::shared_ptr<PeerState>& state, const Envelope& envelope, std::uint64_t id,
                             std::uint64_t count, Deadline deadline) {
  HMC_TRY(context_.usable());
  HMC_TRY(check_notification_id(id));
  if (count == 0) return {};
  NotifyWaiter waiter;
  NotifySlot& slot = *static_cast<PeerImpl&>(*state).notify_slot();
  {
    const auto lock = context_.engine()->lock();
    if (slot.consume(envelope, id, count)) return {};
    HMC_TRY(context_.scopes().open(envelope.scope));  // closed by another thread since the caller looked
    PeerImpl& peer = static_cast<PeerImpl&>(*state);
    if (peer.phase() == PeerPhase::idle) peer.handshake().connect();  // its death would go unnoticed otherwise
    slot.wait(envelope, id, count, waiter);
  }
  if (context_.engine()->drive_flag(deadline, waiter.ready)) return waiter.status;
  const auto lock = context_.engine()->lock();
  if (waiter.ready.load() != 0) return waiter.status;
  slot.cancel(envelope, id, waiter);
  return not_raised_in_time(static_cast<PeerImpl&>(*state), id, count);
}

Result<std::vector<Notification>> Notifier::notifications(const std::shared_ptr<PeerState>& state, const Envelope& envelope,
                                                          Deadline deadline) {
  HMC_TRY(context_.usable());
  NotifySlot* slot = state ? static_cast<PeerImpl&>(*state).notify_slot().get() : nullptr;
  NotifyTable::PayloadWaiter waiter;
  auto lock = context_.engine()->lock();
  bool over = false;
  while (true) {
    auto taken = table_.take(slot, envelope);
    if (!taken.empty()) {
      context_.engine()->kick();  // the sender may wait for the credit
      return taken;
    }
    HMC_TRY(context_.usable());
    HMC_TRY(context_.scopes().open(envelope.scope));
    if (slot != nullptr) HMC_TRY(NotifyTable::ended(*slot));
    if (slot == nullptr) HMC_TRY(context_.scopes().senders_left(envelope.scope, envelope.dst));
    if (over) return taken;
    if (state && state->phase() == PeerPhase::idle) static_cast<PeerImpl&>(*state).handshake().connect();  // as for wait_notify()
    waiter.ready.store(0);
    table_.add_waiter(waiter);
    lock.unlock();
    over = !context_.engine()->drive_flag(deadline, waiter.ready);  // the deadline passed, or this thread was interrupted
    lock = context_.engine()->lock();
    table_.remove_waiter(waiter);
  }
}

Result<std::shared_ptr<WorkState>> Notifier::iwait_notify(const std::shared_ptr<PeerState>& state, const Envelope& envelope,
                                                          std::uint64_t id, std::uint64_t count, Deadline deadline) {
  HMC_TRY(context_.usable());
  HMC_TRY(check_notification_id(id));
  const auto lock = context_.engine()->lock();
  HMC_TRY(context_.usable());
  HMC_TRY(context_.scopes().open(envelope.scope));
  if (count == 0) return context_.done_work();
  const auto peer = std::static_pointer_cast<PeerImpl>(state);
  if (peer->phase() == PeerPhase::idle) peer->handshake().connect();
  const auto work = std::make_shared<NotifyWait>(peer, envelope, id, count);
  work->start(deadline);
  return std::shared_ptr<WorkState>(work);
}

Result<std::shared_ptr<WorkState>> Notifier::inotifications(const std::shared_ptr<PeerState>& state, const Envelope& envelope,
                                                            Deadline deadline) {
  HMC_TRY(context_.usable());
  const auto lock = context_.engine()->lock();
  HMC_TRY(context_.usable());
  HMC_TRY(context_.scopes().open(envelope.scope));
  if (state && state->phase() == PeerPhase::idle) static_cast<PeerImpl&>(*state).handshake().connect();
  const auto slot = state ? static_cast<PeerImpl&>(*state).notify_slot() : nullptr;
  const auto work = std::make_shared<NotificationsWait>(context_, slot, envelope);
  work->start(deadline);
  return std::shared_ptr<WorkState>(work);
}

Result<std::shared_ptr<WorkState>> Notifier::inotify(const std::shared_ptr<PeerState>& state, const Notify& notify,
                                                     const Envelope& envelope, Deadline deadline) {
  HMC_TRY(context_.usable());
  HMC_TRY(check_notification(notify));
  EncodedNotify encoded(notify, envelope);
  const auto lock = context_.engine()->lock();
  HMC_TRY(context_.usable());
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
