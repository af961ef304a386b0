// Linger: keeps a socket that sends no more open until the peer has closed its side, for a limited time. Closing a socket with
// unread input resets the connection, and the peer may lose what was sent last. Engine lock held.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "control/socket_watch.h"
#include "control/stream.h"
#include "progress/one_shot_timer.h"

namespace hmc::control {

class Linger final : public FdHandler {
 public:
  // `over` runs once, not inside the constructor, and may destroy the Linger. Destroyed earlier: never.
  Linger(Engine& engine, std::unique_ptr<Stream> stream, std::function<void()> over);
  ~Linger() { timer_.stop(); }

  void on_ready(std::uint32_t events) override;  // discards input

 private:
  void end();

  const std::unique_ptr<Stream> stream_;
  const std::function<void()> over_;
  std::size_t discarded_ = 0;
  SocketWatch watch_;
  OneShotTimer timer_;
};

}  // namespace hmc::control
