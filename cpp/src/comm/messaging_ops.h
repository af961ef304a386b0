// Operations of two-sided messages: what a send and a receive hold while under way. Engine lock held throughout.
#pragma once

#include <memory>
#include <string>

#include "comm/matching.h"
#include "comm/messaging_wire.h"
#include "comm/peer_state.h"
#include "hmc/peer.h"
#include "progress/work_state.h"

namespace hmc::messaging {

class MessengerImpl;

// A send or receive. Its own transfer (put or get of a part) completes it as a Completion of its own, so that the operation ends
// only when nothing touches its memory any more.
class Operation : public WorkState {
 public:
  Status cancel_locked() override;

  // This side's share of a rendezvous.
  class Part final : public Completion {
   public:
    explicit Part(Operation& operation) noexcept : operation_(operation) {}
    void complete(Status status) noexcept override { operation_.part_done(std::move(status)); }

   private:
    Operation& operation_;
  };
  void part_done(Status status) noexcept;
  void peer_done(Status status);
  // Ends the operation once this side's transfer is over and the peer's is over or will never be.
  void settle();
  void fail(Status status);  // as settle, but whatever the peer does
  [[nodiscard]] std::string describe() const;

  MessengerImpl& owner;
  std::shared_ptr<PeerState> peer;  // null: a receive from any source that is not matched yet
  Envelope envelope;
  std::int64_t tag;
  MemoryView view;
  const bool sending;
  std::uint64_t id = 0;    // on the wire; 0 while it has none
  bool queued = false;     // a send that waits for the peer, for credit or for room
  bool announced = false;  // a send whose announcement is out
  bool matched = false;
  bool refused_answer = false;  // a send that expects another answer
  bool moving = false;          // its own transfer is under way
  bool part_over = true;        // nothing of its own to move (any more)
  bool peer_over = false;       // the peer has said that its part is done
  bool hopeless = false;        // the peer will never say
  Status outcome;               // first error met
  std::uint64_t peer_op = 0;    // its number at the peer, once known

  std::shared_ptr<StreamPoint> after;  // what was queued on the caller's stream when it was posted; null: none was named
  Route* route = nullptr;              // that the peer's put takes, or this side's
  std::string transport;               // that moves its part
  bool doubted = false;                // a device's error: whether the peer lives was asked
  bool may_break = false;              // its connection may end while the peer lives
  std::shared_ptr<LocalRegion> region;
  std::unique_ptr<RemoteRegion> remote;
  std::uint64_t local_offset = 0;
  std::uint64_t remote_offset = 0;
  Run run;
  Bytes finish_signal;  // travels with a put of the lower part
  Part part{*this};
  TransferOp transfer;

 protected:
  Operation(MessengerImpl& messenger, std::shared_ptr<PeerState> other, const Envelope& e, std::int64_t t, const MemoryView& v,
            bool is_send);
  void released() noexcept override;
  friend class MessengerImpl;
};

class SendOperation final : public Operation {
 public:
  SendOperation(MessengerImpl& messenger, std::shared_ptr<PeerState> to, const Envelope& e, std::int64_t t, const MemoryView& v)
      : Operation(messenger, std::move(to), e, t, v, true) {}
};

inline MessageInfo info_of(const Head& head, std::uint64_t bytes) {
  return {head.envelope.scope == 0 ? -1 : static_cast<int>(head.envelope.src), head.tag, static_cast<std::size_t>(bytes)};
}

class ReceiveOperation final : public Operation {
 public:
  ReceiveOperation(MessengerImpl& messenger, std::shared_ptr<PeerState> from, const Envelope& e, std::int64_t t,
                   const MemoryView& v)
      : Operation(messenger, std::move(from), e, t, v, false) {}
  void deliver(const Head& head, std::uint64_t bytes) { info_ = info_of(head, bytes); }

  TransportSet refused = 0;                  // what does not reach its memory
  std::unique_ptr<const Announce> announce;  // what the sender puts, should it refuse the answer; what to fetch again
  unsigned fetched_again = 0;
};

// A message that nobody had asked for when it came.
struct Unexpected {
  std::shared_ptr<PeerState> peer;
  Head head;
  Bytes payload;                       // eager
  std::unique_ptr<Announce> announce;  // else
};

}  // namespace hmc::messaging
