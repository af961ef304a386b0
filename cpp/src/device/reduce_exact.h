// ExactSum: the sum of any finite doubles without rounding, a fixed-point number as wide as all of them (Kulisch's accumulator).
// For the few elements whose sum two doubles do not hold (reduce_exact_loops.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace hmc {

class ExactSum {
 public:
  void add(double value) noexcept;
  // To nearest even; a sum of 0 is +0. `to_odd`: where it is inexact, to the neighbour whose last bit is set, so that another
  // rounding of the result to fewer bits rounds as if it were the first.
  [[nodiscard]] double rounded(bool to_odd) const noexcept;

 private:
  // 2^-1074 is the lowest bit. The highest finite number and 2^60 of its kind fit.
  static constexpr std::size_t limbs = 34;
  std::uint64_t limb_[limbs] = {};  // two's complement
  double special_ = 0;              // the sum of infinities and NaNs
  bool is_special_ = false;
};

}  // namespace hmc
