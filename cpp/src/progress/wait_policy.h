// WaitPolicy: how long a waiter polls before it yields its core, and yields before it sleeps.
//
// A message of another process on another core arrives within microseconds: polling without a system call finds it soonest. With
// more runnable threads than cores the same polling delays the very thread that sends. The time that sched_yield() takes tells the
// two apart: without another runnable thread it returns at once. A short sleep costs more than it saves: it wakes two threads, and
// the other end falls asleep meanwhile. Beside threads that compute, a yield lasts until the scheduler takes the core from one of
// them, whatever arrives; a thread that sleeps gets the core as soon as it is woken.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>

namespace hmc {

// One per engine. Any thread; threads that race only lose a measurement.
class WaitPolicy {
 public:
  using Clock = std::chrono::steady_clock;
  using Duration = Clock::duration;
  using TimePoint = Clock::time_point;
  static constexpr unsigned most_rounds = 100;
  static constexpr unsigned least_rounds = 2;
  // The shortest yield that counts as a time slice. Ranks that share a core yield for less, and are slower with sleeps.
  static constexpr Duration time_slice = std::chrono::microseconds(900);
  // For how long waiters sleep without a yield before. Doubled where the cores are crowded again within that time.
  static constexpr Duration least_crowded_time = std::chrono::milliseconds(5), most_crowded_time = std::chrono::milliseconds(40);

  // Empty rounds before the first yield of a wait.
  [[nodiscard]] unsigned rounds() const noexcept { return rounds_.load(std::memory_order_relaxed); }

  // Whether yields have been found to switch threads.
  [[nodiscard]] bool shared() const noexcept { return rounds() == least_rounds; }

  // Time to yield before a sleep.
  [[nodiscard]] Duration yield_time() const noexcept { return yield_time_.load(std::memory_order_relaxed); }

  // Yields, and returns the time that it took.
  Duration yield() noexcept {
    const TimePoint before = Clock::now();
    sched_yield();
    const TimePoint now = Clock::now();
    yielded(now - before);
    if (is_time_slice(now - before)) sliced(before, now);
    return now - before;
  }
  // Whether a yield of such a length was that of a time slice. Where nothing had moved meanwhile, call crowd().
  [[nodiscard]] static bool is_time_slice(Duration elapsed) noexcept { return elapsed >= time_slice; }
  // A yield took a time slice. Where little was done since the last one, computing threads have the cores.
  void sliced(TimePoint before, TimePoint now) noexcept {
    if (before - sliced_at_.exchange(now, std::memory_order_relaxed) < (now - before) / 4) crowd(now);
  }
  // Threads that compute have the cores: for a while waiters sleep at once.
  void crowd(TimePoint now) noexcept {
    const Duration before = crowded_time_.load(std::memory_order_relaxed);
    const bool again = now - uncrowded_at_.load(std::memory_order_relaxed) < before;
    const Duration next = again ? std::min(2 * before, most_crowded_time) : least_crowded_time;
    crowded_time_.store(next, std::memory_order_relaxed);
    crowded_until_.store(now + next, std::memory_order_relaxed);
  }
  // Whether that time is not over.
  [[nodiscard]] bool crowded(TimePoint now) noexcept {
    if (!maybe_crowded()) return false;
    if (now < crowded_until_.load(std::memory_order_relaxed)) return true;
    crowded_until_.store({}, std::memory_order_relaxed);
    uncrowded_at_.store(now, std::memory_order_relaxed);
    return false;
  }
  // False only where crowded() is. Without a clock.
  [[nodiscard]] bool maybe_crowded() const noexcept { return crowded_until_.load(std::memory_order_relaxed) != TimePoint{}; }

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
  std::atomic<Duration> crowded_time_{least_crowded_time};
  std::atomic<TimePoint> sliced_at_{TimePoint{}}, crowded_until_{TimePoint{}}, uncrowded_at_{TimePoint{}};
  std::atomic<Duration> fastest_{std::chrono::microseconds(1)};  // yield so far: without a switch of threads
};

}  // namespace hmc
