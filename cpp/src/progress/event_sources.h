// EventSources: the descriptors and timers of an engine, and how often a round looks at them. Engine lock held for every call.
//
// A look is a system call; a round over shared memory takes some ten nanoseconds.
#pragma once

#include <chrono>

#include "hmc/deadline.h"
#include "progress/descriptors.h"
#include "progress/timers.h"

namespace hmc {

class EventSources {
 public:
  using TimePoint = Deadline::Clock::time_point;
  static constexpr unsigned quiet_interval = 64;                          // rounds between looks
  static constexpr unsigned busy_interval = 8;                            // when the last look found a descriptor ready
  static constexpr auto outside_interval = std::chrono::microseconds(5);  // for callers that come at any rate

  struct Found {
    bool descriptors;
    bool timers;
  };

  [[nodiscard]] Descriptors& descriptors() noexcept { return descriptors_; }
  [[nodiscard]] Timers& timers() noexcept { return timers_; }

  // Counts a round. True if it is to look. Not called again before look() then.
  [[nodiscard]] bool count_round() noexcept { return --countdown_ == 0; }
  // Whether the last look was so long ago.
  [[nodiscard]] bool stale(TimePoint now, std::chrono::microseconds after = outside_interval) const noexcept {
    return now - looked_at_ >= after;
  }
  // Calls the handlers of ready descriptors, then runs due timers.
  Found look() {
    // Read before the descriptors, so that what came in before a timer was due is handled before it.
    const TimePoint before = Deadline::Clock::now();
    Found found{.descriptors = descriptors_.poll(), .timers = false};
    countdown_ = found.descriptors ? busy_interval : quiet_interval;
    looked_at_ = found.descriptors ? Deadline::Clock::now() : before;
    found.timers = timers_.next() <= before && timers_.run(before);
    return found;
  }

 private:
  unsigned countdown_ = 1;  // rounds until the next look
  TimePoint looked_at_{};
  Descriptors descriptors_;
  Timers timers_;
};

}  // namespace hmc
