#include "progress/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <climits>

namespace hmc {

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, Deadline::Clock::time_point until) noexcept {
  timespec absolute{};
  timespec* limit = nullptr;
  if (until != Deadline::Clock::time_point::max()) {
    const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(until.time_since_epoch()).count();
    absolute.tv_sec = static_cast<time_t>(nanoseconds / 1'000'000'000);
    absolute.tv_nsec = static_cast<long>(nanoseconds % 1'000'000'000);
    limit = &absolute;
  }
  // FUTEX_WAIT_BITSET takes an absolute time on CLOCK_MONOTONIC, which is what steady_clock reads.
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, expected, limit, nullptr, FUTEX_BITSET_MATCH_ANY);
}

void futex_wake(const std::atomic<std::uint32_t>* word) noexcept {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace hmc
