// Notifier: notifications without data, fences, and waiting for notifications. Owned by ContextImpl. Engine lock not held unless
// said otherwise.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/onesided/notify.h"
#include "comm/wire/envelope.h"
#include "hmc/deadline.h"
#include "hmc/peer.h"
#include "progress/work_state.h"

namespace hmc {

class ContextImpl;
class PeerState;

class Notifier {
 public:
  explicit Notifier(ContextImpl& context);

  // As Peer::notify etc., with the envelope of the notification.
  Status notify(const std::shared_ptr<PeerState>& peer, const Notify& notify, const Envelope& envelope, Deadline deadline);
  Status fence(const std::shared_ptr<PeerState>& peer);
  Status wait_notify(const std::shared_ptr<PeerState>& peer, const Envelope& envelope, std::uint64_t id, std::uint64_t count,
                     Deadline deadline);
  // `peer` null: any of the scope.
  Result<std::vector<Notification>> notifications(const std::shared_ptr<PeerState>& peer, const Envelope& envelope,
                                                  Deadline deadline);
  // The same as Works, which end at the deadline. inotifications() delivers a std::vector<Notification> (ResultWork).
  Result<std::shared_ptr<WorkState>> inotify(const std::shared_ptr<PeerState>& peer, const Notify& notify, const Envelope& envelope,
                                             Deadline deadline);
  Result<std::shared_ptr<WorkState>> iwait_notify(const std::shared_ptr<PeerState>& peer, const Envelope& envelope,
                                                  std::uint64_t id, std::uint64_t count, Deadline deadline);
  Result<std::shared_ptr<WorkState>> inotifications(const std::shared_ptr<PeerState>& peer, const Envelope& envelope,
                                                    Deadline deadline);

  // Engine lock held.
  [[nodiscard]] NotifyTable& table() noexcept { return table_; }

 private:
  ContextImpl& context_;
  NotifyTable table_;
};

}  // namespace hmc
