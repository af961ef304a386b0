// Engine: the watcher, who polls when nobody drives and sleeps when nothing moves.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "base/log.h"
#include "progress/engine_impl.h"
#include "progress/futex.h"
#include "progress/thread.h"

namespace hmc {
namespace {

// How long drivers must have been away before the watcher polls: a wait that follows within a tick costs nobody a system call.
constexpr auto tick = std::chrono::milliseconds(1);
// Polling goes on this long after something moved or was kicked, before every Pollable is armed ...
constexpr auto linger_time = std::chrono::milliseconds(1);
// ... and this long after mere descriptor events (heartbeats, above all: they must not cost a millisecond of CPU each).
constexpr auto descriptor_linger_time = std::chrono::microseconds(50);
constexpr unsigned spin_rounds = 100;
// A Pollable that keeps refusing to be armed though nothing moves (a device copies, or its peer is stopped with work half done) is
// polled ever more rarely: after a fraction of the time that has gone by without a movement, so that whatever it waits for is
// noticed a percent or two late at most.
constexpr unsigned patient_refusals = 4;
constexpr unsigned patient_standbys = 2;
// Who has the lock longer than this is in a system call that moves bytes itself: to look and look would take a processor from what
// that call sets in motion. Shorter ones are not worth the sleep: over sockets this thread may be the one that receives.
constexpr auto lock_patience = std::chrono::microseconds(100);
constexpr int backoff_fraction = 64;
constexpr Deadline::Clock::duration first_backoff = std::chrono::microseconds(20);

}  // namespace

void EngineImpl::wake_watcher_unless_prompt() noexcept {
  // An armed watcher sleeps until something wakes it; on standby it looks at the end of the tick.
  if (!kicks_.drivers_are_prompt() || role_.armed()) role_.wake();
}

bool EngineImpl::anything_busy() const { return !deferred_.empty() || pollables_.any_busy(); }

bool EngineImpl::arm_all() {
  if (!deferred_.empty() || !pollables_.arm()) return false;
  if (deferred_.empty()) return true;
  pollables_.disarm();
  return false;
}

// Somebody else polls from now on: peers need not ring, and the watcher, whose sleep they would have ended, goes on standby.
void EngineImpl::take_over() {
  pollables_.disarm();
  role_.wake();
}

void EngineImpl::need_watcher() {
  if (progress_ == Progress::manual || background_ || stopping_.load(std::memory_order_relaxed) != 0) return;
  role_.take();
  background_ = start_thread("hmc-progress", [this, weak = self_] { background(this, weak); });
  threadless_.store(background_ == nullptr);
  if (!background_) {
    role_.give_up();
    warn_once("progress-thread",
              "no background thread could be started (limit of processes reached?): only waiting calls make progress");
  }
}

void EngineImpl::end_watch() {
  role_.give_up();
  if (pollables_.armed()) pollables_.disarm();
  sleepers_.wake_one(role_);
}

void EngineImpl::background(EngineImpl* engine, const std::weak_ptr<EngineImpl>& weak) {
  // A reference is held while the lock may be, and never in sleep: the engine's end needs no help from this thread. If the
  // reference let go here was the last one, the engine has ended on this very thread (see stop()); else its end joins this thread
  // first.
  bool gone = false;
  engine->background_gone_ = &gone;
  WatchState state;
  state.leave = &engine->stopping_;
  state.background = true;
  for (;;) {
    auto self = weak.lock();
    if (!self) return;
    const bool leave = state.leave->load() != 0;
    std::optional<Nap> nap;
    if (leave) {
      const Lock held = self->lock();
      self->end_watch();
    } else {
      nap = self->watch_round(state);
    }
    self.reset();
    if (gone || leave) return;
    if (nap) engine->sleep_as_watcher(*nap);
  }
}

void EngineImpl::watch_as_waiter(Sleeper& sleeper, Deadline deadline) {
  WatchState state;
  state.leave = &sleeper.word;
  state.limit = deadline.when();
  while (sleeper.word.load(std::memory_order_acquire) == Sleeper::asleep && !deadline.passed()) {
    if (const auto nap = watch_round(state)) sleep_as_watcher(*nap);
  }
  const Lock held = lock();
  if (sleeper.word.load(std::memory_order_relaxed) == Sleeper::asleep) sleepers_.unlink(sleeper);
  end_watch();
}

// One step of the watcher; what it returns is to be slept. It may take the lock only when no driver wants it.
std::optional<EngineImpl::Nap> EngineImpl::watch_round(WatchState& state) {
  const bool kicked = kicks_.kicked();
  const bool wanted = kicks_.watcher_wanted();
  const std::uint64_t driven = driven_.load(std::memory_order_relaxed);
  if (driver_present_.load() || (driven != state.driven && !wanted)) {
    state.driven = driven;
    state.linger_until = {};
    state.empty_rounds = 0;
    state.refusals = 0;
    state.locked_since = {};
    // Drivers go on moving what was kicked: once they have for a while, they need not ring whenever one leaves.
    if (kicked && ++state.kicked_standbys > patient_standbys) kicks_.clear();
    if (!kicked) state.kicked_standbys = 0;
    return standby(state, Nap{false, Deadline::Clock::now() + tick});
  }
  state.driven = driven;
  if (!mutex_.try_lock()) {
    const TimePoint now = Deadline::Clock::now();
    if (state.locked_since == TimePoint{}) state.locked_since = now;
    if (now - state.locked_since < lock_patience) {
      relax(state);
      return std::nullopt;
    }
    mutex_.lock();
  }
  state.locked_since = {};
  Lock held(mutex_, std::adopt_lock);
  kicks_.answer_as_watcher();
  if (pollables_.armed()) pollables_.disarm();
  const unsigned moved = round(true);
  RetiredOwners::Owners owners = retired_.take();
  const TimePoint now = Deadline::Clock::now();
  const bool kicked_since = kicks_.take_linger();
  if ((moved & pollables) != 0 || kicked_since) {
    state.linger_until = now + linger_time;
    state.kicked_standbys = 0;
  } else if ((moved & descriptors) != 0) {
    state.linger_until = std::max(state.linger_until, now + descriptor_linger_time);
  }
  if (moved != nothing) {
    state.empty_rounds = 0;
    state.refusals = 0;
    state.moved_at = now;
  }
  std::optional<Nap> nap;
  bool refused = false;
  if (moved == nothing && now >= state.linger_until) {
    kicks_.clear(std::memory_order_relaxed);  // kick() stores it under the lock
    if (arm_all()) {
      state.refusals = 0;
      nap = Nap{true, std::min(sources_.timers().next(), state.limit)};
      role_.announce_armed(nap->until);
    } else {
      refused = true;
      ++state.refusals;
    }
  }
  held.unlock();
  if (!owners.empty()) {
    if (state.background) {
      dispatcher_.dispatch([dropped = std::move(owners)] {});
    } else {
      owners.clear();
    }
  }
  if (nap) return nap;
  if (refused && state.refusals > patient_refusals) {
    const auto backoff = std::clamp<Deadline::Clock::duration>((now - state.moved_at) / backoff_fraction, first_backoff, tick);
    return standby(state, Nap{true, now + backoff});
  }
  if (contenders_.load(std::memory_order_relaxed) != 0) give_way();
  if (moved == nothing) relax(state);
  return std::nullopt;
}

void EngineImpl::relax(WatchState& state) noexcept {
  if (++state.empty_rounds < spin_rounds) {
    cpu_relax();
  } else {
    sched_yield();
  }
}

// Announces a sleep without the lock, then looks again at what would have rung the doorbell had it been announced before.
std::optional<EngineImpl::Nap> EngineImpl::standby(const WatchState& state, Nap nap) {
  role_.announce_standby();
  if (state.leave->load() != 0 || (!driver_present_.load() && kicks_.watcher_wanted())) {
    role_.stay_awake();
    return std::nullopt;
  }
  nap.until = std::min(nap.until, state.limit);
  return nap;
}

void EngineImpl::sleep_as_watcher(const Nap& nap) noexcept {
  role_.sleep(nap.descriptors ? &sources_.descriptors() : nullptr, nap.until);
}

}  // namespace hmc
