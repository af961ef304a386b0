// Drive: one call of Engine::drive(). The waiting thread polls until its condition is true: it spins, then yields its core, then
// sleeps.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "hmc/deadline.h"
#include "hmc/interrupt.h"
#include "progress/background_thread.h"
#include "progress/engine_core.h"
#include "progress/sleepers.h"

namespace hmc {

// A condition: a flag that becomes non-zero under the engine lock, in a round or followed by wake_waiters().
struct FlagDone {
  const std::atomic<std::uint32_t>& flag;
  [[nodiscard]] bool locked() const noexcept { return flag.load(std::memory_order_acquire) != 0; }
  [[nodiscard]] bool unlocked() const noexcept { return flag.load(std::memory_order_acquire) != 0; }
  void describe(Sleeper& sleeper) const noexcept { sleeper.flag = &flag; }
  [[nodiscard]] const std::atomic<std::uint32_t>* awaited() const noexcept { return &flag; }
};

// A condition: a function, called under the engine lock only, and not again once it has returned true.
struct FunctionDone {
  const std::function<bool()>& function;
  [[nodiscard]] bool locked() const { return function(); }
  [[nodiscard]] static bool unlocked() noexcept { return false; }
  void describe(Sleeper& sleeper) const noexcept { sleeper.done = &function; }
  [[nodiscard]] static const std::atomic<std::uint32_t>* awaited() noexcept { return nullptr; }
};

// Lives on the stack of the waiting thread, which does not hold the engine lock. `Done` is one of the conditions above.
template <class Done>
class Drive {
 public:
  Drive(EngineCore& core, BackgroundThread& background, Deadline deadline, Done done) noexcept
      : core_(core), background_(background), deadline_(deadline), done_(done) {}

  // True: the condition is true. False: the deadline passed, this thread was interrupted, or this is a forked child.
  [[nodiscard]] bool run() {
    Interruptible* const interruptible = Interruptible::current();
    while (!slice(deadline_, interruptible)) {
      if (interruptible == nullptr || core_.forked() || deadline_.passed()) return false;
      if (interruptible->ask()) return slice(Deadline::after_seconds(0), nullptr);
    }
    return true;
  }

 private:
  enum class Wake { done, again, timed_out };

  // Up to the deadline, or until `interruptible` (may be null) should ask.
  bool slice(Deadline deadline, Interruptible* interruptible);
  // `asleep_since`: when the last yield ended.
  Wake sleep(Deadline deadline, Deadline::Clock::time_point asleep_since);
  // Returns when `sleeper` was woken, when no watcher is left, or at the deadline. It holds the lock if it took it for a last look.
  EngineLock::Lock sleep_on_word(Sleeper& sleeper, Deadline deadline);
  // The same for a sleeper that holds the watcher's role; gives the role up.
  void sleep_as_watcher(Sleeper& sleeper, Deadline deadline);

  EngineCore& core_;
  BackgroundThread& background_;
  const Deadline deadline_;
  const Done done_;
};

extern template class Drive<FlagDone>;
extern template class Drive<FunctionDone>;

}  // namespace hmc
