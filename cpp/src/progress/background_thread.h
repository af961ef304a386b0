// BackgroundThread: the thread that watches an engine, so that work moves without a waiter. Started at the first need.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "hmc/context.h"
#include "progress/dispatcher.h"
#include "progress/engine_core.h"

namespace hmc {

class BackgroundThread {
 public:
  // The engine that owns `core` and `dispatcher` owns this object too. With Progress::manual no thread is ever started.
  BackgroundThread(EngineCore& core, Dispatcher& dispatcher, Progress progress) noexcept
      : core_(core), dispatcher_(dispatcher), absent_(progress == Progress::manual), progress_(progress) {}

  // Called once, before need(), with the engine, whose life covers this object. The thread holds a reference while it may hold the
  // engine lock, and none while it sleeps: a sleep delays no destruction.
  void belong_to(std::weak_ptr<const void> owner) noexcept { owner_ = std::move(owner); }

  // ---- engine lock held ----
  // There is something to poll, maybe without a driver: starts the thread unless it runs, was stopped, or progress is manual.
  void need() {
    if (progress_ == Progress::manual || thread_ || stopping_.load(std::memory_order_relaxed) != 0) return;
    start();
  }

  // ---- any thread, lock held or not ----
  // True: no thread will take over from a waiter (manual progress, stopped, or it could not be started).
  [[nodiscard]] bool absent() const noexcept { return absent_.load(std::memory_order_relaxed); }

  // ---- engine lock not held ----
  // Ends the thread and joins it. On the thread itself (it released the last reference to the owner) it does not wait: the thread
  // ends once it has unwound, and touches nothing of the engine meanwhile. Idempotent.
  void stop();
  // In a forked child, where the thread does not exist: forgets it.
  void abandon() noexcept { static_cast<void>(thread_.release()); }

 private:
  void start();
  void run(const std::weak_ptr<const void>& owner);

  EngineCore& core_;
  Dispatcher& dispatcher_;
  std::unique_ptr<std::thread> thread_;  // guarded by the engine lock
  std::weak_ptr<const void> owner_;
  bool* gone_ = nullptr;  // the thread only: set when the owner ended on it
  std::atomic<std::uint32_t> stopping_{0};
  std::atomic<bool> absent_;
  const Progress progress_;
};

}  // namespace hmc
