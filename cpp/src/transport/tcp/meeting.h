// Meeting: from two addresses to `n` authenticated connections between the endpoints that they name.
//
// Both sides know both addresses. One side, the first, dials at once; the other only waits, unless it sees nothing for a while (the
// first may not be able to reach it), and from then on refuses what the first dials. So every connection has one maker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "progress/engine.h"
#include "transport/tcp/connect.h"
#include "transport/tcp/frames.h"
#include "transport/tcp/shared.h"

namespace hmc::tcp {

class TcpEndpoint;

// Part of `endpoint`, which it notifies with TcpEndpoint::met. Engine lock held.
class Meeting {
 public:
  Meeting(std::shared_ptr<Shared> shared, bool same_host, TcpEndpoint& endpoint)
      : endpoint_(endpoint), shared_(std::move(shared)), same_host_(same_host) {}

  // From here on the peer may dial.
  Blob address();
  // Ends with TcpEndpoint::met, possibly inside this call. Errors: the peer's address is invalid, or neither side can reach the
  // other.
  Status connect(const Blob& peer_address);
  void close();

  // ---- of Arrivals ----
  // A connection that the peer dialled and that showed the ticket of connection `index`. False: not wanted.
  [[nodiscard]] bool wants(const Hello& hello) const noexcept;
  void accepted(std::size_t index, UniqueFd socket);
  // ---- of Dial ----
  // The peer accepted the connection, or every address failed.
  void dialled(std::size_t index, Result<UniqueFd> socket);
  // Keeps the endpoint alive.
  [[nodiscard]] std::shared_ptr<Meeting> self();

 private:
  enum class State : std::uint8_t { open, connecting, over };

  [[nodiscard]] bool first() const noexcept;
  [[nodiscard]] bool none_connected() const noexcept;
  void start_dialling();
  void stop_dialling();
  void stop_timers();
  void add(std::size_t index, UniqueFd socket);
  void maybe_met();
  void fail(const Status& reason);

  TcpEndpoint& endpoint_;
  const std::shared_ptr<Shared> shared_;
  const bool same_host_;
  State state_ = State::open;
  Address own_;  // without `listens`; no tickets: there is no address yet
  Address peer_;
  std::vector<UniqueFd> sockets_;
  std::size_t count_ = 0;  // of connections; 0: not known yet
  bool dialling_ = false;
  std::vector<std::unique_ptr<Dial>> dials_;
  Status last_dial_;  // why the peer could not be dialled
  Engine::TimerId dial_timer_ = 0;
  Engine::TimerId deadline_ = 0;
};

}  // namespace hmc::tcp
