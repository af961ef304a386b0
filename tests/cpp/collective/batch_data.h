// What ranks pass to the calls of a batch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collective/job.h"

namespace hmc::testing {

inline constexpr Reduction xored{DataType::u8, ReduceOp::bxor};

inline Bytes input(std::size_t bytes, int rank, std::size_t call) {
  return pattern(bytes, static_cast<std::uint64_t>(rank) * 131 + call);
}
// What the ranks together have.
inline Bytes xored_inputs(std::size_t bytes, int ranks, std::size_t call) {
  Bytes all(bytes);
  for (int r = 0; r < ranks; ++r) {
    const Bytes each = input(bytes, r, call);
    for (std::size_t i = 0; i < bytes; ++i) all[i] ^= each[i];
  }
  return all;
}

}  // namespace hmc::testing
