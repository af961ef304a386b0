// ContextImpl: put, get, notify, fence and waiting for notifications. Lock not held on entry.
#include <array>

#include "comm/buffers/preparation.h"
#include "comm/context_impl.h"
#include "comm/onesided/transfer.h"
#include "comm/waits.h"

namespace hmc {
namespace {

// Notifications without data that may wait for room at one peer before notify() waits too.
constexpr std::size_t max_waiting_notifies = 4096;

const char* verb(bool is_put) noexcept { return is_put ? "put" : "get"; }

}  // namespace

Status ContextImpl::check_open(const Exposure& exposure, bool is_put) const {
  if (!exposure.closed.load(std::memory_order_relaxed)) return {};
  return Status(Code::closed,
                std::string(verb(is_put)) + (is_put ? " from" : " into") + " a closed ConnBuffer; register the memory again");
}

Status ContextImpl::check_remote(PeerImpl& peer, const RemoteImport& record, bool is_put) const {
  if (peer.phase() == PeerPhase::lost || peer.phase() == PeerPhase::closed) return peer.failure().with_context(verb(is_put));
  if (!record.alive.load(std::memory_order_relaxed)) return record.dead.with_context(verb(is_put));
  return {};
}

Result<Route*> ContextImpl::prepared_route(const BufferState& local, const RemoteBufferState& remote) {
  const auto route = remote.peer->routes().find(local, remote);
  if (!route.ok()) return route.status().code() == Code::would_block ? Result<Route*>(nullptr) : route.status();
  const auto* region = local.registration->find_for((*route)->transport, remote.record->device);
  const auto* entry = remote.record->find((*route)->slot);
  if (region != nullptr && entry != nullptr && entry->prepared_for(local.exposure->device)) [[likely]]
    return route;
  return static_cast<Route*>(nullptr);
}

Result<std::shared_ptr<WorkState>> ContextImpl::transfer(bool is_put, const ConnBuffer& local, const RemoteBuffer& remote,
                                                         const PutOptions& options, const Envelope& envelope) {
  HMC_TRY(usable());
  if (!local.valid() || !remote.valid()) {
    return Status(Code::invalid_argument,
                  std::string(verb(is_put)) + " needs a ConnBuffer of this process and a RemoteBuffer of a peer; one is empty");
  }
  const auto& mine = local.state();
  const auto& theirs = remote.state();
  if (mine->context.get() != this || theirs->context.get() != this) {
    return Status(Code::invalid_argument,
                  std::string(verb(is_put)) + ": both buffers must belong to the Context that the call is made on");
  }
  if (local.size() != remote.size()) {
    return Status(Code::invalid_argument, std::string(verb(is_put)) + " between " + std::to_string(local.size()) +
                                              " bytes here and " + std::to_string(remote.size()) +
                                              " bytes at the peer; slice them to equal sizes");
  }
  if (is_put && theirs->record->access != Access::read_write) {
    return Status(Code::invalid_argument, "put into a buffer that its owner registered for reading only");
  }
  HMC_TRY(check_notify(options.notify));
  HMC_ASSIGN(auto after, mark_stream(options.stream, local.device()));
  EncodedNotify notify(options.notify, envelope);
  auto lock = engine_->lock();
  Route* route = nullptr;
  HMC_TRY(usable());
  HMC_TRY(check_open(*mine->exposure, is_put));
  HMC_TRY(check_remote(*theirs->peer, *theirs->record, is_put));
  if (local.size() != 0) {
    HMC_ASSIGN(route, prepared_route(*mine, *theirs));
  }
  if (is_put && route != nullptr && put_short(*route, local, remote, notify)) return done_work();
  const bool pays_credit = notify.cost() != 0;
  const auto work = std::make_shared<TransferWork>(is_put, mine, local.offset(), theirs, remote.offset(), local.size(),
                                                   options.complete, std::move(notify));
  work->start_after(std::move(after));
  work->use_route(route);
  if (local.size() != 0 && route == nullptr) work->prepare();
  return post_work(work, pays_credit);
}

// The way of small puts whose transport can end them at once: no Work is made for them.
bool ContextImpl::put_short(Route& route, const ConnBuffer& local, const RemoteBuffer& remote, const EncodedNotify& notify) {
  const std::uint64_t offsets[2] = {local.offset(), remote.offset()};
  if (local.size() > short_put_bytes || route.staged || notify.cost() != 0 || !remote.state()->peer->may_post()) return false;
  const auto* region = local.state()->registration->find(route.transport);
  const auto* entry = remote.state()->record->find(route.slot);
  const Run run{region->get(), entry->region.get(), &offsets[0], &offsets[1], 1, local.size()};
  if (!route.endpoint->put_short(run, notify.span())) return false;
  if (!notify.empty()) route.slot->notified = true;
  route.count(true, local.size());
  return true;
}

Result<std::shared_ptr<WorkState>> ContextImpl::post_work(const std::shared_ptr<TransferWork>& work, bool pays_credit) {
  PeerImpl& peer = work->peer();
  work->begin();
  const bool in_turn = peer.may_post() && !(pays_credit && !peer.posts().empty());
  bool needs_polling = true;
  if (in_turn && work->post() == PendingOp::Outcome::posted) {
    if (!work->post_error().ok()) return work->post_error();
    needs_polling = work->needs_polling();
  } else {
    work->use_route(nullptr);  // it may have failed by the time
    peer.posts().add(work);
  }
  if (needs_polling && !work->done()) engine_->kick();
  return std::shared_ptr<WorkState>(work);
}

void ContextImpl::prepare(const std::shared_ptr<TransferWork>& work, const std::shared_ptr<BufferState>& local,
                          const std::shared_ptr<RemoteBufferState>& remote) {
  std::make_shared<Preparation>(local, remote, [work](Status status) { work->prepared(std::move(status)); })->start();
}

void ContextImpl::prepare(const std::shared_ptr<TransferWork>& work, const std::shared_ptr<BlockBatchState>& batch) {
  const BlockBatchState::Pair* missing = nullptr;
  Status resolved = resolve_batch(*batch, missing);
  if (missing == nullptr) return work->prepared(std::move(resolved));
  const auto next = [this, work, batch](Status status) { status.ok() ? prepare(work, batch) : work->prepared(std::move(status)); };
  std::make_shared<Preparation>(missing->local, missing->remote, next)->start();
}

Result<std::shared_ptr<WorkState>> ContextImpl::put(const ConnBuffer& source, const RemoteBuffer& target, const PutOptions& options,
                                                    const Envelope& envelope) {
  return transfer(true, source, target, options, envelope);
}

Result<std::shared_ptr<WorkState>> ContextImpl::get(const ConnBuffer& target, const RemoteBuffer& source, StreamHandle stream) {
  return transfer(false, target, source, {.notify = {}, .complete = Complete::remote, .stream = stream}, {});
}

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
