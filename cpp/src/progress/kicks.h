// Kicks: requests that somebody polls, and how soon drivers answer them.
//
// A driver that comes soon after a kick leaves the watcher nothing to do. After several such kicks in a row the watcher stands
// aside up to a tick: its looks would take the lock, and the vendor's, from the driver.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "hmc/deadline.h"

namespace hmc {

class Kicks {
 public:
  using TimePoint = Deadline::Clock::time_point;
  static constexpr auto prompt_time = std::chrono::microseconds(20);  // an answer within this time is prompt
  static constexpr unsigned prompt_answers = 4;                       // in a row, before drivers count as prompt

  // ---- engine lock held ----
  // Work was queued that somebody must poll. Ordered before later loads of the caller.
  void kick() noexcept {
    linger_ = true;
    kicked_.store(true);
  }
  // No driver is here: the answer counts from now. Called unless unanswered().
  void expect_answer(TimePoint now) noexcept {
    kicked_at_.store(now);
    unanswered_.store(true);
  }
  // A driver is here. Called if unanswered().
  void answer(TimePoint now) noexcept {
    unanswered_.store(false, std::memory_order_relaxed);
    const bool prompt = now - kicked_at_.load() <= prompt_time;
    prompt_.store(prompt ? std::min(prompt_.load(std::memory_order_relaxed) + 1, prompt_answers) : 0, std::memory_order_relaxed);
  }
  // The watcher is here, and polls next.
  void answer_as_watcher() noexcept {
    nudged_.store(false, std::memory_order_relaxed);
    if (unanswered_.exchange(false)) prompt_.store(0, std::memory_order_relaxed);
  }
  // A waiter goes to sleep: the watcher is to poll once before it arms.
  void nudge() noexcept { nudged_.store(true); }
  // Whether anything was kicked since the last call.
  [[nodiscard]] bool take_linger() noexcept { return std::exchange(linger_, false); }

  // ---- any thread, lock held or not ----
  [[nodiscard]] bool kicked(std::memory_order order = std::memory_order_seq_cst) const noexcept { return kicked_.load(order); }
  void clear(std::memory_order order = std::memory_order_seq_cst) noexcept { kicked_.store(false, order); }
  [[nodiscard]] bool unanswered(std::memory_order order = std::memory_order_seq_cst) const noexcept {
    return unanswered_.load(order);
  }
  [[nodiscard]] bool drivers_are_prompt() const noexcept { return prompt_.load(std::memory_order_relaxed) >= prompt_answers; }
  // Whether the watcher is to poll though drivers come and go. `now` is called only if the answer depends on it.
  [[nodiscard]] bool watcher_wanted(TimePoint (*now)() = Deadline::Clock::now) const noexcept {
    if (nudged_.load()) return true;
    if (!kicked_.load()) return false;
    return !drivers_are_prompt() || (unanswered_.load() && now() - kicked_at_.load() > prompt_time);
  }

 private:
  std::atomic<bool> kicked_{false};
  std::atomic<bool> unanswered_{false};  // no driver has come since ...
  std::atomic<TimePoint> kicked_at_{};   // ... this first kick
  std::atomic<unsigned> prompt_{0};      // prompt answers in a row
  std::atomic<bool> nudged_{false};
  bool linger_ = false;  // guarded by the engine lock
};

}  // namespace hmc
