// EngineLock: the one lock of an engine. Threads that poll in a loop hand it to the threads that block on it.
//
// A bare mutex would starve a poster: a polling thread takes it again within nanoseconds of releasing it.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace hmc {

class EngineLock {
 public:
  using Lock = std::unique_lock<std::mutex>;

  // For posts, and for everything else that does not poll.
  [[nodiscard]] Lock lock() {
    if (mutex_.try_lock()) return Lock(mutex_, std::adopt_lock);
    return lock_contended();
  }

  // ---- for threads that poll in a loop ----
  [[nodiscard]] bool try_lock() noexcept { return mutex_.try_lock(); }
  void unlock() noexcept { mutex_.unlock(); }
  // Blocks without counting as a contender.
  [[nodiscard]] Lock block() { return Lock(mutex_); }
  // The lock that this thread took by try_lock().
  [[nodiscard]] Lock adopt() noexcept { return Lock(mutex_, std::adopt_lock); }
  // Whether a thread blocks in lock().
  [[nodiscard]] bool contended() const noexcept { return contenders_.load(std::memory_order_relaxed) != 0; }
  // Called without the lock while it is contended: leaves the other thread time to take it.
  void give_way() const noexcept;

 private:
  Lock lock_contended();

  std::mutex mutex_;
  std::atomic<std::uint32_t> contenders_{0};  // threads inside lock_contended()
};

}  // namespace hmc
