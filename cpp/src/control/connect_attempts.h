// ConnectAttempts: a client's connection requests to one address: the first one, and retries with exponential backoff after
// connections that the server closed. Engine lock held.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "control/socket_watch.h"
#include "progress/connecting.h"
#include "progress/one_shot_timer.h"

namespace hmc::control {

class ConnectAttempts final : public FdHandler {
 public:
  // The outcome of one attempt: the connected socket, or why there is none. It may destroy the ConnectAttempts.
  using Outcome = std::function<void(Result<UniqueFd>)>;

  // `deadline`: no retry begins later. The caller limits the time of an attempt.
  ConnectAttempts(Engine& engine, std::string_view address, Deadline deadline, Outcome outcome);
  ~ConnectAttempts() { stop(); }

  void start();  // `outcome` runs later, not inside this call
  // The server has closed the connection; `answered`: after its hello. True: an attempt follows after a pause. False: no more.
  bool retry(bool answered);
  void stop();
  [[nodiscard]] bool unix_socket() const noexcept { return address_.starts_with("unix"); }
  [[nodiscard]] Deadline deadline() const noexcept { return deadline_; }
  [[nodiscard]] const char* waiting_for() const noexcept;

  void on_ready(std::uint32_t events) override;

 private:
  void watch();
  void end_soon(const Status& reason);
  void end(Result<UniqueFd> outcome);

  const std::string address_;
  const Deadline deadline_;
  const Outcome outcome_;
  std::optional<Connecting> connecting_;
  bool answered_ = false;  // by an HMC server, if only before a retry
  unsigned retries_ = 0;
  std::chrono::milliseconds full_backlog_pause_{5};
  SocketWatch watch_;
  OneShotTimer timer_;  // for the next request, or for the outcome of one that failed at once
};

}  // namespace hmc::control
