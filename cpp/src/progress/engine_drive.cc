// Engine: waiters drive. Lock not held on entry.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "hmc/interrupt.h"
#include "progress/engine_impl.h"
#include "progress/futex.h"

namespace hmc {
namespace {

constexpr unsigned looks_per_locking = 16;
// Empty rounds after which a call counts as one that waits (Interruptible::before_waiting): about a microsecond.
constexpr unsigned prompt_rounds = 2 * looks_per_locking;
// Rounds between looks at the clock while yielding (each costs a system call anyhow), and while things move.
constexpr unsigned clock_interval = 16;
constexpr unsigned moving_clock_interval = 64;
// A sleeping waiter looks by itself this often, for conditions that were changed without wake_waiters().
constexpr auto look_interval = std::chrono::milliseconds(250);

struct FlagDone {
  const std::atomic<std::uint32_t>& flag;
  [[nodiscard]] bool locked() const noexcept { return flag.load(std::memory_order_acquire) != 0; }
  [[nodiscard]] bool unlocked() const noexcept { return flag.load(std::memory_order_acquire) != 0; }
  void describe(Sleeper& sleeper) const noexcept { sleeper.flag = &flag; }
};

struct FunctionDone {
  const std::function<bool()>& function;
  [[nodiscard]] bool locked() const { return function(); }
  [[nodiscard]] static bool unlocked() noexcept { return false; }  // may be evaluated under the lock only
  void describe(Sleeper& sleeper) const noexcept { sleeper.done = &function; }
};

using TimePoint = Deadline::Clock::time_point;

// The deadline, or earlier: when it is time to ask whether this thread is interrupted.
TimePoint look_by(Deadline deadline, Interruptible* interruptible, TimePoint now) noexcept {
  return interruptible == nullptr ? deadline.when() : std::min(deadline.when(), interruptible->next_look(now));
}

}  // namespace

bool EngineImpl::drive(Deadline deadline, const std::function<bool()>& done) { return drive_slices(deadline, FunctionDone{done}); }

bool EngineImpl::drive_flag(Deadline deadline, const std::atomic<std::uint32_t>& flag) {
  if (flag.load(std::memory_order_acquire) != 0) return true;
  return drive_slices(deadline, FlagDone{flag});
}

// Up to the deadline, or until this thread is interrupted.
template <class Done>
bool EngineImpl::drive_slices(Deadline deadline, const Done& done) {
  Interruptible* const interruptible = Interruptible::current();
  while (!drive_loop(deadline, done, interruptible)) {
    if (interruptible == nullptr || forked() || deadline.passed()) return false;
    if (interruptible->ask()) return drive_loop(Deadline::after_seconds(0), done, nullptr);
  }
  return true;
}

// Up to the deadline, or until `interruptible` (may be null) should ask.
template <class Done>
bool EngineImpl::drive_loop(Deadline deadline, const Done& done, Interruptible* interruptible) {
  if (forked()) return false;
  unsigned empty = 0;  // rounds since something moved
  unsigned rounds = 0;
  bool waiting = interruptible == nullptr;  // whether it knows that this call waits
  bool looked_at_clock = false;
  TimePoint idle_since{};
  unsigned spin_rounds = wait_policy_.rounds();  // constant while nothing moves
  for (;;) {
    bool moved = false;
    if (mutex_.try_lock()) {
      bool finished = done.locked();
      if (kicks_.unanswered(std::memory_order_relaxed)) kicks_.answer(Deadline::Clock::now());
      if (!finished) {
        driver_present_.store(true, std::memory_order_relaxed);
        driven_.store(driven_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        if (pollables_.armed()) take_over();
        moved = round(empty > spin_rounds && empty % 4 == 0) != nothing;
        finished = done.locked();
        // Taking the lock anew for every look would double what a look costs. Whoever wants it says so in contenders_.
        for (unsigned look = 1; look < looks_per_locking && !moved && !finished && empty + 1 < spin_rounds; ++look) {
          if (contenders_.load(std::memory_order_relaxed) != 0) break;
          cpu_relax();
          ++rounds;
          ++empty;
          moved = round(false) != nothing;
          finished = done.locked();
        }
      }
      if (finished) {
        const bool owners = leave_locked();
        mutex_.unlock();
        if (owners) drop_owners();
        return true;
      }
      mutex_.unlock();
      if (contenders_.load(std::memory_order_relaxed) != 0) give_way();
    } else {
      driver_present_.store(true, std::memory_order_relaxed);  // asks the watcher to step aside
      if (done.unlocked()) {
        leave();
        return true;
      }
    }
    ++rounds;
    empty = moved ? 0 : empty + 1;
    if (moved) spin_rounds = wait_policy_.rounds();
    if (!waiting && (moved || empty >= prompt_rounds)) {
      interruptible->before_waiting();
      waiting = true;
    }
    if (moved) {
      if (rounds % moving_clock_interval == 0) {
        const TimePoint now = Deadline::Clock::now();
        if (now >= look_by(deadline, interruptible, now)) break;
      }
      continue;
    }
    if (empty < spin_rounds) {
      if (!std::exchange(looked_at_clock, true) && deadline.passed()) break;
      cpu_relax();
      continue;
    }
    if (empty == spin_rounds) idle_since = Deadline::Clock::now();
    if (empty % clock_interval == 0) {
      const TimePoint now = Deadline::Clock::now();
      const TimePoint by = look_by(deadline, interruptible, now);
      if (now >= by) break;
      if (now - idle_since >= wait_policy_.yield_time()) {
        switch (sleep(Deadline::at(by), done, now)) {
          case Wake::done:
            return true;
          case Wake::timed_out:
            return false;
          case Wake::again:
            break;
        }
        empty = 0;
        continue;
      }
    }
    const TimePoint before = Deadline::Clock::now();
    sched_yield();
    wait_policy_.yielded(Deadline::Clock::now() - before);
  }
  // The deadline has passed: one look at everything, also for those who only ever poll with a deadline of zero.
  Lock held = lock();
  if (pollables_.armed()) take_over();
  round(true);
  const bool finished = done.locked();
  const bool owners = leave_locked();
  held.unlock();
  if (owners) drop_owners();
  return finished;
}

// Lock held: this waiter stops driving. True if there are owners to drop once the lock is released.
bool EngineImpl::leave_locked() {
  driver_present_.store(false, std::memory_order_relaxed);  // kick() reads it under the lock
  if (kicks_.kicked(std::memory_order_relaxed) && !(kicks_.drivers_are_prompt() && !anything_busy())) role_.wake();
  if (!role_.taken()) sleepers_.wake_one(role_);
  return !retired_.empty();
}

// The same without the lock, which another driver holds.
void EngineImpl::leave() {
  if (threadless_.load(std::memory_order_relaxed)) {
    // Nobody but us may be left to pass the watcher's role to a sleeper.
    Lock held = lock();
    const bool owners = leave_locked();
    held.unlock();
    if (owners) drop_owners();
    return;
  }
  driver_present_.exchange(false);  // ordered before the load: kick() stores, then loads, the other way round
  if (kicks_.kicked()) wake_watcher_unless_prompt();
}

// Their ends may wait for other threads.
void EngineImpl::drop_owners() {
  if (auto* const interruptible = Interruptible::current()) interruptible->before_waiting();
  drop_retired();
}

void EngineImpl::give_way() noexcept {
  for (int i = 0; i < 64; ++i) {
    if (contenders_.load(std::memory_order_relaxed) == 0) return;
    cpu_relax();
  }
  sched_yield();
}

template <class Done>
EngineImpl::Wake EngineImpl::sleep(Deadline deadline, const Done& done, TimePoint asleep_since) {
  Sleeper sleeper;
  done.describe(sleeper);
  Lock held = lock();
  if (done.locked()) {
    const bool owners = leave_locked();
    held.unlock();
    if (owners) drop_owners();
    return Wake::done;
  }
  driver_present_.store(false, std::memory_order_relaxed);
  const bool owners = !retired_.empty();
  sleepers_.link(sleeper);
  if (!role_.taken() && threadless_.load(std::memory_order_relaxed)) {
    role_.take();
    sleeper.watching = true;
    held.unlock();
    if (owners) drop_owners();
    watch_as_waiter(sleeper, deadline);
    held = lock();
  } else {
    need_watcher();
    kicks_.nudge();
    role_.wake();
    held.unlock();
    if (owners) drop_owners();
    for (;;) {
      const TimePoint look = Deadline::Clock::now() + look_interval;
      futex_wait(sleeper.word, Sleeper::asleep, std::min(look, deadline.when()));
      if (sleeper.word.load(std::memory_order_acquire) != Sleeper::asleep) break;
      const TimePoint now = Deadline::Clock::now();
      if (now < look && now < deadline.when()) continue;
      held = lock();
      if (sleeper.word.load(std::memory_order_relaxed) != Sleeper::asleep) break;
      if (done.locked()) {
        sleepers_.unlink_satisfied(sleeper);
        break;
      }
      if (now >= deadline.when()) break;
      if (!role_.taken()) {
        sleeper.word.store(Sleeper::look_again, std::memory_order_relaxed);
        sleepers_.unlink(sleeper);
        break;
      }
      held.unlock();
    }
  }
  const auto word = sleeper.word.load(std::memory_order_acquire);
  if (word == Sleeper::satisfied) wait_policy_.slept(Deadline::Clock::now() - asleep_since);
  if (word == Sleeper::asleep) {
    sleepers_.unlink(sleeper);
    if (!done.locked()) return Wake::timed_out;
    return Wake::done;
  }
  return word == Sleeper::satisfied ? Wake::done : Wake::again;
}

}  // namespace hmc
