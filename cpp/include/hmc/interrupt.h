// Interruptible: a thread's blocking calls can be ended early, e.g. because a signal came.
#pragma once

#include <chrono>
#include <functional>

#include "hmc/export.h"

namespace hmc {

// While it lives, blocking calls of its thread that take a deadline ask `asked` about every 100 ms (no HMC lock held; it must not
// call HMC). Once that has said true, they end as at a passed deadline, and a collective tells the other ranks that this one was
// interrupted. Nests: the innermost counts. Made, used and ended on one thread.
class HMC_API Interruptible {
 public:
  explicit Interruptible(std::function<bool()> asked);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

  // Asks when it is time to. True from the first time that the answer was yes.
  bool ask();
  // The last answer.
  [[nodiscard]] bool interrupted() const noexcept { return interrupted_; }
  // When ask() asks next.
  [[nodiscard]] std::chrono::steady_clock::time_point next_look() const noexcept { return next_look_; }
  // The innermost of this thread, or null.
  [[nodiscard]] static Interruptible* current() noexcept;

 private:
  const std::function<bool()> asked_;
  Interruptible* const outer_;
  std::chrono::steady_clock::time_point next_look_;
  bool interrupted_ = false;
};

}  // namespace hmc
