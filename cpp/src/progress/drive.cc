// Lock not held on entry of any member.
#include "progress/drive.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "progress/drive_pace.h"
#include "progress/futex.h"
#include "progress/watch.h"

namespace hmc {
namespace {

// A sleeping waiter looks by itself this often, for conditions that were changed without wake_waiters().
constexpr auto look_interval = std::chrono::milliseconds(250);

using TimePoint = Deadline::Clock::time_point;

// The deadline, or earlier: when it is time to ask whether this thread is interrupted.
TimePoint look_by(Deadline deadline, Interruptible* interruptible, TimePoint now) noexcept {
  return interruptible == nullptr ? deadline.when() : std::min(deadline.when(), interruptible->next_look(now));
}

// The destructors of owners may wait for other threads.
void drop_owners(EngineCore& core) {
  if (auto* const interruptible = Interruptible::current()) interruptible->before_waiting();
  core.drop_retired();
}

// Lock held: this waiter stops driving. True if there are owners to drop once the lock is released.
bool leave_locked(EngineCore& core) {
  core.drivers.leave();
  if (core.kicks.kicked(std::memory_order_relaxed) && !(core.kicks.drivers_are_prompt() && !core.rounds.busy())) {
    core.role.wake();
  } else {
    core.role.cut_standby();
  }
  if (!core.role.taken()) core.rounds.sleepers().wake_one(core.role);
  return !core.retired.empty();
}

void leave_and_unlock(EngineCore& core, EngineLock::Lock held) {
  const bool owners = leave_locked(core);
  held.unlock();
  if (owners) drop_owners(core);
}

// The same without the lock, which another driver holds.
void leave_unlocked(EngineCore& core, const BackgroundThread& background) {
  if (background.absent()) {
    // This may be the last thread that can pass the watcher's role to a sleeper.
    leave_and_unlock(core, core.lock.lock());
    return;
  }
  core.drivers.leave_unlocked();  // ordered before the load: kick() stores, then loads, the other way round
  if (core.kicks.kicked()) core.wake_watcher_unless_prompt();
  core.role.cut_standby();
}

}  // namespace

template <class Done>
bool Drive<Done>::slice(Deadline deadline, Interruptible* interruptible) {
  EngineCore& core = core_;
  const Done done = done_;
  if (core.forked()) return false;
  DrivePace pace(core.wait_policy);
  bool waiting = interruptible == nullptr;  // whether it knows that this call waits
  bool looked_at_clock = false;
  for (;;) {
    bool moved = false;
    if (core.lock.try_lock()) {
      bool finished = done.locked();
      core.answer_kicks();
      if (!finished) {
        core.drivers.drive();
        core.take_over();
        moved = core.rounds.run(pace.with_descriptors(), done.awaited()) != Rounds::nothing;
        finished = done.locked();
        // Taking the lock anew for every look would double the cost of a look. A blocked thread makes the lock contended.
        for (unsigned look = 1; look < DrivePace::looks_per_locking && !moved && !finished && pace.keeps_lock(); ++look) {
          if (core.lock.contended()) break;
          cpu_relax();
          pace.looked(false);
          moved = core.rounds.run(false, done.awaited()) != Rounds::nothing;
          finished = done.locked();
        }
      }
      if (finished) {
        const bool owners = leave_locked(core);
        core.lock.unlock();
        if (owners) drop_owners(core);
        return true;
      }
      core.lock.unlock();
      if (core.lock.contended()) core.lock.give_way();
    } else {
      core.drivers.announce();
      if (done.unlocked()) {
        leave_unlocked(core, background_);
        return true;
      }
    }
    pace.looked(moved);
    if (!waiting && !pace.prompt()) {
      interruptible->before_waiting();
      waiting = true;
    }
    if (moved) {
      if (pace.clock_due_moving()) {
        const TimePoint now = Deadline::Clock::now();
        if (now >= look_by(deadline, interruptible, now)) break;
      }
      continue;
    }
    if (pace.spins()) {
      if (!std::exchange(looked_at_clock, true) && deadline.passed()) break;
      cpu_relax();
      continue;
    }
    if (pace.begins_to_yield()) pace.idle_since(Deadline::Clock::now());
    if (pace.clock_due()) {
      const TimePoint now = Deadline::Clock::now();
      const TimePoint by = look_by(deadline, interruptible, now);
      if (now >= by) break;
      if (pace.sleeps(now)) {
        const Wake wake = sleep(Deadline::at(by), now);
        if (wake != Wake::again) return wake == Wake::done;
        pace.slept();
        continue;
      }
    }
    pace.yielded(core.wait_policy.yield());
  }
  // The deadline has passed: one look at everything, also for callers that only ever poll with a deadline of zero.
  EngineLock::Lock held = core.lock.lock();
  core.take_over();
  core.rounds.run(true);
  const bool finished = done.locked();
  leave_and_unlock(core, std::move(held));
  return finished;
}

template <class Done>
typename Drive<Done>::Wake Drive<Done>::sleep(Deadline deadline, TimePoint asleep_since) {
  Sleeper sleeper;
  done_.describe(sleeper);
  Sleepers& sleepers = core_.rounds.sleepers();
  EngineLock::Lock held = core_.lock.lock();
  if (done_.locked()) {
    leave_and_unlock(core_, std::move(held));
    return Wake::done;
  }
  core_.drivers.leave();
  const bool owners = !core_.retired.empty();
  sleepers.link(sleeper);
  const bool watches = !core_.role.taken() && background_.absent();
  if (watches) {
    core_.role.take();
    sleeper.watching = true;
  } else {
    background_.need();
    core_.kicks.nudge();
    core_.role.wake();
  }
  held.unlock();
  if (owners) drop_owners(core_);
  if (watches) {
    sleep_as_watcher(sleeper, deadline);
    held = core_.lock.lock();
  } else {
    held = sleep_on_word(sleeper, deadline);
  }
  const auto word = sleeper.word.load(std::memory_order_acquire);
  if (word == Sleeper::satisfied) core_.wait_policy.slept(Deadline::Clock::now() - asleep_since);
  if (word == Sleeper::asleep) {
    sleepers.unlink(sleeper);
    if (!done_.locked()) return Wake::timed_out;
    return Wake::done;
  }
  return word == Sleeper::satisfied ? Wake::done : Wake::again;
}

template <class Done>
EngineLock::Lock Drive<Done>::sleep_on_word(Sleeper& sleeper, Deadline deadline) {
  for (;;) {
    const TimePoint look = Deadline::Clock::now() + look_interval;
    futex_wait(sleeper.word, Sleeper::asleep, std::min(look, deadline.when()));
    if (sleeper.word.load(std::memory_order_acquire) != Sleeper::asleep) return {};
    const TimePoint now = Deadline::Clock::now();
    if (now < look && now < deadline.when()) continue;
    EngineLock::Lock held = core_.lock.lock();
    if (sleeper.word.load(std::memory_order_relaxed) != Sleeper::asleep) return held;
    if (done_.locked()) {
      core_.rounds.sleepers().unlink_satisfied(sleeper);
      return held;
    }
    if (now >= deadline.when()) return held;
    if (!core_.role.taken()) {
      sleeper.word.store(Sleeper::look_again, std::memory_order_relaxed);
      core_.rounds.sleepers().unlink(sleeper);
      return held;
    }
  }
}

template <class Done>
void Drive<Done>::sleep_as_watcher(Sleeper& sleeper, Deadline deadline) {
  Watch watch(core_, sleeper.word, deadline.when(), nullptr);
  while (sleeper.word.load(std::memory_order_acquire) == Sleeper::asleep && !deadline.passed()) {
    if (const auto nap = watch.round()) watch.sleep(*nap);
  }
  const EngineLock::Lock held = core_.lock.lock();
  if (sleeper.word.load(std::memory_order_relaxed) == Sleeper::asleep) core_.rounds.sleepers().unlink(sleeper);
  watch.end();
}

template class Drive<FlagDone>;
template class Drive<FunctionDone>;

}  // namespace hmc
