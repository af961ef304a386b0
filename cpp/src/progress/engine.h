// Engine: one per Context. Turns Pollables and descriptors, driven by waiters, else by a background thread that sleeps when idle.
//
// One lock guards everything below the public API of a Context: transports, endpoints, channels, matching, peers. Whoever posts or
// waits takes it, does bounded work (at most ~1 MiB copied) and leaves; user code never runs under it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "base/fd.h"
#include "base/pollable.h"
#include "hmc/context.h"
#include "hmc/deadline.h"
#include "hmc/status.h"

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
  [[nodiscard]] Lock lock() { return Lock(mutex_); }
  [[nodiscard]] std::mutex& mutex() noexcept { return mutex_; }

  // ---- engine lock held ----
  virtual void add(Pollable& pollable) = 0;
  virtual void remove(Pollable& pollable) = 0;  // safe from inside poll()
  virtual Status watch(int fd, std::uint32_t events, FdHandler& handler) = 0;  // level-triggered
  virtual void modify(int fd, std::uint32_t events) = 0;
  virtual void unwatch(int fd) = 0;             // safe from inside on_ready()
  using TimerId = std::uint64_t;
  virtual TimerId at(Deadline when, std::function<void()> callback) = 0;  // runs once, engine lock held
  virtual void cancel_timer(TimerId id) = 0;
  // Runs `function` soon, engine lock held, outside the current call chain (safe teardown).
  virtual void defer(std::function<void()> function) = 0;
  // One round over Pollables (descriptors and timers every few rounds). True if anything moved.
  virtual bool poll_once() = 0;
  // Something was queued that a poll() must pick up: see that somebody polls (waiter, else background thread). Cheap when somebody does.
  virtual void kick() = 0;

  // ---- engine lock not held ----
  // Drives until `done()` (evaluated under the lock when `locked`, must be cheap) or the deadline: spin, then sched_yield, then sleep.
  // True: done. Works in every Progress mode.
  virtual bool drive(Deadline deadline, const std::function<bool()>& done) = 0;
  // The hot path of drive(): `flag` becomes non-zero under the engine lock.
  virtual bool drive_flag(Deadline deadline, const std::atomic<std::uint32_t>& flag) = 0;
  // Runs `function` on the dispatcher thread, in order, no lock held. Started at first use. Any thread, lock held or not.
  virtual void dispatch(std::function<void()> function) = 0;
  // Writing 8 bytes to this eventfd (here or through a passed duplicate) wakes the background thread.
  [[nodiscard]] virtual int doorbell() const noexcept = 0;
  // Stops the background thread and runs out the dispatcher. Not from either thread. Idempotent.
  virtual void stop() = 0;

 protected:
  std::mutex mutex_;
};

}  // namespace hmc
