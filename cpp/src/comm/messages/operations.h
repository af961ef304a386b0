// Operations of two-sided messages: what a send and a receive hold while under way. Engine lock held throughout.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "comm/messages/matching.h"
#include "comm/onesided/pending.h"
#include "comm/peer_state.h"
#include "comm/routing/transport_set.h"
#include "comm/target.h"
#include "comm/wire/messages.h"
#include "hmc/peer.h"
#include "progress/work_state.h"

namespace hmc::messaging {

class MessengerImpl;

class Operation;

// How far an operation has come. A receive is posted, then matched.
enum class Stage : std::uint8_t {
  posted,
  queued,     // a send that waits for the peer, for credit or for room
  announced,  // a send whose announcement is out
  refused,    // a send that expects another answer
  matched,
};

// Which sides still use the memory of an operation, and the first error of either.
class Ends {
 public:
  // Whatever the peer says, where its process does not access the memory by itself.
  [[nodiscard]] bool over() const noexcept {
    return own_ != Own::moving && ((peer_hopeless && !exposed) || (own_ == Own::over && peer_over));
  }
  [[nodiscard]] bool moving() const noexcept { return own_ == Own::moving; }
  void move() noexcept { own_ = Own::moving; }
  // A device's error: waits until it is known whether the peer lives. False: that was asked before, or is no use.
  [[nodiscard]] bool doubt() noexcept {
    own_ = Own::over;
    if (peer_hopeless || std::exchange(doubted_, true)) return false;
    own_ = Own::in_doubt;
    return true;
  }
  void own_over() noexcept { own_ = Own::over; }
  [[nodiscard]] bool in_doubt() const noexcept { return own_ == Own::in_doubt; }
  void fail(Status status) {
    if (!status.ok() && outcome.ok()) outcome = std::move(status);
  }

  bool peer_over = false;      // the peer has said that its part is done
  bool peer_hopeless = false;  // it will never say
  bool exposed = false;        // until it says, its process may access the memory by itself
  Status outcome;

 private:
  enum class Own : std::uint8_t { over, moving, in_doubt };
  Own own_ = Own::over;  // nothing of its own to move (any more)
  bool doubted_ = false;
};

// This side's share of a rendezvous: a put or get, and its completion.
class Share final : public Completion {
 public:
  explicit Share(Operation& operation) noexcept : operation_(operation) {}
  void complete(Status status) noexcept override;
  // `bytes` of both regions from `offset` on.
  void set_run(std::uint64_t offset, std::uint64_t bytes) noexcept {
    offset_ = offset;
    run_ = {region.get(), remote.get(), &offset_, &offset_, 1, bytes};
  }
  // As op of Endpoint::put or get.
  [[nodiscard]] TransferOp& op(StreamPoint* after) noexcept {
    op_.runs = {&run_, 1};
    op_.bytes = run_.block;
    op_.level = Complete::remote;
    op_.after = after;
    op_.signal = finish_signal;
    return op_;
  }

  Route* route = nullptr;  // that the peer's put takes, or this side's
  std::string transport;   // that moves it
  bool may_break = false;  // its connection may end while the peer lives
  std::shared_ptr<LocalRegion> region;
  std::unique_ptr<RemoteRegion> remote;
  // What was announced, while a put takes another route: a receive after it may fetch from there.
  std::shared_ptr<LocalRegion> announced_region;
  std::string announced_transport;
  Bytes finish_signal;  // travels with a put of the lower part

 private:
  Operation& operation_;
  std::uint64_t offset_ = 0;
  Run run_;
  TransferOp op_;
};

// A send or receive. Its own transfer (put or get of a part) completes it as a Completion of its own, so that the operation ends
// only when nothing touches its memory any more.
class Operation : public WorkState {
 public:
  Status cancel_locked() override;

  void part_done(Status status) noexcept;
  void peer_done(Status status);
  // Ends the operation once this side's transfer is over and the peer's is over or will never be.
  void settle();
  void fail(Status status);  // as settle, but whatever the peer says; not while its process may access the memory
  [[nodiscard]] std::string describe() const;
  // "send of 8 bytes, tag 1, to rank 3 (host:42)"
  [[nodiscard]] static std::string describe(bool sending, const Target& target, std::int64_t tag, std::size_t bytes);

