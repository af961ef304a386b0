// SocketWatch: the engine's watch of at most one socket, which the owner may change and end. Engine lock held throughout.
#pragma once

#include <cstdint>
#include <utility>

#include "progress/engine.h"

namespace hmc::control {

class SocketWatch {
 public:
  explicit SocketWatch(Engine& engine) noexcept : engine_(engine) {}
  SocketWatch(const SocketWatch&) = delete;
  SocketWatch& operator=(const SocketWatch&) = delete;
  ~SocketWatch() { stop(); }

  // Replaces the current watch. Errors as Engine::watch; then nothing is watched.
  Status start(int fd, std::uint32_t events, FdHandler& handler) {
    if (fd == fd_) {
      if (events != events_) engine_.modify(fd, events);
    } else {
      stop();
      HMC_TRY(engine_.watch(fd, events, handler));
      fd_ = fd;
    }
    events_ = events;
    return {};
  }
  // Before the socket is closed.
  void stop() {
    if (fd_ >= 0) engine_.unwatch(std::exchange(fd_, -1));
  }

 private:
  Engine& engine_;
  int fd_ = -1;
  std::uint32_t events_ = 0;
};

}  // namespace hmc::control
