// EngineImpl: the one Engine. Split by concept: engine.cc (tables, rounds, life), engine_drive.cc (waiters), engine_watch.cc (the
// watcher: the background thread, or in manual mode a sleeping waiter).
//
// Who polls. A waiter drives: it spins, yields, then goes to sleep on its Sleeper. Exactly one thread at a time holds the watcher's
// role: it polls when nobody drives, and sleeps in ppoll with every Pollable armed when nothing moves. Drivers and watcher never
// wait for each other: the watcher stays away from the lock while driver_present_ is set or driven_ advances, and looks again every
// tick.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "progress/deferred_functions.h"
#include "progress/dispatcher.h"
#include "progress/engine.h"
#include "progress/event_sources.h"
#include "progress/kicks.h"
#include "progress/pollables.h"
#include "progress/retired_owners.h"
#include "progress/wait_policy.h"
#include "progress/watch_pace.h"
#include "progress/watcher_role.h"

namespace hmc {

class Interruptible;

class EngineImpl final : public Engine {
 public:
  explicit EngineImpl(Progress progress) noexcept : threadless_(progress == Progress::manual), progress_(progress) {}
  ~EngineImpl() override;
  Status open(std::weak_ptr<EngineImpl> self);

  void add(Pollable& pollable) override;
  void remove(Pollable& pollable) override;
  Status watch(int fd, std::uint32_t events, FdHandler& handler) override;
  void modify(int fd, std::uint32_t events) override;
  void unwatch(int fd) override;
  TimerId at(Deadline when, std::function<void()> callback) override;
  void cancel_timer(TimerId id) override;
  void defer(std::function<void()> function) override;
  bool poll_once() override;
  void kick() override;
  void retire(std::shared_ptr<const void> owner) override;
  bool drive(Deadline deadline, const std::function<bool()>& done) override;
  bool drive_flag(Deadline deadline, const std::atomic<std::uint32_t>& flag) override;
  void drop_retired() override;
  void dispatch(std::function<void()> function) override;
  void wake() noexcept override { role_.ring(); }
  void stop() override;

 private:
  using TimePoint = Deadline::Clock::time_point;
  enum Moved : unsigned { nothing = 0, pollables = 1, descriptors = 2, timers = 4 };
  enum class Wake { done, again, timed_out };

  struct Nap {
    bool descriptors;  // wake for watched descriptors too
    TimePoint until;
  };
  struct WatchState {
    const std::atomic<std::uint32_t>* leave = nullptr;  // non-zero: the role is to be given up
    TimePoint limit = TimePoint::max();
    bool background = false;
    WatchPace pace;
  };

  // ---- lock held: engine.cc ----
  unsigned round(bool with_descriptors);
  void run_deferred();
  void finish_deferred();  // lock not held
  void wake_sleepers() override;
  // ---- lock held: engine_watch.cc ----
  bool arm_all();
  void take_over();
  void need_watcher();
  void end_watch();
  [[nodiscard]] bool anything_busy() const;
  // ---- any thread, lock held or not: engine_watch.cc ----
  void wake_watcher_unless_prompt() noexcept;
  // ---- watcher only, lock not held: engine_watch.cc ----
  std::optional<Nap> watch_round(WatchState& state);
  std::optional<Nap> standby(const WatchState& state, Nap nap);
  void sleep_as_watcher(const Nap& nap) noexcept;
  void watch_as_waiter(Sleeper& sleeper, Deadline deadline);
  static void background(EngineImpl* engine, const std::weak_ptr<EngineImpl>& weak);
  // ---- lock not held: engine_drive.cc ----
  template <class Done>
  bool drive_slices(Deadline deadline, const Done& done);
  void drop_owners();
  template <class Done>
  bool drive_loop(Deadline deadline, const Done& done, Interruptible* interruptible);
  template <class Done>
  Wake sleep(Deadline deadline, const Done& done, TimePoint asleep_since);
  bool leave_locked();
  void leave();
  void give_way() noexcept;

  // Guarded by mutex_; touched by every round.
  Pollables pollables_;
  EventSources sources_;
  DeferredFunctions deferred_;
  RetiredOwners retired_;
  std::unique_ptr<std::thread> background_;
  std::weak_ptr<EngineImpl> self_;
  bool* background_gone_ = nullptr;  // background thread only

  // Written by drivers at every round, read by the watcher once per tick.
  alignas(64) std::atomic<bool> driver_present_{false};
  std::atomic<std::uint64_t> driven_{0};

  alignas(64) Kicks kicks_;
  WatcherRole role_;
  std::atomic<std::uint32_t> stopping_{0};
  std::atomic<bool> threadless_;  // no background thread will take over from a waiter
  WaitPolicy wait_policy_;
  const Progress progress_;
  Dispatcher dispatcher_;
};

}  // namespace hmc
