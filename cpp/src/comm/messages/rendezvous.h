// Large messages, from the announcement on: either side or both move the bytes, and both learn when all of it is in place.
#pragma once

#include <cstdint>

#include "comm/messages/lanes.h"
#include "comm/messages/operation_table.h"

namespace hmc {
class ContextState;
}

namespace hmc::messaging {

// Above this a rendezvous is shared by both ends where the transport says that pays.
inline constexpr std::uint64_t both_ends_from = 64 << 10;

// Owned by MessengerImpl. Engine lock held.
class Rendezvous {
 public:
  Rendezvous(ContextState& context, Lanes& lanes) noexcept : context_(context), lanes_(lanes) {}

  Status announce(Lane& lane, SendOperation& send);
  // Starts, or keeps for later, or ends the operation with the reason.
  void start(Lane& lane, Lane::Unrouted unrouted);
  void route_waiting(Lane& lane);
  bool pump(Lane& lane);  // what waits in it for a route or for room
  void on_answer(PeerState& peer, ByteSpan signal);
  void on_finish(PeerState& peer, ByteSpan signal);
  void on_refuse(PeerState& peer, ByteSpan signal);
  // Ends operation `op` of the peer.
  void finish(PeerState& peer, std::uint64_t op, const Status& status);
  void withdraw_announced(PeerState& peer);
  void end(const PeerState* peer, const Status& reason);  // `peer` null: of all
  [[nodiscard]] const OperationTable& operations() const noexcept { return operations_; }

  // ---- for operations ----
  void forget(Operation& operation);       // it has ended
  void report_part(Operation& operation);  // this side's part is over: tell the peer
  // True: its connection failed, and another one fetches all of it.
  bool fetch_again(Operation& operation, const Status& status);

 private:
  // would_block: the endpoint between the two devices is being made.
  Status start_receive(ReceiveOperation& receive, const Announce& announce);
  Status start_send(Operation& send, const Answer& answer);
  // The receiver's memory as the sender is to reach it by `route`, in a signal.
  Result<Bytes> own_region(ReceiveOperation& receive, Route& route, std::uint64_t bytes);
  // Asks the sender to put all of it. For memory that a transport does not reach, by the next.
  Status ask_for_put(ReceiveOperation& receive, const Announce& announce, Route* route);
  void refuse_answer(Operation& send, std::uint64_t receiver_op, const Status& why);
  void start_transfer(Lane& lane, Operation& operation);
  Status post_transfer(Operation& operation);
  // The peer has been told of the memory of `operation`, and where its process accesses that by itself the operation does not end
  // before it has said that it is done, or has ended.
  static void expose(Operation& operation);

  ContextState& context_;
  Lanes& lanes_;
  OperationTable operations_;
};

}  // namespace hmc::messaging