  MessengerImpl& owner;
  std::shared_ptr<PeerState> peer;  // null: a receive from any source that is not matched yet
  Envelope envelope;
  std::int64_t tag;
  MemoryView view;
  const bool sending;
  const std::uint32_t call;   // see Target
  std::uint64_t id = 0;       // on the wire; 0 while it has none
  std::uint64_t peer_op = 0;  // its number at the peer, once known
  Stage stage = Stage::posted;
  Ends ends;
  // A receive: its sender was asked to stop, and has not replied. A send: it was asked, and its put has not ended.
  bool halting = false;
  std::shared_ptr<StreamPoint> after;  // what was queued on the caller's stream when it was posted; null: none was named
  // Of a rendezvous, made by the first call: most messages are eager and have none.
  [[nodiscard]] Share& share() {
    if (!share_) share_ = std::make_unique<Share>(*this);
    return *share_;
  }

 protected:
  Operation(MessengerImpl& messenger, const Target& target, std::int64_t t, const MemoryView& v, bool is_send);
  void released() noexcept override;

 private:
  std::unique_ptr<Share> share_;
};

class SendOperation final : public Operation, public PendingOp {
 public:
  // Waits among the peer's one-sided operations until the fences there are released. Sends that follow do too.
  void wait_behind_fence();
  [[nodiscard]] bool behind_fence() const noexcept { return behind_fence_; }
  // True at the first call: the announcement is to be asked back, once.
  [[nodiscard]] bool ask_back() noexcept { return !std::exchange(asked_back_, true); }
  void leave_fence() noexcept;
  Outcome post() override;
  void abandon(const Status& reason) override;
  [[nodiscard]] bool ends_at_close() const noexcept override { return true; }

  SendOperation(MessengerImpl& messenger, const Target& to, std::int64_t t, const MemoryView& v)
      : Operation(messenger, to, t, v, true) {}

 private:
  bool behind_fence_ = false;
  bool asked_back_ = false;
};

// Into memory of any device. An error: nothing was written.
Status copy_in(const MemoryView& view, ByteSpan payload);

inline MessageInfo info_of(const Head& head, std::uint64_t bytes) {
  return {head.envelope.scope == 0 ? -1 : static_cast<int>(head.envelope.src), head.tag, static_cast<std::size_t>(bytes)};
}

// Kept by the table of posted receives until it is matched, and by itself from then on.
class ReceiveOperation final : public Operation {
 public:
  ReceiveOperation(MessengerImpl& messenger, const Target& from, std::int64_t t, const MemoryView& v)
      : Operation(messenger, from, t, v, false) {}
  // It has its message. Errors of a receive from any source name the rank from now on.
  void deliver(const Head& head, std::uint64_t bytes) {
    info_ = info_of(head, bytes);
    envelope = head.envelope;
  }

  OrderedEntries<std::shared_ptr<ReceiveOperation>>::Place posted;  // until it is matched
  TransportSet refused = 0;                                         // what does not reach its memory
  std::unique_ptr<const Announce> announce;                         // what it was matched with, to begin again
  std::uint64_t arrival = 0;                                        // of its message
  bool asked = false;                                               // the sender, to put its half or all
  std::optional<Withdraw> withdrawn;                                // the sender would have the announcement back
  bool gives_back = false;                                          // being cancelled: the message is left for another receive
  bool abandoned = false;                                           // nobody waits for it any more
  unsigned fetched_again = 0;
};

// A message that nobody had asked for when it came. Its Lane outlives it.
struct Unexpected {
  Lane* lane = nullptr;
  Head head;
  Bytes payload;                             // eager
  std::unique_ptr<const Announce> announce;  // else
  std::uint64_t arrival = 0;
  bool put_back = false;  // by a receive that was cancelled; its sender has the credit back
  Status missing;         // not ok: the sender left before it was received. Fails the receive whose turn it is.
};

}  // namespace hmc::messaging
