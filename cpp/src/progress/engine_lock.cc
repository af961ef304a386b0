#include "progress/engine_lock.h"

#include <sched.h>

#include "hmc/interrupt.h"
#include "progress/futex.h"

namespace hmc {

EngineLock::Lock EngineLock::lock_contended() {
  constexpr int pauses = 200;
  constexpr int yields = 4000;
  if (auto* const interruptible = Interruptible::current()) interruptible->before_waiting();
  contenders_.fetch_add(1);
  for (int i = 0; i < yields; ++i) {
    if (i < pauses) {
      cpu_relax();
    } else {
      sched_yield();
    }
    if (mutex_.try_lock()) {
      contenders_.fetch_sub(1);
      return Lock(mutex_, std::adopt_lock);
    }
  }
  Lock held(mutex_);
  contenders_.fetch_sub(1);
  return held;
}

void EngineLock::give_way() const noexcept {
  constexpr int pauses = 64;
  for (int i = 0; i < pauses; ++i) {
    if (!contended()) return;
    cpu_relax();
  }
  sched_yield();
}

}  // namespace hmc
