// Interruptible: what a thread does around its blocking calls: end them early because a signal came, give up a lock before waiting.
#pragma once

#include <chrono>

#include "hmc/export.h"

namespace hmc {

// While one lives, the blocking calls of its thread that take a deadline ask it about every 100 ms. Once it has said that it is
// interrupted, they end as at a passed deadline, and a collective tells the other ranks that this one was interrupted. Nests: the
// innermost counts. Made, used and ended on one thread.
class HMC_API Interruptible {
 public:
  Interruptible() noexcept;
  virtual ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

  // ---- called by HMC ----
  // Whether to end early; with no lock of HMC held. Not asked again after a yes. May call HMC, whose calls ask only an
  // Interruptible made meanwhile.
  virtual bool asked() = 0;
  // The call is about to wait: it was not over within about a microsecond. May come more than once, and with a lock
  // of HMC held: must neither call HMC nor wait for a thread that does.
  virtual void before_waiting() {}

  // ---- for HMC ----
  // Asks when it is time to. True from the first time that the answer was yes.
  bool ask();
  // The last answer.
  [[nodiscard]] bool interrupted() const noexcept { return interrupted_; }
  // When ask() asks next, as of the time `now`. The first call sets it: a wait that ends at once never reads the clock.
  [[nodiscard]] std::chrono::steady_clock::time_point next_look(std::chrono::steady_clock::time_point now) noexcept;
  // The innermost of this thread, or null.
  [[nodiscard]] static Interruptible* current() noexcept;

 private:
  Interruptible* const outer_;
  std::chrono::steady_clock::time_point next_look_{};  // epoch: not set yet
  bool interrupted_ = false;
};

}  // namespace hmc
