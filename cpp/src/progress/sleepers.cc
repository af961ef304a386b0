#include "progress/sleepers.h"

#include <cstddef>

#include "progress/futex.h"
#include "progress/watcher_role.h"

namespace hmc {

void Sleepers::unlink_satisfied(Sleeper& sleeper) noexcept {
  unlink(sleeper);
  sleeper.word.store(Sleeper::satisfied, std::memory_order_relaxed);
  late_wakeups_.fetch_add(1, std::memory_order_relaxed);
}

void Sleepers::wake(Sleeper& sleeper, Sleeper::Word word, WatcherRole& role) noexcept {
  unlink(sleeper);
  const bool watching = sleeper.watching;
  sleeper.word.store(word);
  // From here on the sleeper may return and its word be gone; waking a stale address is harmless.
  if (watching) {
    role.wake();
  } else {
    futex_wake(&sleeper.word);
  }
}

void Sleepers::wake_one(WatcherRole& role) noexcept {
  if (!empty()) wake(*sleeping_.back(), Sleeper::look_again, role);
}

void Sleepers::wake_flagged(bool predicates, WatcherRole& role) noexcept {
  for (std::size_t i = sleeping_.size(); i-- > 0;) {
    Sleeper& sleeper = *sleeping_[i];
    if (sleeper.flag != nullptr) {
      if (sleeper.flag->load(std::memory_order_relaxed) != 0) wake(sleeper, Sleeper::satisfied, role);
    } else if (predicates) {
      wake(sleeper, Sleeper::look_again, role);
    }
  }
}

void Sleepers::wake_satisfied(WatcherRole& role) {
  for (std::size_t i = sleeping_.size(); i-- > 0;) {
    Sleeper& sleeper = *sleeping_[i];
    const bool satisfied = sleeper.flag != nullptr ? sleeper.flag->load(std::memory_order_relaxed) != 0 : (*sleeper.done)();
    if (satisfied) wake(sleeper, Sleeper::satisfied, role);
  }
}

}  // namespace hmc
