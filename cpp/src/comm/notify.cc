#include "comm/notify.h"

#include <algorithm>

namespace hmc {
namespace {

// Spent entries kept for reuse; beyond that they are erased.
constexpr std::size_t kept_entries = 256;
// Peers that are gone but left payloads behind.
constexpr std::size_t kept_ended_slots = 64;

std::uint64_t mix(std::uint64_t x) noexcept {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  return x;
}

}  // namespace

void NotifyWaiter::finish(Status outcome) {
  status = std::move(outcome);
  next_ = nullptr;
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
    e.first = waiter->next_;
    if (e.first == nullptr) e.last = nullptr;
    waiter->finish({});
  }
  if (e.count == 0 && e.first == nullptr && counted_.size() > kept_entries) {
    hot_ = nullptr;
    counted_.erase(Key{envelope, id});
  }
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
    waiter.finish(ended_);
    return;
  }
  waiter.need_ = count;
  waiter.next_ = nullptr;
  (e.last == nullptr ? e.first : e.last->next_) = &waiter;
  e.last = &waiter;
  settle(envelope, id);
}

void NotifySlot::cancel(const Envelope& envelope, std::uint64_t id, NotifyWaiter& waiter) {
  Entry& e = entry(envelope, id);
  NotifyWaiter* before = nullptr;
  for (NotifyWaiter* at = e.first; at != nullptr; before = at, at = at->next_) {
    if (at != &waiter) continue;
    (before == nullptr ? e.first : before->next_) = at->next_;
    if (e.last == at) e.last = before;
    break;
  }
  settle(envelope, id);  // the one behind it may need less
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
    for (NotifyWaiter* at = e.first; at != nullptr; at = at->next_) all.push_back(at);
    e.first = e.last = nullptr;
  }
  for (NotifyWaiter* waiter : all) waiter->finish(reason);
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
  std::size_t ended = 0;
  for (const auto& s : slots_) ended += s->ended_.ok() ? 0U : 1U;
  if (slot->payloads_.empty() || ended > kept_ended_slots) std::erase(slots_, slot);
  wake_waiters();
}

bool NotifyTable::queue(NotifySlot& slot, const Envelope& envelope, ByteSpan payload) {
  const std::uint64_t cost = notify_cost(payload.size());
  if (slot.queued_cost_ + cost > notify_window) return false;
  slot.queued_cost_ += cost;
  slot.payloads_.push_back({envelope, Bytes(payload.begin(), payload.end())});
  wake_waiters();
  return true;
}

void NotifyTable::take_from(NotifySlot& slot, bool any, const Envelope& envelope, std::vector<Notification>& out) {
  std::uint64_t cost = 0;
  std::erase_if(slot.payloads_, [&](NotifySlot::Queued& queued) {
    const Envelope& e = queued.envelope;
    if (e.scope != envelope.scope || e.dst != envelope.dst) return false;
    if (any || envelope.src == any_rank) {
      if (e.scope != 0 && !owns_rank_(e.scope, e.src, slot)) return false;
    } else if (e.src != envelope.src) {
      return false;
    }
    cost += notify_cost(queued.payload.size());
    out.push_back({e.scope == 0 ? -1 : static_cast<int>(e.src), std::move(queued.payload)});
    return true;
  });
  if (cost != 0) slot.consumed(cost);
}

std::vector<Notification> NotifyTable::take(NotifySlot* slot, const Envelope& envelope) {
  std::vector<Notification> out;
  if (slot != nullptr) {
    take_from(*slot, false, envelope, out);
    return out;
  }
  for (const auto& s : slots_) take_from(*s, true, envelope, out);
  std::erase_if(slots_, [](const auto& s) { return !s->ended_.ok() && s->payloads_.empty(); });
  return out;
}

void NotifyTable::drop_scope(std::uint32_t scope) {
  for (const auto& slot : slots_) {
    std::uint64_t cost = 0;
    std::erase_if(slot->payloads_, [&](const NotifySlot::Queued& queued) {
      if (queued.envelope.scope != scope) return false;
      cost += notify_cost(queued.payload.size());
      return true;
    });
    if (cost != 0) slot->consumed(cost);
    slot->hot_ = nullptr;
    std::erase_if(slot->counted_,
                  [scope](const auto& item) { return item.first.envelope.scope == scope && item.second.first == nullptr; });
  }
}

void NotifyTable::remove_waiter(PayloadWaiter& waiter) { std::erase(waiters_, &waiter); }

void NotifyTable::wake_waiters() {
  for (PayloadWaiter* waiter : waiters_) waiter->ready.store(1, std::memory_order_release);
}

}  // namespace hmc
