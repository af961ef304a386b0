// Engine: one per Context. Turns Pollables and descriptors, driven by waiters, else by a background thread that sleeps when idle.
//
// One lock guards everything below the public API of a Context: transports, endpoints, channels, matching, peers. Whoever posts or
// waits takes it, does bounded work (at most ~1 MiB copied) and leaves; user code never runs under it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/pollable.h"
#include "hmc/context.h"
#include "hmc/deadline.h"
#include "hmc/status.h"
#include "progress/background_thread.h"
#include "progress/dispatcher.h"
#include "progress/engine_core.h"
#include "progress/fd_handler.h"
#include "progress/posting.h"

namespace hmc {

class Engine final : public std::enable_shared_from_this<Engine> {
 public:
  static Result<std::shared_ptr<Engine>> create(Progress progress);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  using Lock = EngineLock::Lock;
  [[nodiscard]] Lock lock() { return core_.lock.lock(); }
  // True in a child forked after this engine was made: nothing of it may be locked, joined or called there but its destruction.
  // Any thread, no lock.
  [[nodiscard]] bool forked() const noexcept { return core_.forked(); }

  // ---- engine lock held ----
  void add(Pollable& pollable);
  void remove(Pollable& pollable);                                 // safe from inside poll()
  Status watch(int fd, std::uint32_t events, FdHandler& handler);  // level-triggered
  void modify(int fd, std::uint32_t events);
  void unwatch(int fd);  // safe from inside on_ready()
  using TimerId = std::uint64_t;
  TimerId at(Deadline when, std::function<void()> callback);  // runs once, engine lock held
  void cancel_timer(TimerId id);
  // Runs `function` soon, engine lock held, outside the current call chain (safe teardown).
  void defer(std::function<void()> function);
  // Inside a poll(): the thread that drives has what it waits for. Who brings one thing after another may stop here, so that the
  // rest is met by what that thread posts next; it stays where it is for the next poll().
  [[nodiscard]] bool waiter_is_served() const noexcept { return core_.rounds.awaited_came(); }
  // One round over Pollables (descriptors and timers every few rounds). True if anything moved.
  bool poll_once();
  [[nodiscard]] Posting& posting() noexcept { return posting_; }
  // EngineCore::unattended. Any thread.
  [[nodiscard]] std::atomic<std::uint32_t>& unattended() noexcept { return core_.unattended; }
  // Something was queued that a poll() must pick up: see that somebody polls (waiter, else background thread). Cheap when somebody
  // does. Not needed by a caller that drives right after.
  void kick();
  // A condition that a drive() waits for changed outside a round (WorkState::complete calls it; rounds see by themselves).
  void wake_waiters() { core_.rounds.wake_waiters(); }
  // Drops `owner` soon, with the engine lock not held: for owners whose end runs user code (a Python reference) or takes other
  // locks. It ends on a waiter's thread or the dispatcher, never on the background thread. Without either (manual progress, nobody
  // waits), at the next drop_retired(), drive() or stop().
  void retire(std::shared_ptr<const void> owner);

  // ---- engine lock not held ----
  // Drives until `done()` (called under the lock, must be cheap) or the deadline: spin, then sched_yield, then sleep. True: done.
  // Works in every Progress mode. While the caller sleeps, another thread may call `done` (under the lock). Once it has returned
  // true it is not called again. False at once in a forked child.
  bool drive(Deadline deadline, const std::function<bool()>& done);
  // The hot path of drive(): `flag` becomes non-zero under the engine lock, in a round or followed by wake_waiters().
  bool drive_flag(Deadline deadline, const std::atomic<std::uint32_t>& flag);
  // Drops what was retired so far, on this thread.
  void drop_retired() { core_.drop_retired(); }
  // Runs `function` on the dispatcher thread, in order, no lock held. Started at first use. Any thread, lock held or not.
  // After stop() too (a short-lived thread then runs it).
  void dispatch(std::function<void()> function);
  // Wakes the thread that sleeps for this engine, or keeps it from its next sleep. Any thread, lock held or not.
  void wake() noexcept { core_.role.ring(); }
  // Stops the background thread, runs what was deferred, runs out the dispatcher, and closes the engine's own descriptors.
  // Idempotent. Called on the dispatcher or background thread itself (last handle dropped in a callback) it does not wait for that
  // thread, which ends by itself once it has unwound. Waiters may still drive afterwards, as in manual mode, but no descriptor is
  // watched any more.
  void stop();
  // For tests: sleeping waiters that found their condition true without having been woken for it.
  [[nodiscard]] std::uint64_t late_wakeups() const noexcept { return core_.rounds.sleepers().late_wakeups(); }

 private:
  explicit Engine(Progress progress) noexcept : background_(core_, dispatcher_, progress) {}

  EngineCore core_;
  Posting posting_{core_};  // guarded by the lock
  Dispatcher dispatcher_;
  BackgroundThread background_;
};

}  // namespace hmc
