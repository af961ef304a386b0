// Operations that are cancelled, and receives that end without their message: it stays with its sender for the next one.
#pragma once

#include "comm/messages/lanes.h"
#include "comm/messages/receives.h"
#include "comm/messages/rendezvous.h"
#include "comm/messages/sends.h"

namespace hmc::messaging {

// Owned by MessengerImpl. Engine lock held.
class Withdrawals {
 public:
  Withdrawals(Lanes& lanes, const Rendezvous& rendezvous, Sends& sends, Receives& receives) noexcept
      : lanes_(lanes), rendezvous_(rendezvous), sends_(sends), receives_(receives) {}

  // ok: it has ended as cancelled. would_block: it will, once its sender has replied that it puts nothing more. unsupported: it
  // goes on.
  Status cancel(Operation& operation);
  // Nobody waits for the receive any more, its memory is left to it: it leaves its message, if that may still be.
  void abandon(ReceiveOperation& receive);
  void on_halt(PeerState& peer, ByteSpan signal);

  // ---- for operations ----
  // A matched receive that nothing is written to any more ends, and may leave its message to the next one.
  void end(ReceiveOperation& receive);
  // The put of a send that its receiver stopped has ended. True: the send waits for another receive.
  bool keep(SendOperation& send, const Status& status);

 private:
  Status stop(ReceiveOperation& receive);  // it is matched
  // Its message is here, and waits for a stream alone.
  [[nodiscard]] bool give_back_eager(ReceiveOperation& receive);
  // True: this side's transfer has ended as cancelled.
  bool stop_own(Operation& operation);
  void on_halt_request(PeerState& peer, const Halt& halt);

  Lanes& lanes_;
  const Rendezvous& rendezvous_;
  Sends& sends_;
  Receives& receives_;
};

}  // namespace hmc::messaging
