// NotifyTable: notifications that have arrived and who waits for them. One per Context. Everything with the engine lock held.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/blob.h"
#include "base/completion.h"
#include "comm/wire/envelope.h"
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
// Unread notifications of all departed peers together, in bytes as NotifySlot::unread_bytes() counts them. Beyond it the oldest
// peer's are discarded.
inline constexpr std::uint64_t max_departed_bytes = 16 << 20;

// Waits for a counted id. Lives in the waiter's frame or object from NotifySlot::wait() until it is finished or cancelled.
class NotifyWaiter {
 public:
  NotifyWaiter() noexcept = default;
  // Completes `completion` in place of setting `ready` and `status`.
  explicit NotifyWaiter(Completion& completion) noexcept : completion_(&completion) {}
  NotifyWaiter(const NotifyWaiter&) = delete;
  NotifyWaiter& operator=(const NotifyWaiter&) = delete;
  std::atomic<std::uint32_t> ready{0};  // set under the engine lock: `status` is valid, and if ok the raises were consumed
  Status status;

 private:
  friend class NotifySlot;
  void finish(Status outcome);  // the waiter may be gone when it returns
  Completion* completion_ = nullptr;
  std::uint64_t need_ = 0;
  NotifyWaiter* next_ = nullptr;
  NotifyWaiter* previous_ = nullptr;
  bool queued_ = false;
};

// Notifications of one peer. Freed with the peer's last handle: what arrived before its end can still be taken until then.
class NotifySlot : public std::enable_shared_from_this<NotifySlot> {
 public:
  // ---- receiving ----
  // Takes `count` raises if they are there and nobody waits before.
  bool consume(const Envelope& envelope, std::uint64_t id, std::uint64_t count);
  // Queues `waiter` (first come, first served). May finish it at once.
  void wait(const Envelope& envelope, std::uint64_t id, std::uint64_t count, NotifyWaiter& waiter);
  void cancel(const Envelope& envelope, std::uint64_t id, NotifyWaiter& waiter);
  // Returns `count` raises that were consumed and not used.
  void give_back(const Envelope& envelope, std::uint64_t id, std::uint64_t count);
  // False: the peer broke its bounds.
  [[nodiscard]] bool raise(const Envelope& envelope, std::uint64_t id);
  // The peer is gone: waiters end with `reason`, later ones too once nothing is left for them.
  void end(const Status& reason);

  // A Communicator is closed: its notifications are discarded, its waiters end with `reason`.
  void drop_scope(std::uint32_t scope, const Status& reason);

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
  static void unlink(Entry& entry, NotifyWaiter& waiter) noexcept;
  [[nodiscard]] std::uint64_t unread_bytes() const noexcept;
  std::uint64_t discard();  // everything unread; returns how many notifications that were

  std::unordered_map<Key, Entry, KeyHash> counted_;
  Key hot_key_{};
  Entry* hot_ = nullptr;  // entry of hot_key_: ping-pong patterns look up the same id over and over
  std::deque<Queued> payloads_;
  std::uint64_t queued_cost_ = 0, consumed_ = 0, granted_ = 0;
  std::uint64_t sent_ = 0, acknowledged_ = 0;
  Status ended_;
};

// Payloads taken out of their queues. Their senders get the credit when they are released.
struct TakenPayloads {
  struct Payload {
    std::shared_ptr<NotifySlot> slot;
    Envelope envelope;
    Bytes bytes;
  };
  std::vector<Payload> payloads;  // in arrival order per peer
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
  // One that comes after that, with `payload_bytes` (0: a counted id): its sender gets the credit.
  void discard_late(NotifySlot& slot, std::size_t payload_bytes);

  // The same in two steps, for a caller that may return them.
  TakenPayloads take_out(NotifySlot* slot, const Envelope& envelope);
  static std::vector<Notification> release(TakenPayloads taken);
  // Returns them to the front of their queues.
  void put_back(TakenPayloads taken);

  // Set whenever a payload is queued, a peer ends or a scope is dropped.
  struct PayloadWaiter {
    std::atomic<std::uint32_t> ready{0};
  };
  void add_waiter(PayloadWaiter& waiter) { waiters_.push_back(&waiter); }
  void remove_waiter(PayloadWaiter& waiter);
  void wake_waiters();  // a peer ended

  // Waits for payloads and gets them at once when they arrive, first come, first served. Added while none are there for it.
  class Taker {
   public:
    Taker(std::shared_ptr<NotifySlot> slot, const Envelope& envelope) noexcept : slot_(std::move(slot)), envelope_(envelope) {}
    // Removed from the table before the call.
    virtual void deliver(TakenPayloads taken) = 0;
    virtual void fail(const Status& reason) = 0;
    // Why nothing comes any more; ok while something may. Asked whenever a peer has ended.
    [[nodiscard]] virtual Status over() const = 0;

   protected:
    virtual ~Taker() = default;
    const std::shared_ptr<NotifySlot> slot_;  // null: any peer of the scope
    const Envelope envelope_;

   private:
    friend class NotifyTable;
    std::list<Taker*>::iterator place_;
    bool added_ = false;
  };
  void add_taker(Taker& taker);
  void remove_taker(Taker& taker) noexcept;

  [[nodiscard]] static const Status& ended(const NotifySlot& slot) noexcept { return slot.ended_; }
  // Notifications that were discarded unread: of departed peers, and late ones of closed Communicators. And the bytes of departed
  // peers' that are kept.
  [[nodiscard]] std::uint64_t discarded() const noexcept { return discarded_; }
  [[nodiscard]] std::uint64_t departed_bytes() const noexcept;

 private:
  template <class Each>
  void take_from(NotifySlot& slot, bool any, const Envelope& envelope, Each each);
  template <class Each>
  void take_each(NotifySlot* slot, const Envelope& envelope, Each each);
  [[nodiscard]] bool matches(NotifySlot& slot, bool any, const Envelope& queued, const Envelope& wanted) const;
  void serve(NotifySlot& slot, const Envelope& queued);
  void set_ready() noexcept;
  void keep_departed(const std::shared_ptr<NotifySlot>& slot);

  OwnsRank owns_rank_;
  std::vector<std::shared_ptr<NotifySlot>> slots_;  // connected peers, and departed ones with payloads for a Member
  std::deque<std::weak_ptr<NotifySlot>> departed_;  // with something unread, oldest first
  std::uint64_t discarded_ = 0;
  std::vector<PayloadWaiter*> waiters_;
  std::list<Taker*> takers_;
};

}  // namespace hmc
