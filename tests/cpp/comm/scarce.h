// "scarce": tcp by another name, said to be a hundred times as fast, with a budget of registered memory that all Contexts of the
// process share; and which keeps back the ends of its operations when it is told to.
#pragma once

#include <atomic>
#include <cstddef>

namespace hmc::testing {

// Known to Contexts once this was called.
void add_scarce_transport();
inline constexpr std::size_t scarce_budget = 10'000'000;
// Bytes registered with it.
extern std::atomic<std::size_t> scarce_used;
// While set, its puts and gets do their work and do not complete.
extern std::atomic<bool> scarce_holds;
// Puts and gets whose bytes have been moved, held back from completing while scarce_holds.
extern std::atomic<std::size_t> scarce_held;

}  // namespace hmc::testing
