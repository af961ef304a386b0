// Elementwise reduction of several arrays into one, on the CPU. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "hmc/reduce.h"

namespace hmc {

// One step of a reduction. A collective that reduces in several steps scales in the first and divides in the last.
struct ReduceStep {
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;  // avg and premul_sum: as sum
  double scale = 1;             // of every source's elements, floating types only
  std::uint32_t divisor = 1;    // of the result
  bool exact = false;           // sums of floating types are rounded once
};

// Sources of one reduction by a device.
inline constexpr std::size_t most_reduced_sources = 64;

// target[i] = sources[0][i] op sources[1][i] op ..., left to right, for `count` elements. Arrays need no alignment. `target` may be
// one of the sources; other overlaps are undefined. At least one source.
void reduce_on_cpu(void* target, std::span<const void* const> sources, std::size_t count, const ReduceStep& step) noexcept;

}  // namespace hmc
