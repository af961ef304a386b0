// EngineCore: the state that the drivers, the watcher and the posting calls of one engine share.
//
// Who polls. A waiter drives (Drive): it spins, yields, then goes to sleep on its Sleeper. Exactly one thread at a time holds the
// watcher's role (Watch): it polls when nobody drives, and sleeps in ppoll with every Pollable armed when nothing moves. Drivers
// and watcher never wait for each other: the watcher stays away from the lock while a driver is present or drivers come and go, and
// looks again every tick.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/fork.h"
#include "hmc/deadline.h"
#include "progress/drivers.h"
#include "progress/engine_lock.h"
#include "progress/kicks.h"
#include "progress/retired_owners.h"
#include "progress/rounds.h"
#include "progress/wait_policy.h"
#include "progress/watcher_role.h"

namespace hmc {

struct EngineCore {
  // Any thread, no lock. True in a child forked after the engine was made.
  [[nodiscard]] bool forked() const noexcept { return fork_epoch() != epoch; }

  // ---- engine lock held ----
  // The caller polls from now on: peers need not ring. The watcher goes on standby, as no ring would end its sleep.
  void take_over() {
    if (!rounds.pollables().armed()) return;
    rounds.pollables().disarm();
    role.wake();
  }
  // A driver is about to poll: what was kicked needs no watcher.
  void answer_kicks() noexcept {
    if (kicks.unanswered(std::memory_order_relaxed)) kicks.answer(Deadline::Clock::now());
  }

  // ---- any thread, lock held or not ----
  // Something was kicked and no driver is present.
  void wake_watcher_unless_prompt() noexcept {
    // An armed watcher sleeps until something wakes it; on standby it looks at the end of the tick.
    if (!kicks.drivers_are_prompt() || role.armed()) role.wake();
  }

  // ---- engine lock not held ----
  // Releases what was retired so far, on this thread.
  void drop_retired();

  EngineLock lock;
  const std::uint32_t epoch = fork_epoch();
  Drivers drivers;
  Kicks kicks;
  WatcherRole role;
  WaitPolicy wait_policy;
  // Pending operations with a callback or a completion queue. No thread may wait for them, so the watcher must look often.
  std::atomic<std::uint32_t> unattended{0};
  Rounds rounds{role, kicks};  // guarded by the lock
  RetiredOwners retired;       // guarded by the lock
};

}  // namespace hmc
