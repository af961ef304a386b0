#include "comm/onesided/notify.h"

#include <algorithm>

#include "comm/session/rank_scopes.h"

namespace hmc {
namespace {

// Spent entries kept for reuse; beyond that they are erased.
constexpr std::size_t kept_entries = 256;
// Bytes that an unread counted id takes.
constexpr std::uint64_t counted_bytes = 64;

std::uint64_t mix(std::uint64_t x) noexcept {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  return x;
}

}  // namespace

void NotifyWaiter::finish(Status outcome) {
  if (completion_ != nullptr) return completion_->complete(std::move(outcome));
  status = std::move(outcome);
  ready.store(1, std::memory_order_release);
}

std::size_t NotifySlot::KeyHash::operator()(const Key& key) const noexcept {
  const std::uint64_t place =
      (std::uint64_t{key.envelope.scope} << 32) ^ (std::uint64_t{key.envelope.src} << 16) ^ key.envelope.dst;
  return static_cast<std::size_t>(mix(key.id ^ mix(place)));
}

NotifySlot::Entry& NotifySlot::entry(const Envelope& envelope, std::uint64_t id) {
  const Key key{envelope, id};
  if (hot_ != nullptr && hot_key_ == key) return *hot_;
  Entry& found = counted_[key];  // nodes do not move on rehash
  hot_key_ = key;
  hot_ = &found;
  return found;
}

// Serves waiters in turn, then forgets an entry that holds nothing.
void NotifySlot::settle(const Envelope& envelope, std::uint64_t id) {
  Entry& e = entry(envelope, id);
  while (e.first != nullptr && e.count >= e.first->need_) {
    NotifyWaiter* waiter = e.first;
    e.count -= waiter->need_;
    unlink(e, *waiter);
    waiter->finish({});
  }
  if (e.count == 0 && e.first == nullptr && counted_.size() > kept_entries) {
    hot_ = nullptr;
    counted_.erase(Key{envelope, id});
  }
}

void NotifySlot::unlink(Entry& entry, NotifyWaiter& waiter) noexcept {
  (waiter.previous_ == nullptr ? entry.first : waiter.previous_->next_) = waiter.next_;
  (waiter.next_ == nullptr ? entry.last : waiter.next_->previous_) = waiter.previous_;
  waiter.next_ = waiter.previous_ = nullptr;
  waiter.queued_ = false;
}

bool NotifySlot::consume(const Envelope& envelope, std::uint64_t id, std::uint64_t count) {
  Entry& e = entry(envelope, id);
  if (e.first != nullptr || e.count < count) return false;
  e.count -= count;
  settle(envelope, id);
  return true;
}

void NotifySlot::wait(const Envelope& envelope, std::uint64_t id, std::uint64_t count, NotifyWaiter& waiter) {
  Entry& e = entry(envelope, id);
  if (!ended_.ok() && (e.first != nullptr || e.count < count)) {
    settle(envelope, id);
    waiter.finish(ended_);
    return;
  }
  waiter.need_ = count;
  waiter.queued_ = true;
  waiter.previous_ = e.last;
  (e.last == nullptr ? e.first : e.last->next_) = &waiter;
  e.last = &waiter;
  settle(envelope, id);
}

void NotifySlot::cancel(const Envelope& envelope, std::uint64_t id, NotifyWaiter& waiter) {
  if (!waiter.queued_) return;
  unlink(entry(envelope, id), waiter);
  settle(envelope, id);  // the one behind it may need less
}

void NotifySlot::give_back(const Envelope& envelope, std::uint64_t id, std::uint64_t count) {
  entry(envelope, id).count += count;
  settle(envelope, id);
}

bool NotifySlot::raise(const Envelope& envelope, std::uint64_t id) {
  Entry& e = entry(envelope, id);
  if (counted_.size() > max_counted_ids) return false;
  ++e.count;
  if (e.first != nullptr) settle(envelope, id);
  return true;
}

void NotifySlot::end(const Status& reason) {
  if (!ended_.ok()) return;
  ended_ = reason;
  grant = nullptr;
  std::vector<NotifyWaiter*> all;
  for (auto& [key, e] : counted_) {
    while (e.first != nullptr) {
      all.push_back(e.first);
      unlink(e, *e.first);
    }
  }
  hot_ = nullptr;
  std::erase_if(counted_, [](const auto& item) { return item.second.count == 0; });
  for (NotifyWaiter* waiter : all) waiter->finish(reason);
}

std::uint64_t NotifySlot::unread_bytes() const noexcept { return queued_cost_ + counted_.size() * counted_bytes; }

std::uint64_t NotifySlot::discard() {
  std::uint64_t count = payloads_.size();
  for (const auto& [key, e] : counted_) count += e.count;
  for (const Queued& queued : payloads_) queued_cost_ -= notify_cost(queued.payload.size());
  payloads_.clear();
  hot_ = nullptr;
  counted_ = {};
  return count;
}

bool NotifySlot::acknowledge(std::uint64_t total) noexcept {
  if (total > sent_ || total < acknowledged_) return false;
  acknowledged_ = total;
  return true;
}

void NotifySlot::consumed(std::uint64_t cost) {
  queued_cost_ -= cost;
  consumed_ += cost;
  if (grant && consumed_ - granted_ >= notify_window / 4) {
    granted_ = consumed_;
    grant(consumed_);
  }
}

std::shared_ptr<NotifySlot> NotifyTable::add_peer() { return slots_.emplace_back(std::make_shared<NotifySlot>()); }

void NotifyTable::remove_peer(const std::shared_ptr<NotifySlot>& slot, const Status& reason) {
  slot->end(reason);
  keep_departed(slot);
  wake_waiters();
}

// Payloads for a Member are reached through the table, everything else through the peer's handles alone.
void NotifyTable::keep_departed(const std::shared_ptr<NotifySlot>& slot) {
  const auto place = std::ranges::find(slots_, slot);
  const bool for_member = std::ranges::any_of(slot->payloads_, [](const auto& queued) { return queued.envelope.scope != 0; });
  if (for_member && place == slots_.end()) slots_.push_back(slot);
  if (!for_member && place != slots_.end()) slots_.erase(place);
  std::erase_if(departed_, [&](const auto& weak) {
    const auto one = weak.lock();
    return !one || one == slot || one->unread_bytes() == 0;
  });
  if (slot->unread_bytes() != 0) departed_.push_back(slot);
  while (departed_.size() > 1 && departed_bytes() > max_departed_bytes) {
    if (const auto oldest = departed_.front().lock()) {
      discarded_ += oldest->discard();
      std::erase(slots_, oldest);
    }
    departed_.pop_front();
  }
}

std::uint64_t NotifyTable::departed_bytes() const noexcept {
  std::uint64_t total = 0;
  for (const auto& weak : departed_) {
    if (const auto slot = weak.lock()) total += slot->unread_bytes();
  }
  return total;
}

bool NotifyTable::queue(NotifySlot& slot, const Envelope& envelope, ByteSpan payload) {
  const std::uint64_t cost = notify_cost(payload.size());
  if (slot.queued_cost_ + cost > notify_window) return false;
  slot.queued_cost_ += cost;
  slot.payloads_.push_back({envelope, Bytes(payload.begin(), payload.end())});
  serve(slot, envelope);
  set_ready();
  return true;
}

bool NotifyTable::matches(NotifySlot& slot, bool any, const Envelope& queued, const Envelope& wanted) const {
  if (queued.scope != wanted.scope || queued.dst != wanted.dst) return false;
  if (any || wanted.src == any_rank) return queued.scope == 0 || owns_rank_(queued.scope, queued.src, slot);
  return queued.src == wanted.src;
}

template <class Each>
void NotifyTable::take_from(NotifySlot& slot, bool any, const Envelope& envelope, Each each) {
  std::erase_if(slot.payloads_, [&](NotifySlot::Queued& queued) {
    if (!matches(slot, any, queued.envelope, envelope)) return false;
    each(slot, queued);
    return true;
  });
}

template <class Each>
void NotifyTable::take_each(NotifySlot* slot, const Envelope& envelope, Each each) {
  if (slot != nullptr) return take_from(*slot, false, envelope, each);
  for (const auto& s : slots_) take_from(*s, true, envelope, each);
  std::erase_if(slots_, [](const auto& s) { return !s->ended_.ok() && s->payloads_.empty(); });
}

std::vector<Notification> NotifyTable::take(NotifySlot* slot, const Envelope& envelope) {
  std::vector<Notification> out;
  take_each(slot, envelope, [&](NotifySlot& from, NotifySlot::Queued& queued) {
    from.consumed(notify_cost(queued.payload.size()));
    out.push_back({queued.envelope.scope == 0 ? -1 : static_cast<int>(queued.envelope.src), std::move(queued.payload)});
  });
  return out;
}

TakenPayloads NotifyTable::take_out(NotifySlot* slot, const Envelope& envelope) {
  TakenPayloads out;
  take_each(slot, envelope, [&](NotifySlot& from, NotifySlot::Queued& queued) {
    out.payloads.push_back({from.shared_from_this(), queued.envelope, std::move(queued.payload)});
  });
  return out;
}

std::vector<Notification> NotifyTable::release(TakenPayloads taken) {
  std::vector<Notification> out;
  for (auto& each : taken.payloads) {
    each.slot->consumed(notify_cost(each.bytes.size()));
    out.push_back({each.envelope.scope == 0 ? -1 : static_cast<int>(each.envelope.src), std::move(each.bytes)});
  }
  return out;
}

void NotifyTable::put_back(TakenPayloads taken) {
  auto& payloads = taken.payloads;
  for (auto each = payloads.rbegin(); each != payloads.rend(); ++each) {
    each->slot->payloads_.push_front({each->envelope, std::move(each->bytes)});
  }
  for (const auto& each : payloads) {
    if (!each.slot->ended_.ok()) keep_departed(each.slot);
    serve(*each.slot, each.envelope);
  }
  set_ready();
}

void NotifySlot::drop_scope(std::uint32_t scope, const Status& reason) {
  std::uint64_t cost = 0;
  std::erase_if(payloads_, [&](const Queued& queued) {
    if (queued.envelope.scope != scope) return false;
    cost += notify_cost(queued.payload.size());
    return true;
  });
  if (cost != 0) consumed(cost);
  std::vector<NotifyWaiter*> waiting;
  for (auto& [key, e] : counted_) {
    while (key.envelope.scope == scope && e.first != nullptr) {
      waiting.push_back(e.first);
      unlink(e, *e.first);
    }
  }
  hot_ = nullptr;
  std::erase_if(counted_, [scope](const auto& item) { return item.first.envelope.scope == scope; });
  for (NotifyWaiter* waiter : waiting) waiter->finish(reason);
}

void NotifyTable::drop_scope(std::uint32_t scope) {
  const Status closed = communicator_closed();
  for (const auto& slot : slots_) slot->drop_scope(scope, closed);
  for (Taker* taker : std::list(takers_)) {
    if (!taker->added_ || taker->envelope_.scope != scope) continue;
    remove_taker(*taker);
    taker->fail(closed);
  }
  set_ready();  // who waits for a payload asks again whether one may come
}

void NotifyTable::discard_late(NotifySlot& slot, std::size_t payload_bytes) {
  ++discarded_;
  if (payload_bytes == 0) return;
  const std::uint64_t cost = notify_cost(payload_bytes);
  slot.queued_cost_ += cost;
  slot.consumed(cost);
}

void NotifyTable::remove_waiter(PayloadWaiter& waiter) { std::erase(waiters_, &waiter); }

void NotifyTable::set_ready() noexcept {
  for (PayloadWaiter* waiter : waiters_) waiter->ready.store(1, std::memory_order_release);
}

void NotifyTable::wake_waiters() {
  set_ready();
  std::vector<std::pair<Taker*, Status>> over;
  for (Taker* taker : takers_) {
    if (Status reason = taker->over(); !reason.ok()) over.emplace_back(taker, std::move(reason));
  }
  for (const auto& [taker, reason] : over) {
    remove_taker(*taker);
    taker->fail(reason);
  }
}

void NotifyTable::add_taker(Taker& taker) {
  taker.place_ = takers_.insert(takers_.end(), &taker);
  taker.added_ = true;
}

void NotifyTable::remove_taker(Taker& taker) noexcept {
  if (!taker.added_) return;
  taker.added_ = false;
  takers_.erase(taker.place_);
}

// Gives what `queued` stands for to the first taker that waits for it.
void NotifyTable::serve(NotifySlot& slot, const Envelope& queued) {
  for (Taker* taker : takers_) {
    if (taker->slot_ && taker->slot_.get() != &slot) continue;
    if (!matches(slot, taker->slot_ == nullptr, queued, taker->envelope_)) continue;
    remove_taker(*taker);
    taker->deliver(take_out(taker->slot_.get(), taker->envelope_));
    return;
  }
}

}  // namespace hmc
