// PerProcess: the one T of a process that all threads share, made at its first use.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/fork.h"

namespace hmc {

// A forked child makes its own: a thread that it does not have may hold the lock of its parent's. Never destroyed, for threads use
// it while the process exits. To be declared constinit.
template <class T>
class PerProcess {
 public:
  constexpr PerProcess() noexcept = default;
  PerProcess(const PerProcess&) = delete;
  PerProcess& operator=(const PerProcess&) = delete;

  [[nodiscard]] T& get() {
    Held* found = current_.load();
    if (found != nullptr && found->epoch == fork_epoch()) return found->value;
    install_fork_handler();
    auto made = std::make_unique<Held>();
    return current_.compare_exchange_strong(found, made.get()) ? made.release()->value : found->value;
  }

 private:
  struct Held {
    T value;
    const std::uint32_t epoch = fork_epoch();
  };
  std::atomic<Held*> current_{nullptr};
};

}  // namespace hmc
