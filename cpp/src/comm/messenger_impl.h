// The Messenger: eager messages and credit (messaging.cc), rendezvous (rendezvous.cc), queues and endings (messaging_queue.cc).
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/pollable.h"
#include "comm/context_state.h"
#include "comm/matching.h"
#include "comm/messaging.h"
#include "comm/messaging_ops.h"
#include "comm/messaging_wire.h"

namespace hmc::messaging {

// Credit and queues of one peer.
struct Lane {
  std::shared_ptr<PeerState> peer;
  // As sender: what the peer still holds of us.
  std::uint64_t payload_out = 0;
  std::uint64_t heads_out = 0;
  // As receiver: what we hold of the peer, and what we have consumed and not given back yet.
  std::uint64_t payload_held = 0;
  std::uint64_t heads_held = 0;
  Credit owed;
  bool waiting_for_ready = false;
  std::deque<Bytes> signals;                         // answers, finishes, credit: before any send
  std::deque<std::shared_ptr<Operation>> transfers;  // puts and gets that found no room
  std::deque<std::shared_ptr<SendOperation>> sends;  // in the order they were posted
  // Matched, and waiting for the endpoint between their devices or for a stream: a receive with what was announced or came, a send
  // with its answer.
  struct Unrouted {
    std::shared_ptr<Operation> operation;
    std::variant<Announce, Answer, Bytes> said;
  };
  std::vector<Unrouted> unrouted;
  [[nodiscard]] bool idle() const noexcept { return signals.empty() && transfers.empty() && sends.empty() && unrouted.empty(); }
};

// A blocking receive on its caller's stack, while nothing else is posted: the short way for small messages. It comes before every
// receive that is posted later.
struct DirectReceive {
  Address wanted;
  std::int64_t tag;
  const MemoryView& view;
  std::atomic<std::uint32_t> done{0};
  Status status;
  MessageInfo info;
  std::shared_ptr<WorkState> operation;  // what it became, when the message was announced instead

  [[nodiscard]] bool fits(const Address& from, std::int64_t its_tag) const noexcept {
    return wanted == from && tag_fits(tag, its_tag);
  }
};

class MessengerImpl final : public Messenger, public Pollable {
 public:
  explicit MessengerImpl(ContextState& context);
  ~MessengerImpl() override;

  Result<std::shared_ptr<WorkState>> isend(const std::shared_ptr<PeerState>& peer, const Envelope& envelope, std::int64_t tag,
                                           const MemoryView& view) override;
  Result<std::shared_ptr<WorkState>> irecv(const std::shared_ptr<PeerState>& peer, const Envelope& envelope, std::int64_t tag,
                                           const MemoryView& view) override;
  Result<std::shared_ptr<WorkState>> isend_locked(const std::shared_ptr<PeerState>& peer, const Envelope& envelope,
                                                  std::int64_t tag, const MemoryView& view) override;
  Result<std::shared_ptr<WorkState>> irecv_locked(const std::shared_ptr<PeerState>& peer, const Envelope& envelope,
                                                  std::int64_t tag, const MemoryView& view) override;
  Status send(const std::shared_ptr<PeerState>& peer, const Envelope& envelope, std::int64_t tag, const MemoryView& view,
              Deadline deadline) override;
  Result<MessageInfo> recv(const std::shared_ptr<PeerState>& peer, const Envelope& envelope, std::int64_t tag,
                           const MemoryView& view, Deadline deadline) override;
  void on_signal(PeerState& peer, ByteSpan signal) override;
  void on_peer_gone(PeerState& peer, const Status& reason) override;
  void on_context_closing(const Status& reason) override;
  bool poll() override;
  bool arm() override;

  // ---- for operations ----
  Status cancel(Operation& operation);
  void forget(Operation& operation);       // it has ended
  void report_part(Operation& operation);  // this side's part is over: tell the peer
  // True: its connection failed, and another one fetches all of it.
  bool fetch_again(Operation& operation, const Status& status);
  [[nodiscard]] const std::shared_ptr<Engine>& engine() const noexcept { return context_.engine(); }

