// NotifyTable: notifications that have arrived and who waits for them. One per Context. Everything with the engine lock held.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/blob.h"
#include "comm/envelope.h"
#include "hmc/peer.h"
#include "hmc/status.h"

namespace hmc {

// Payload notifications of one peer that nobody has taken yet are bounded by credit: the sender holds back what would exceed it.
inline constexpr std::uint64_t notify_window = 1 << 20;
// Each payload costs its bytes and a share of the bookkeeping, so that at most 4096 are queued.
constexpr std::uint64_t notify_cost(std::size_t payload_bytes) noexcept {
  return payload_bytes + 64 < 256 ? 256 : payload_bytes + 64;
}
// Different counted ids one peer may have raised and not seen consumed.
inline constexpr std::size_t max_counted_ids = 1 << 18;

// Waits for a counted id. Lives in the waiter's frame or object from NotifySlot::wait() until `ready` is set or it is cancelled.
class NotifyWaiter {
 public:
  NotifyWaiter() noexcept = default;
  NotifyWaiter(const NotifyWaiter&) = delete;
  NotifyWaiter& operator=(const NotifyWaiter&) = delete;
  std::atomic<std::uint32_t> ready{0};  // set under the engine lock: `status` is valid, and if ok the raises were consumed
  Status status;

 private:
  friend class NotifySlot;
  void finish(Status outcome);  // the waiter may be gone when it returns
  std::uint64_t need_ = 0;
  NotifyWaiter* next_ = nullptr;
};

// Notifications of one peer. Outlives the peer: what arrived before its end can still be taken.
class NotifySlot {
 public:
  // ---- receiving ----
  // Takes `count` raises if they are there and nobody waits before.
  bool consume(const Envelope& envelope, std::uint64_t id, std::uint64_t count);
  // Queues `waiter` (first come, first served). May finish it at once.
  void wait(const Envelope& envelope, std::uint64_t id, std::uint64_t count, NotifyWaiter& waiter);
  void cancel(const Envelope& envelope, std::uint64_t id, NotifyWaiter& waiter);
  // False: the peer broke its bounds.
  [[nodiscard]] bool raise(const Envelope& envelope, std::uint64_t id);
  // The peer is gone: waiters end with `reason`, later ones too once nothing is left for them.
  void end(const Status& reason);

  // ---- sending: payload credit ----
  [[nodiscard]] bool has_credit(std::uint64_t cost) const noexcept { return sent_ - acknowledged_ + cost <= notify_window; }
  void spend(std::uint64_t cost) noexcept { sent_ += cost; }
  void refund(std::uint64_t cost) noexcept { sent_ -= cost; }  // they will never arrive
  // False: the peer acknowledges what was never sent.
  [[nodiscard]] bool acknowledge(std::uint64_t total) noexcept;

  // Tells the peer that payloads of cost `total` have been consumed so far. Set by the owner; empty once the peer is gone.
  std::function<void(std::uint64_t total)> grant;

 private:
  friend class NotifyTable;
  struct Key {
    Envelope envelope;
    std::uint64_t id;
    friend bool operator==(const Key&, const Key&) noexcept = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const noexcept;
  };
  struct Entry {
    std::uint64_t count = 0;
    NotifyWaiter* first = nullptr;
    NotifyWaiter* last = nullptr;
  };
  struct Queued {
    Envelope envelope;
    Bytes payload;
  };
  Entry& entry(const Envelope& envelope, std::uint64_t id);
  void settle(const Envelope& envelope, std::uint64_t id);
  void consumed(std::uint64_t cost);

  std::unordered_map<Key, Entry, KeyHash> counted_;
  Key hot_key_{};
  Entry* hot_ = nullptr;  // entry of hot_key_: ping-pong patterns look up the same id over and over
  std::deque<Queued> payloads_;
  std::uint64_t queued_cost_ = 0, consumed_ = 0, granted_ = 0;
  std::uint64_t sent_ = 0, acknowledged_ = 0;
  Status ended_;
};

class NotifyTable {
 public:
  // Whether `rank` of `scope` belongs to the peer of `slot`; asked when any source is waited for.
  using OwnsRank = std::function<bool(std::uint32_t scope, std::uint32_t rank, const NotifySlot& slot)>;
  explicit NotifyTable(OwnsRank owns_rank) : owns_rank_(std::move(owns_rank)) {}

  std::shared_ptr<NotifySlot> add_peer();
  void remove_peer(const std::shared_ptr<NotifySlot>& slot, const Status& reason);

  // False: the peer sent more than its credit.
  [[nodiscard]] bool queue(NotifySlot& slot, const Envelope& envelope, ByteSpan payload);
  // Takes the payloads for `envelope` from `slot`, or from any peer of the scope when null.
  std::vector<Notification> take(NotifySlot* slot, const Envelope& envelope);
  void drop_scope(std::uint32_t scope);

  // Told whenever a payload is queued or a peer ends.
  struct PayloadWaiter {
    std::atomic<std::uint32_t> ready{0};
  };
  void add_waiter(PayloadWaiter& waiter) { waiters_.push_back(&waiter); }
  void remove_waiter(PayloadWaiter& waiter);
  void wake_waiters();

  [[nodiscard]] static const Status& ended(const NotifySlot& slot) noexcept { return slot.ended_; }

 private:
  void take_from(NotifySlot& slot, bool any, const Envelope& envelope, std::vector<Notification>& out);

  OwnsRank owns_rank_;
  std::vector<std::shared_ptr<NotifySlot>> slots_;
  std::vector<PayloadWaiter*> waiters_;
};

}  // namespace hmc
