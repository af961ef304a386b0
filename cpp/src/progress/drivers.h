// Drivers: how the watcher of an engine learns of the waiters that drive it. It stays away from the engine lock while they do.
#pragma once

#include <atomic>
#include <cstdint>

namespace hmc {

class Drivers {
 public:
  // ---- engine lock held ----
  // A driver polls next.
  void drive() noexcept {
    announce();
    count();
  }
  // A round by another thread than the watcher.
  void count() noexcept { driven_.store(driven_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  // A post after which the watcher may wait for the next tick. It has polled nothing.
  void put_off() noexcept { put_offs_.store(put_offs_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  // A posting call looks in the watcher's place. Lock held, as for count().
  void look_in_post() noexcept { posts_.store(posts_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  // The driver stops. A thread that calls present() with the lock held sees it.
  void leave() noexcept {
    present_.store(false, std::memory_order_relaxed);
    departures_.store(departures_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  // ---- any thread, lock held or not ----
  // A driver wants the lock: the watcher is to step aside.
  void announce() noexcept { present_.store(true, std::memory_order_relaxed); }
  // The same as leave(), ordered before later loads of the caller.
  void leave_unlocked() noexcept {
    departures_.fetch_add(1, std::memory_order_relaxed);
    present_.exchange(false);
  }
  [[nodiscard]] bool present() const noexcept { return present_.load(); }
  // Differs from an earlier value if drivers came meanwhile.
  [[nodiscard]] std::uint64_t driven() const noexcept { return driven_.load(std::memory_order_relaxed); }
  // Differs from an earlier value if drivers have left meanwhile.
  [[nodiscard]] std::uint64_t departures() const noexcept { return departures_.load(std::memory_order_relaxed); }
  // Differs from an earlier value if posts have put the watcher off meanwhile.
  [[nodiscard]] std::uint64_t put_offs() const noexcept { return put_offs_.load(std::memory_order_relaxed); }
  // Differs from an earlier value if posting calls have looked meanwhile.
  [[nodiscard]] std::uint64_t posts() const noexcept { return posts_.load(std::memory_order_relaxed); }

 private:
  // A cache line of their own: written by drivers at every round, read by the watcher once per tick.
  alignas(64) std::atomic<bool> present_{false};
  std::atomic<std::uint64_t> driven_{0};
  std::atomic<std::uint64_t> departures_{0};
  std::atomic<std::uint64_t> put_offs_{0};
  std::atomic<std::uint64_t> posts_{0};
};

}  // namespace hmc