 private:
  // ---- messaging.cc ----
  static Status check(const std::shared_ptr<PeerState>& peer, std::int64_t tag, const MemoryView& view, bool receiving);
  // ok: sent. would_block: queue it. unsupported: too large or out of payload credit, announce it.
  Status try_eager(Lane& lane, const Envelope& envelope, std::int64_t tag, const MemoryView& view);
  Status copy_in(const MemoryView& view, ByteSpan payload);
  // Installs `receive` if the short way is open. Lock held.
  [[nodiscard]] bool install(DirectReceive& receive) noexcept;
  void end_direct(Status status);
  void on_eager(PeerState& peer, ByteSpan signal);
  void on_credit(Lane& lane, ByteSpan signal);
  void consumed(Lane& lane, std::uint64_t payload);
  void give_credit(Lane& lane);
  void deliver(const std::shared_ptr<ReceiveOperation>& receive, std::unique_ptr<Unexpected> message);

  // ---- rendezvous.cc ----
  Status announce(Lane& lane, SendOperation& send);
  void on_announce(PeerState& peer, ByteSpan signal);
  void accept(const std::shared_ptr<ReceiveOperation>& receive, Unexpected& message);
  // would_block: the endpoint between the two devices is being made.
  Status start_receive(ReceiveOperation& receive, const Announce& announce);
  // The receiver's memory as the sender is to reach it by `route`, in a signal.
  Result<Bytes> own_region(ReceiveOperation& receive, Route& route, std::uint64_t bytes);
  // Asks the sender to put all of it. For memory that a transport does not reach, by the next.
  Status ask_for_put(ReceiveOperation& receive, const Announce& announce, Route* route);
  static Status after_stream(const Operation& receive);
  // An eager payload for `receive`; later if a stream still uses the memory.
  void take_eager(Lane& lane, const std::shared_ptr<ReceiveOperation>& receive, ByteSpan payload);
  Status start_send(Operation& send, const Answer& answer);
  // Starts, or keeps for later, or ends the operation with the reason.
  void start_routed(Lane& lane, Lane::Unrouted unrouted);
  void on_answer(PeerState& peer, ByteSpan signal);
  void on_finish(PeerState& peer, ByteSpan signal);
  void refuse_answer(Operation& send, std::uint64_t receiver_op, const Status& why);
  void on_refuse(PeerState& peer, ByteSpan signal);
  void on_withdraw(PeerState& peer, ByteSpan signal);
  void start_transfer(Lane& lane, Operation& operation);
  Status post_transfer(Operation& operation);
  void finish(PeerState& peer, std::uint64_t op, const Status& status);

  // ---- messaging_queue.cc ----
  Lane& lane_of(PeerState& peer);
  void enqueue(Lane& lane, const std::shared_ptr<SendOperation>& send);
  void emit(Lane& lane, Bytes signal);
  bool pump(Lane& lane);
  Status pump_send(Lane& lane, SendOperation& send);
  void want_poll();
  std::shared_ptr<Operation> moving(std::uint64_t id, PeerState& peer);
  Status cancel_transfer(Operation& receive);
  void end_operations(const PeerState* peer, const Status& reason);

  ContextState& context_;
  Matcher<std::shared_ptr<ReceiveOperation>, std::unique_ptr<Unexpected>> matcher_;
  DirectReceive* direct_ = nullptr;
  std::unordered_map<const PeerState*, Lane> lanes_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Operation>> operations_;  // with an id: announced or matched
  std::uint64_t next_id_ = 1;
  bool polled_ = false;
};

// What a peer may have under way to us that nobody has asked for yet: bytes of eager payload, and messages.
inline constexpr std::uint64_t payload_credit = 1 << 20;
inline constexpr std::uint64_t head_credit = 4096;
// Above this a rendezvous is shared by both ends where the transport says that pays.
inline constexpr std::uint64_t both_ends_from = 64 << 10;

}  // namespace hmc::messaging
