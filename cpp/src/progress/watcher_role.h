// WatcherRole: whether a thread watches an engine, how it sleeps, and what ends its sleep.
//
// The watcher announces a sleep, then looks again at the stores that are to keep it awake. Other threads store, then call wake().
#pragma once

#include <atomic>
#include <cstdint>

#include "hmc/deadline.h"
#include "hmc/status.h"
#include "progress/doorbell.h"

namespace hmc {

class WatcherRole {
 public:
  using TimePoint = Deadline::Clock::time_point;

  Status open() { return doorbell_.open(); }
  void close() noexcept { doorbell_.close(); }

  // ---- engine lock held ----
  [[nodiscard]] bool taken() const noexcept { return state_.load(std::memory_order_relaxed) != State::none; }
  void take() noexcept { state_.store(State::active); }
  void give_up() noexcept { state_.store(State::none); }
  // The watcher sleeps next, with every Pollable armed.
  void announce_armed(TimePoint until) noexcept {
    armed_until_ = until;
    state_.store(State::armed);
  }
  // An armed watcher is to be awake at `when`.
  void wake_by(TimePoint when) noexcept {
    if (when >= armed_until_) return;
    armed_until_ = when;
    wake();
  }

  // ---- watcher only, lock not held ----
  // The watcher sleeps next, unless its second look finds a reason to stay awake: then it calls stay_awake(). `cut_from`: as of
  // when cut_standby() ends the sleep; TimePoint{}: never.
  void announce_standby(TimePoint cut_from) noexcept {
    cut_from_.store(cut_from, std::memory_order_relaxed);
    state_.exchange(State::standby);
  }
  void stay_awake() noexcept { state_.store(State::active); }
  void sleep(const Descriptors* descriptors, TimePoint until) noexcept {
    doorbell_.sleep(descriptors, until);
    state_.store(State::active);
  }

  // ---- any thread, lock held or not ----
  [[nodiscard]] bool armed() const noexcept { return state_.load() == State::armed; }
  // Ends an announced sleep. To be called after the store that the watcher is to see.
  void wake() noexcept {
    const State state = state_.load();
    if (state == State::standby || state == State::armed) doorbell_.ring();
  }
  // A driver has left: ends a standby that was announced to be cut, where it is time to. Only the first call of each standby does.
  void cut_standby() noexcept {
    if (cut_from_.load(std::memory_order_relaxed) == TimePoint{}) return;
    const TimePoint from = cut_from_.exchange(TimePoint{});
    if (from != TimePoint{} && state_.load() == State::standby && TimePoint::clock::now() >= from) doorbell_.ring();
  }
  // Ends the present sleep, or else the next one at once.
  void ring() noexcept { doorbell_.ring(); }

 private:
  enum class State : std::uint32_t { none, active, standby, armed };

  std::atomic<State> state_{State::none};
  std::atomic<TimePoint> cut_from_{TimePoint{}};
  TimePoint armed_until_{};  // guarded by the engine lock
  Doorbell doorbell_;
};

}  // namespace hmc
