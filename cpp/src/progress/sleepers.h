// Sleepers: the waiters of an engine that sleep. Engine lock held for every call, unless said otherwise.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

namespace hmc {

class WatcherRole;

// A waiter that sleeps. Whoever sets `word` under the engine lock unlinks it first.
struct Sleeper {
  enum Word : std::uint32_t { asleep = 0, satisfied = 1, look_again = 2 };
  const std::atomic<std::uint32_t>* flag = nullptr;  // either this ...
  const std::function<bool()>* done = nullptr;       // ... or this
  bool watching = false;                             // sleeps as the watcher, not on `word`
  std::atomic<std::uint32_t> word{asleep};
};

class Sleepers {
 public:
  [[nodiscard]] bool empty() const noexcept { return sleeping_.empty(); }
  void link(Sleeper& sleeper) { sleeping_.push_back(&sleeper); }
  void unlink(Sleeper& sleeper) noexcept { std::erase(sleeping_, &sleeper); }
  // The sleeper itself found its condition true.
  void unlink_satisfied(Sleeper& sleeper) noexcept;

  // Wakes one, if any sleeps, to look again (and to take the watcher's role).
  void wake_one(WatcherRole& role) noexcept;
  // Wakes those whose flag is set and, with `predicates`, those with a predicate: their owners evaluate it.
  void wake_flagged(bool predicates, WatcherRole& role) noexcept;
  // Wakes those whose flag is set or whose predicate is true.
  void wake_satisfied(WatcherRole& role);

  // Sleepers that found their condition true without having been woken for it. Any thread.
  [[nodiscard]] std::uint64_t late_wakeups() const noexcept { return late_wakeups_.load(std::memory_order_relaxed); }

 private:
  void wake(Sleeper& sleeper, Sleeper::Word word, WatcherRole& role) noexcept;

  std::vector<Sleeper*> sleeping_;
  std::atomic<std::uint64_t> late_wakeups_{0};
};

}  // namespace hmc
