// Engine: the watcher, who polls when nobody drives and sleeps when nothing moves.
#include <sched.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "progress/engine_impl.h"
#include "progress/futex.h"
#include "progress/thread.h"

namespace hmc {
namespace {

void relax(WatchPace& pace) noexcept {
  if (pace.spins()) {
    cpu_relax();
  } else {
    sched_yield();
  }
}

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
  WatchPace& pace = state.pace;
  if (driver_present_.load() || (pace.drivers_came(driven) && !wanted)) {
    if (pace.stand_aside(driven, kicked)) kicks_.clear();
    return standby(state, Nap{false, Deadline::Clock::now() + WatchPace::tick});
  }
  pace.go_ahead(driven);
  if (!mutex_.try_lock()) {
    if (pace.looks_again(Deadline::Clock::now())) {
      relax(pace);
      return std::nullopt;
    }
    mutex_.lock();
  }
  pace.got_lock();
  Lock held(mutex_, std::adopt_lock);
  kicks_.answer_as_watcher();
  if (pollables_.armed()) pollables_.disarm();
  const unsigned moved = round(true);
  RetiredOwners::Owners owners = retired_.take();
  const TimePoint now = Deadline::Clock::now();
  const bool kicked_since = kicks_.take_linger();
  pace.polled(now, (moved & pollables) != 0 || kicked_since, (moved & descriptors) != 0, moved != nothing);
  std::optional<Nap> nap;
  std::optional<WatchPace::Duration> backoff;
  if (moved == nothing && !pace.lingers(now)) {
    kicks_.clear(std::memory_order_relaxed);  // kick() stores it under the lock
    if (arm_all()) {
      pace.armed();
      nap = Nap{true, std::min(sources_.timers().next(), state.limit)};
      role_.announce_armed(nap->until);
    } else {
      backoff = pace.refused(now);
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
  if (backoff) return standby(state, Nap{true, now + *backoff});
  if (contenders_.load(std::memory_order_relaxed) != 0) give_way();
  if (moved == nothing) relax(pace);
  return std::nullopt;
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
