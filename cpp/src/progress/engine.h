// Engine: one per Context. Turns Pollables and descriptors, driven by waiters, else by a background thread that sleeps when idle.
//
// One lock guards everything below the public API of a Context: transports, endpoints, channels, matching, peers. Whoever posts or
// waits takes it, does bounded work (at most ~1 MiB copied) and leaves; user code never runs under it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "base/fd.h"
#include "base/fork.h"
#include "base/pollable.h"
#include "hmc/context.h"
#include "hmc/deadline.h"
#include "hmc/status.h"
#include "progress/sleepers.h"

namespace hmc {

class FdHandler {
 public:
  virtual void on_ready(std::uint32_t events) = 0;  // EPOLL* bits; engine lock held; never blocks

 protected:
  ~FdHandler() = default;
};

class Engine {
 public:
  static Result<std::shared_ptr<Engine>> create(Progress progress);
  virtual ~Engine() = default;

  using Lock = std::unique_lock<std::mutex>;
  // The way to take the engine lock: threads that poll in a loop give way to whoever waits here (a bare mutex().lock() may starve).
  [[nodiscard]] Lock lock() {
    if (mutex_.try_lock()) return Lock(mutex_, std::adopt_lock);
    return lock_contended();
  }
  [[nodiscard]] std::mutex& mutex() noexcept { return mutex_; }
  // True in a child forked after this engine was made: nothing of it may be locked, joined or called there but its destruction.
  // Any thread, no lock.
  [[nodiscard]] bool forked() const noexcept { return fork_epoch() != epoch_; }

  // ---- engine lock held ----
  virtual void add(Pollable& pollable) = 0;
  virtual void remove(Pollable& pollable) = 0;                                 // safe from inside poll()
  virtual Status watch(int fd, std::uint32_t events, FdHandler& handler) = 0;  // level-triggered
  virtual void modify(int fd, std::uint32_t events) = 0;
  virtual void unwatch(int fd) = 0;  // safe from inside on_ready()
  using TimerId = std::uint64_t;
  virtual TimerId at(Deadline when, std::function<void()> callback) = 0;  // runs once, engine lock held
  virtual void cancel_timer(TimerId id) = 0;
  // Runs `function` soon, engine lock held, outside the current call chain (safe teardown).
  virtual void defer(std::function<void()> function) = 0;
  // One round over Pollables (descriptors and timers every few rounds). True if anything moved.
  virtual bool poll_once() = 0;
  // Something was queued that a poll() must pick up: see that somebody polls (waiter, else background thread). Cheap when somebody
  // does. Not needed by a caller that drives right after.
  virtual void kick() = 0;
  // A condition that a drive() waits for changed outside a round (WorkState::complete calls it; rounds see by themselves).
  void wake_waiters() {
    if (!sleepers_.empty()) wake_sleepers();
  }
  // Drops `owner` soon, with the engine lock not held: for owners whose end runs user code (a Python reference) or takes other
  // locks. It ends on a waiter's thread or the dispatcher, never on the background thread. Without either (manual progress, nobody
  // waits), at the next drop_retired(), drive() or stop().
  virtual void retire(std::shared_ptr<const void> owner) = 0;

  // ---- engine lock not held ----
  // Drives until `done()` (evaluated under the lock when `locked`, must be cheap) or the deadline: spin, then sched_yield, then
  // sleep. True: done. Works in every Progress mode. While the caller sleeps, `done` may be evaluated on another thread (under the
  // lock); once it has returned true it is not called again. False at once in a forked child.
  virtual bool drive(Deadline deadline, const std::function<bool()>& done) = 0;
  // The hot path of drive(): `flag` becomes non-zero under the engine lock, in a round or followed by wake_waiters().
  virtual bool drive_flag(Deadline deadline, const std::atomic<std::uint32_t>& flag) = 0;
  // Drops what was retired so far, on this thread.
  virtual void drop_retired() = 0;
  // Runs `function` on the dispatcher thread, in order, no lock held. Started at first use. Any thread, lock held or not.
  // After stop() too (a short-lived thread then runs it).
  virtual void dispatch(std::function<void()> function) = 0;
  // Wakes the thread that sleeps for this engine, or keeps it from its next sleep. Any thread, lock held or not.
  virtual void wake() noexcept = 0;
  // Stops the background thread, runs what was deferred, runs out the dispatcher, and closes the engine's own descriptors.
  // Idempotent. Called on the dispatcher or background thread itself (last handle dropped in a callback) it does not wait for that
  // thread, which ends by itself once it has unwound. Waiters may still drive afterwards, as in manual mode, but no descriptor is
  // watched any more.
  virtual void stop() = 0;
  // For tests: sleeping waiters that found their condition true without having been woken for it.
  [[nodiscard]] std::uint64_t late_wakeups() const noexcept { return sleepers_.late_wakeups(); }

 protected:
  Lock lock_contended();
  virtual void wake_sleepers() = 0;

  std::mutex mutex_;
  std::atomic<std::uint32_t> contenders_{0};  // threads inside lock_contended()
  Sleepers sleepers_;                         // guarded by mutex_
  const std::uint32_t epoch_ = fork_epoch();
};

}  // namespace hmc
