// Futex: sleeping on one word until it changes, with an absolute deadline. The word carries the data; this only blocks.
#pragma once

#include <atomic>
#include <cstdint>

#include "hmc/deadline.h"

namespace hmc {

// Returns when `word` differs from `expected`, at the deadline, or spuriously.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, Deadline::Clock::time_point until) noexcept;
// Wakes every waiter of `word`, which may already be gone.
void futex_wake(const std::atomic<std::uint32_t>* word) noexcept;

// One pause instruction: tells the core that this is a spin loop.
inline void cpu_relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace hmc
