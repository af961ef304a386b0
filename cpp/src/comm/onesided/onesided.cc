// ContextImpl: notify, fence and waiting for notifications. Lock not held on entry.
#include "comm/context_impl.h"
#include "comm/onesided/transfer.h"
#include "comm/waits.h"

namespace hmc {
namespace {

// Notifications without data that may wait for room at one peer before notify() waits too.
constexpr std::size_t max_waiting_notifies = 4096;

}  // namespace

Status check_notification(const Notify& notify) {
  if (notify.empty()) return {Code::invalid_argument, "an empty notification; give it an id or a payload"};
  return check_notify(notify);
}

Status check_notification_id(std::uint64_t id) {
  if ((id >> 63) == 0) return {};
  return {Code::invalid_argument, "notification id " + std::to_string(id) + "; ids are below 2^63"};
}

Status ContextImpl::notify(const std::shared_ptr<PeerState>& state, const Notify& notify, const Envelope& envelope,
                           Deadline deadline) {
  HMC_TRY(usable());
  HMC_TRY(check_notification(notify));
  PeerImpl& peer = static_cast<PeerImpl&>(*state);
  EncodedNotify encoded(notify, envelope);
  auto lock = engine_->lock();
  while (peer.posts().size() >= max_waiting_notifies) {
    lock.unlock();
    const bool room = engine_->drive(deadline, [&] {
      return peer.posts().size() < max_waiting_notifies || closed() || peer.phase() == PeerPhase::lost ||
             peer.phase() == PeerPhase::closed;
    });
    if (!room) return no_room_for_notify(peer);
    lock = engine_->lock();
    HMC_TRY(usable());
  }
  if (peer.phase() == PeerPhase::lost || peer.phase() == PeerPhase::closed) return peer.failure().with_context("notify");
  Status failure;
  if (peer.may_post() && peer.posts().empty() && post_notify(peer, encoded, failure) == PendingOp::Outcome::posted) return failure;
  if (peer.phase() == PeerPhase::idle) peer.handshake().connect();
  peer.posts().add(std::make_shared<NotifyOp>(peer, std::move(encoded)));
  engine_->kick();
  return {};
}

Status ContextImpl::fence(const std::shared_ptr<PeerState>& state) {
  HMC_TRY(usable());
  const auto lock = engine_->lock();
  return state->posts().fence();
}

Status ContextImpl::wait_notify(const std::shared_ptr<PeerState>& state, const Envelope& envelope, std::uint64_t id,
                                std::uint64_t count, Deadline deadline) {
  HMC_TRY(usable());
  HMC_TRY(check_notification_id(id));
  if (count == 0) return {};
  NotifyWaiter waiter;
  NotifySlot& slot = *static_cast<PeerImpl&>(*state).notify_slot();
  {
    const auto lock = engine_->lock();
    if (slot.consume(envelope, id, count)) return {};
    PeerImpl& peer = static_cast<PeerImpl&>(*state);
    if (peer.phase() == PeerPhase::idle) peer.handshake().connect();  // its death would go unnoticed otherwise
    slot.wait(envelope, id, count, waiter);
  }
  if (engine_->drive_flag(deadline, waiter.ready)) return waiter.status;
  const auto lock = engine_->lock();
  if (waiter.ready.load() != 0) return waiter.status;
  slot.cancel(envelope, id, waiter);
  return not_raised_in_time(static_cast<PeerImpl&>(*state), id, count);
}

Result<std::vector<Notification>> ContextImpl::notifications(const std::shared_ptr<PeerState>& state, const Envelope& envelope,
                                                             Deadline deadline) {
  HMC_TRY(usable());
  NotifySlot* slot = state ? static_cast<PeerImpl&>(*state).notify_slot().get() : nullptr;
  NotifyTable::PayloadWaiter waiter;
  auto lock = engine_->lock();
  bool over = false;
  while (true) {
    auto taken = notify_.take(slot, envelope);
    if (!taken.empty()) {
      engine_->kick();  // the sender may wait for the credit
      return taken;
    }
    HMC_TRY(usable());
    if (slot != nullptr) HMC_TRY(NotifyTable::ended(*slot));
    if (slot == nullptr) HMC_TRY(scopes_.senders_left(envelope.scope, envelope.dst));
    if (over) return taken;
    waiter.ready.store(0);
    notify_.add_waiter(waiter);
    lock.unlock();
    over = !engine_->drive_flag(deadline, waiter.ready);  // the deadline passed, or this thread was interrupted
    lock = engine_->lock();
    notify_.remove_waiter(waiter);
  }
}

}  // namespace hmc
