// Posting: what a thread that posts does and asks beyond the post, while it holds the engine lock.
#pragma once

#include <chrono>

#include "progress/engine_core.h"
#include "progress/wait_policy.h"

namespace hmc {

class Posting {
 public:
  explicit Posting(EngineCore& core) noexcept : core_(core) {}

  // At the end of a post whose work begins as soon as other ranks are ready: one round, for that of the posts before it. Where such
  // posts follow one another the watcher leaves the lock to them. The round looks at descriptors and timers too, where none has for
  // events_after. Does nothing inside a poll(), and while the watcher sleeps with everything armed: kick() has woken it.
  void look();
  static constexpr auto events_after = std::chrono::microseconds(100);
  // Inside a poll() that look() makes: what costs much to look at may be left to the next rounds.
  [[nodiscard]] bool looks() const noexcept { return looks_; }
  // For a caller whose post needs no more polls: the watcher may wait for its next tick, as after a drive().
  // True if owners were retired. The caller then drops them without the lock, because the watcher comes once per tick at most while
  // such calls follow one another.
  [[nodiscard]] bool leave_to_tick() noexcept {
    core_.drivers.put_off();
    core_.answer_kicks();
    return !core_.retired.empty();
  }

  // How long waiters look before they yield their core; and whether another thread waits for the lock meanwhile.
  [[nodiscard]] WaitPolicy& wait_policy() noexcept { return core_.wait_policy; }
  [[nodiscard]] bool contended() const noexcept { return core_.lock.contended(); }

 private:
  EngineCore& core_;
  bool looks_ = false;
};

}  // namespace hmc
