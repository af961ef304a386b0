// DrivePace: when a driving waiter looks at descriptors and at the clock, yields its core, or goes to sleep. One per wait; the
// waiter's thread only.
#pragma once

#include "hmc/deadline.h"
#include "progress/wait_policy.h"

namespace hmc {

class DrivePace {
 public:
  using TimePoint = Deadline::Clock::time_point;

  static constexpr unsigned looks_per_locking = 16;
  // Empty rounds after which a call counts as one that waits (Interruptible::before_waiting): about a microsecond.
  static constexpr unsigned prompt_rounds = 2 * looks_per_locking;
  // Rounds between looks at the clock while yielding: each yield costs a system call anyhow.
  static constexpr unsigned clock_interval = 16;
  // While things move: only rounds that moved something count. A wait may see them at a fixed interval, and of all rounds never one
  // whose number is a multiple of this.
  static constexpr unsigned moving_clock_interval = 64;

  explicit DrivePace(WaitPolicy& policy) noexcept : policy_(policy), spin_rounds_(policy.rounds()) {}

  // A round is over.
  void looked(bool moved) noexcept {
    if (moved) {
      ++moved_;
      empty_ = 0;
      spin_rounds_ = policy_.rounds();
    } else {
      ++empty_;
      if (sliced_) policy_.crowd(TimePoint::clock::now());
    }
    sliced_ = false;
  }
  // It has yielded its core for `elapsed`.
  void yielded(WaitPolicy::Duration elapsed) noexcept { sliced_ = WaitPolicy::is_time_slice(elapsed); }
  // The waiter slept and looks anew.
  void slept() noexcept { empty_ = 0; }

  // ---- before a round ----
  // Whether it looks at descriptors too: only rounds between yields can afford it.
  [[nodiscard]] bool with_descriptors() const noexcept { return empty_ > spin_rounds_ && empty_ % 4 == 0; }
  // Whether another round may follow an empty one without taking the lock anew.
  [[nodiscard]] bool keeps_lock() const noexcept { return empty_ + 1 < spin_rounds_; }

  // ---- after a round ----
  // Whether the call may still end within about a microsecond. Never before a yield or a sleep, where other threads are to run.
  [[nodiscard]] bool prompt() const noexcept { return empty_ != 0 && empty_ < prompt_rounds && spins(); }
  // Whether the next round follows without a yield.
  [[nodiscard]] bool spins() const noexcept { return empty_ < spin_rounds_; }
  // Whether it is time to look at the clock, after a round that moved something ...
  [[nodiscard]] bool clock_due_moving() const noexcept { return moved_ % moving_clock_interval == 0; }
  // ... and before a yield.
  [[nodiscard]] bool clock_due() const noexcept { return empty_ % clock_interval == 0 || policy_.maybe_crowded(); }
  // The first yield of an idle time comes next. idle_since() takes its clock.
  [[nodiscard]] bool begins_to_yield() const noexcept { return empty_ == spin_rounds_; }
  void idle_since(TimePoint now) noexcept { idle_since_ = now; }
  // Whether it has yielded long enough to sleep, or is better off without.
  [[nodiscard]] bool sleeps(TimePoint now) const noexcept {
    return now - idle_since_ >= policy_.yield_time() || policy_.crowded(now);
  }

 private:
  WaitPolicy& policy_;
  unsigned spin_rounds_;  // empty rounds before the first yield; constant while nothing moves
  unsigned empty_ = 0;    // rounds since something moved
  unsigned moved_ = 0;    // rounds that moved something
  bool sliced_ = false;   // the last yield was as long as a time slice
  TimePoint idle_since_{};
};

}  // namespace hmc
