// WaitPolicy: how long a waiter polls before it yields its core, and yields before it sleeps.
//
// A message of another process on another core arrives within microseconds: polling without a system call finds it soonest. With
// more runnable threads than cores the same polling delays the very thread that sends. The time that sched_yield() takes tells the
// two apart: without another runnable thread it returns at once. A short sleep costs more than it saves: it wakes two threads, and
// the other end falls asleep meanwhile.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>

namespace hmc {

// One per engine. Any thread; threads that race only lose a measurement.
class WaitPolicy {
 public:
  using Duration = std::chrono::steady_clock::duration;
  static constexpr unsigned most_rounds = 100;
  static constexpr unsigned least_rounds = 2;

  // Empty rounds before the first yield of a wait.
  [[nodiscard]] unsigned rounds() const noexcept { return rounds_.load(std::memory_order_relaxed); }

  // Whether yields have been found to switch threads.
  [[nodiscard]] bool shared() const noexcept { return rounds() == least_rounds; }

  // Time to yield before a sleep.
  [[nodiscard]] Duration yield_time() const noexcept { return yield_time_.load(std::memory_order_relaxed); }

  // Yields, and takes the time.
  void yield() noexcept {
    const auto before = std::chrono::steady_clock::now();
    sched_yield();
    yielded(std::chrono::steady_clock::now() - before);
  }
  // A yield took `elapsed`.
  void yielded(Duration elapsed) noexcept {
    const Duration fastest = fastest_.load(std::memory_order_relaxed);
    if (elapsed < fastest) fastest_.store(elapsed, std::memory_order_relaxed);
    if (elapsed > fastest + margin) {
      alone_.store(0, std::memory_order_relaxed);
      // One yield may be long because of an interrupt.
      if (shared_.fetch_add(1, std::memory_order_relaxed) + 1 >= shared_yields)
        rounds_.store(least_rounds, std::memory_order_relaxed);
      return;
    }
    shared_.store(0, std::memory_order_relaxed);
    if (alone_.fetch_add(1, std::memory_order_relaxed) + 1 >= alone_yields) rounds_.store(most_rounds, std::memory_order_relaxed);
  }

  // A waiter slept, `elapsed` after it began to yield, until its condition was true.
  void slept(Duration elapsed) noexcept {
    const Duration yielded = yield_time();
    yield_time_.store(elapsed < short_sleep * yielded ? std::min(2 * yielded, most_yield_time) : least_yield_time,
                      std::memory_order_relaxed);
  }

 private:
  static constexpr Duration margin = std::chrono::microseconds(1);
  static constexpr unsigned shared_yields = 2, alone_yields = 64;  // in a row, before the policy changes

  static constexpr Duration least_yield_time = std::chrono::milliseconds(1), most_yield_time = std::chrono::milliseconds(8);
  static constexpr int short_sleep = 4;  // up to this many times the time yielded

  std::atomic<unsigned> rounds_{most_rounds};
  std::atomic<unsigned> shared_{0}, alone_{0};
  std::atomic<Duration> yield_time_{least_yield_time};
  std::atomic<Duration> fastest_{std::chrono::microseconds(1)};  // yield so far: without a switch of threads
};

}  // namespace hmc
