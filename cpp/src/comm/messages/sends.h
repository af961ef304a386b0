// Sends until they are out: eager ones as a whole, large ones as an announcement.
#pragma once

#include <memory>

#include "comm/messages/lanes.h"
#include "comm/messages/rendezvous.h"

namespace hmc::messaging {

// Owned by MessengerImpl; those that wait are in the Lanes. Engine lock held.
class Sends {
 public:
  Sends(MessengerImpl& messenger, ContextState& context, Lanes& lanes, Rendezvous& rendezvous) noexcept
      : messenger_(messenger), context_(context), lanes_(lanes), rendezvous_(rendezvous) {}

  Result<std::shared_ptr<WorkState>> post(const Target& to, std::int64_t tag, const MemoryView& view);
  // Queues the last message to `peer` in `scope`.
  void leave_scope(const std::shared_ptr<PeerState>& peer, std::uint32_t scope);
  // False: nothing was sent, post it. The arguments were checked.
  [[nodiscard]] bool send_now(const Target& to, std::int64_t tag, const MemoryView& view);
  void enqueue(const std::shared_ptr<SendOperation>& send);
  // Sends what waits in `lane`, in its order.
  bool pump(Lane& lane);
  Status cancel(SendOperation& send);
  // `peer` null: of all.
  void end_queued(const PeerState* peer, const Status& reason);

 private:
  Result<std::shared_ptr<WorkState>> post_checked(const Target& to, std::int64_t tag, const MemoryView& view);

  MessengerImpl& messenger_;
  ContextState& context_;
  Lanes& lanes_;
  Rendezvous& rendezvous_;
};

}  // namespace hmc::messaging
