// Joins: how peers come: listening, channels that have not said hello yet, connecting and accepting. Owned by ContextImpl.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "control/channel.h"
#include "hmc/deadline.h"
#include "progress/listener.h"
#include "progress/work_state.h"

namespace hmc {

class AcceptWait;
class ConnectWait;
class ContextImpl;
class PeerImpl;
class PendingChannel;
struct ConnectAttempt;

class Joins {
 public:
  explicit Joins(ContextImpl& context) noexcept;
  ~Joins();
  Joins(const Joins&) = delete;
  Joins& operator=(const Joins&) = delete;

  // ---- engine lock not held ----
  Result<std::shared_ptr<PeerImpl>> connect(std::string_view address, Deadline deadline);
  Result<std::shared_ptr<PeerImpl>> accept(Deadline deadline);
  // As Works that deliver a Peer.
  Result<std::shared_ptr<WorkState>> iconnect(std::string_view address, Deadline deadline);
  Result<std::shared_ptr<WorkState>> iaccept(Deadline deadline);
  std::vector<std::string> addresses();

  // ---- engine lock held ----
  // Listens on the addresses of the Context's options.
  Status start();
  [[nodiscard]] Listener& listener() noexcept { return *listener_; }
  [[nodiscard]] ControlPlane& control() noexcept { return *control_; }
  // A peer that connected to this side, for whoever accepts.
  void add(std::shared_ptr<PeerImpl> peer);
  void peer_ended(const std::shared_ptr<PeerImpl>& peer);
  // The Context begins to close: nobody joins any more.
  void end();
  void stop();  // after everything that uses the listener

 private:
  friend class PendingChannel;
  friend class AcceptWait;
  friend class ConnectWait;
  void on_accept(std::unique_ptr<Channel> channel);
  void on_hello(PendingChannel& pending, ByteSpan payload);
  void drop_pending(PendingChannel& pending);
  void start_connect(const std::shared_ptr<ConnectAttempt>& attempt, std::string_view address, Deadline deadline);
  void on_connected(const std::shared_ptr<ConnectAttempt>& attempt, Result<std::unique_ptr<Channel>> channel);
  // Gives peers in the queue to those that wait for one.
  void serve();

  ContextImpl& context_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<ControlPlane> control_;
  std::vector<std::unique_ptr<PendingChannel>> pending_;
  std::deque<std::shared_ptr<PeerImpl>> queue_;  // to be accepted
  std::vector<std::atomic<std::uint32_t>*> waiters_;
  std::list<AcceptWait*> waits_;
};

}  // namespace hmc
