// Timers: callbacks at points in time, cheapest first. Engine lock held for every call.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>

#include "hmc/deadline.h"

namespace hmc {

class Timers {
 public:
  using Id = std::uint64_t;
  using TimePoint = Deadline::Clock::time_point;

  Id add(TimePoint when, std::function<void()> callback);
  void cancel(Id id);
  // The earliest, or time_point::max().
  [[nodiscard]] TimePoint next() const noexcept { return queue_.empty() ? TimePoint::max() : queue_.begin()->first.first; }
  // Runs what is due; callbacks may add and cancel. A timer added by a callback waits for the next call. True if any ran.
  bool run(TimePoint now);

 private:
  std::map<std::pair<TimePoint, Id>, std::function<void()>> queue_;
  std::unordered_map<Id, TimePoint> when_;
  Id last_ = 0;
};

}  // namespace hmc
