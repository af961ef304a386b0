// Watch: one thread's time as the watcher of an engine. The watcher polls when no waiter drives, and sleeps when nothing moves.
//
// The background thread watches until the engine stops. Without one, a sleeping waiter watches until it is woken.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "hmc/deadline.h"
#include "progress/dispatcher.h"
#include "progress/engine_core.h"
#include "progress/watch_pace.h"

namespace hmc {

// For the watcher's thread only, which has called WatcherRole::take().
class Watch {
 public:
  using TimePoint = Deadline::Clock::time_point;

  struct Nap {
    bool descriptors;  // wake for watched descriptors too
    TimePoint until;
  };

  // Once `leave` is non-zero the caller is to end the watch, and does not stand by before. Naps end at `limit` at the latest.
  // Retired owners are released on `dispatcher`, or by round() itself if it is null.
  Watch(EngineCore& core, const std::atomic<std::uint32_t>& leave, TimePoint limit, Dispatcher* dispatcher) noexcept
      : core_(core), leave_(leave), limit_(limit), dispatcher_(dispatcher) {}

  // ---- engine lock not held ----
  // One step: takes the lock and polls, unless drivers want the lock. The caller sleeps the nap that it returns, if any.
  [[nodiscard]] std::optional<Nap> round();
  void sleep(const Nap& nap) noexcept;

  // ---- engine lock held ----
  // Gives up the role; a sleeping waiter, if any, is woken to take it.
  void end();

 private:
  std::optional<Nap> standby(Nap nap, TimePoint cut_from);
  void relax() noexcept;
  void drop(RetiredOwners::Owners owners);

  EngineCore& core_;
  const std::atomic<std::uint32_t>& leave_;
  const TimePoint limit_;
  Dispatcher* const dispatcher_;
  WatchPace pace_;
};

}  // namespace hmc
