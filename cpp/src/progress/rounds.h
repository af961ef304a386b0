// Rounds: what an engine polls, and what one round over it does. Engine lock held for every call.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "progress/deferred_functions.h"
#include "progress/event_sources.h"
#include "progress/kicks.h"
#include "progress/pollables.h"
#include "progress/sleepers.h"
#include "progress/watcher_role.h"

namespace hmc {

class Rounds {
 public:
  // Bits: what moved in a round.
  enum Moved : unsigned { nothing = 0, pollables_moved = 1, descriptors_moved = 2, timers_moved = 4 };

  // `role` wakes a waiter that sleeps as the watcher. `kicks` is kicked for functions that a round leaves deferred.
  Rounds(WatcherRole& role, Kicks& kicks) noexcept : role_(role), kicks_(kicks) {}

  [[nodiscard]] Pollables& pollables() noexcept { return pollables_; }
  [[nodiscard]] EventSources& sources() noexcept { return sources_; }
  [[nodiscard]] Sleepers& sleepers() noexcept { return sleepers_; }
  [[nodiscard]] const Sleepers& sleepers() const noexcept { return sleepers_; }
  void defer(std::function<void()> function) { deferred_.add(std::move(function)); }

  // Polls every Pollable, looks at descriptors and timers (when asked, or when it is their turn), runs what was deferred, then
  // wakes sleepers whose condition is true. Returns bits of Moved. Not called inside a round. `awaited`: what the caller waits for;
  // null: nothing, or a predicate.
  unsigned run(bool with_descriptors, const std::atomic<std::uint32_t>* awaited = nullptr);
  // Inside a round: the caller has what it waits for.
  [[nodiscard]] bool awaited_came() const noexcept { return awaited_ != nullptr && awaited_->load(std::memory_order_relaxed) != 0; }
  // A condition that a waiter may sleep on has changed. Predicates are not called here: inside a round its end calls them, outside
  // their owners are woken to.
  void wake_waiters() {
    if (!sleepers_.empty()) sleepers_.wake_flagged(!pollables_.in_round(), role_);
  }
  // Arms every Pollable, or none. False if one refused, or if functions are deferred.
  bool arm();
  // Whether a poll would find work.
  [[nodiscard]] bool busy() const { return !deferred_.empty() || pollables_.any_busy(); }
  // For the engine's end: runs the deferred functions, and those that they defer in turn.
  void finish();

 private:
  void run_deferred();

  Sleepers sleepers_;
  Pollables pollables_;
  EventSources sources_;
  DeferredFunctions deferred_;
  const std::atomic<std::uint32_t>* awaited_ = nullptr;
  WatcherRole& role_;
  Kicks& kicks_;
};

}  // namespace hmc
