// The same loops, compiled for several instruction sets. Results are equal bit by bit.
#pragma once

#include <cstddef>

#include "device/reduce.h"

namespace hmc {

using ReduceFunction = void (*)(void* target, const void* const* sources, std::size_t sources_count, std::size_t count,
                                const ReduceStep& step) noexcept;

struct ReduceVariant {
  const char* name;
  ReduceFunction function;
  bool usable;  // on this machine
};

void reduce_baseline(void* target, const void* const* sources, std::size_t sources_count, std::size_t count,
                     const ReduceStep& step) noexcept;
#if defined(__x86_64__)
// AVX2 and F16C.
void reduce_avx2(void* target, const void* const* sources, std::size_t sources_count, std::size_t count,
                 const ReduceStep& step) noexcept;
#endif

// From the slowest to the fastest.
std::span<const ReduceVariant> reduce_variants() noexcept;

}  // namespace hmc
