// Sums that are rounded once, for the instruction set that the including file is compiled for. Part of reduce_loops.h.
//
// The sum of an element is kept in two doubles: `high`, and in `low` what each addition to `high` lost, which is exact (TwoSum:
// Knuth, The Art of Computer Programming 2, 4.2.2). Additions to `low` lose something only where the numbers span more than about
// 106 bits; such elements are added once more in an ExactSum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "device/reduce_exact.h"
#include "device/reduce_formats.h"
#include "device/reduce_variants.h"

namespace hmc {
namespace {

// a + b, and in `lost` what its rounding lost.
inline double two_sum(double a, double b, double& lost) noexcept {
  const double sum = a + b, added = sum - a;
  lost = (a - (sum - added)) + (b - added);
  return sum;
}

// The neighbour of `rounded` in the direction of `error`, or `rounded` itself if its last bit is set: rounding to odd.
inline double rounded_to_odd(double rounded, double error) noexcept {
  const auto all = __builtin_bit_cast(std::uint64_t, rounded);
  const std::uint64_t away = (error > 0) == (rounded > 0) ? 1 : ~std::uint64_t{0};
  return __builtin_bit_cast(double, error != 0 && (all & 1) == 0 ? all + away : all);
}

inline float narrowed_to_odd(double value) noexcept {
  const auto rounded = static_cast<float>(value);
  const double back = rounded;
  const auto all = __builtin_bit_cast(std::uint32_t, rounded);
  const std::uint32_t away = __builtin_fabs(back) < __builtin_fabs(value) ? 1 : ~std::uint32_t{0};
  return __builtin_bit_cast(float, value == value && back != value && (all & 1) == 0 ? all + away : all);
}

// Elements of one block, in the order of the format's registers.
template <class Format>
struct ExactBlock {
  using Lane = typename Format::Lane;
  static constexpr std::size_t steps = Format::step < 16 ? 16 / Format::step : 1, count = steps * Format::step;
  static constexpr bool is_double = std::is_same_v<Lane, double>;

  Lane values[count];
  double high[count], low[count];
  std::uint64_t lost[count];  // not 0: the two are not the whole sum

  void load(const unsigned char* from, const ReduceStep& step) noexcept {
    for (std::size_t i = 0; i < steps; ++i) {
      const auto read = Format::load(from + i * Format::step * sizeof(typename Format::Stored));
      __builtin_memcpy(values + i * Format::step, &read, sizeof read);
    }
    if (step.scale == 1) return;
    for (Lane& value : values) value *= static_cast<Lane>(step.scale);
  }
  void begin() noexcept {
    for (std::size_t i = 0; i < count; ++i) {
      high[i] = values[i];
      low[i] = 0;
      lost[i] = __builtin_bit_cast(std::uint64_t, high[i] - high[i]) << 1;  // infinities and NaNs
    }
  }
  void add() noexcept {
    for (std::size_t i = 0; i < count; ++i) {
      double error = 0, further = 0;
      high[i] = two_sum(high[i], values[i], error);
      low[i] = two_sum(low[i], error, further);
      lost[i] |= __builtin_bit_cast(std::uint64_t, further) << 1;
    }
  }
  [[nodiscard]] bool is_exact() const noexcept {
    std::uint64_t any = 0;
    for (const std::uint64_t each : lost) any |= each;
    return any == 0;
  }
  // Of the sums in high and low to `values`.
  void finish(const ReduceStep& step) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
      double error = 0;
      const double sum = two_sum(high[i], low[i], error);
      finish(i, step.divisor != 1 || is_double ? sum : rounded_to_odd(sum, error), step);
    }
  }
  void finish(std::size_t i, double sum, const ReduceStep& step) noexcept {
    if (step.divisor != 1) sum /= step.divisor;
    if constexpr (is_double || sizeof(typename Format::Stored) == sizeof(float)) {
      values[i] = static_cast<Lane>(sum);
    } else {
      values[i] = narrowed_to_odd(sum);
    }
  }
  void store(unsigned char* to) const noexcept {
    for (std::size_t i = 0; i < steps; ++i) {
      typename Format::Registers write;
      __builtin_memcpy(&write, values + i * Format::step, sizeof write);
      Format::store(to + i * Format::step * sizeof(typename Format::Stored), write);
    }
  }
};

// `at(source)`: where the block's elements are.
template <class Format, class At>
void reduce_block_exactly(ExactBlock<Format>& block, std::size_t sources, const ReduceStep& step, const At& at) noexcept {
  block.load(at(0), step);
  block.begin();
  for (std::size_t source = 1; source < sources; ++source) {
    block.load(at(source), step);
    block.add();
  }
  block.finish(step);
  if (block.is_exact()) [[likely]]
    return;
  const ExactBlock<Format> first = block;
  for (std::size_t i = 0; i < block.count; ++i) {
    if (first.lost[i] == 0) continue;
    ExactSum sum;
    for (std::size_t source = 0; source < sources; ++source) {
      block.load(at(source), step);
      sum.add(block.values[i]);
    }
    block.high[i] = sum.rounded(step.divisor == 1 && !block.is_double);
  }
  __builtin_memcpy(block.values, first.values, sizeof block.values);
  for (std::size_t i = 0; i < block.count; ++i) {
    if (first.lost[i] != 0) block.finish(i, block.high[i], step);
  }
}

template <class Format>
void reduce_exactly(void* target, const void* const* sources, std::size_t sources_count, std::size_t count,
                    const ReduceStep& step) noexcept {
  constexpr std::size_t element = sizeof(typename Format::Stored), bytes = ExactBlock<Format>::count * element;
  auto* const to = static_cast<unsigned char*>(target);
  const std::size_t whole = count * element / bytes * bytes;
  ExactBlock<Format> block;
  for (std::size_t offset = 0; offset < whole; offset += bytes) {
    reduce_block_exactly(block, sources_count, step,
                         [&](std::size_t source) { return static_cast<const unsigned char*>(sources[source]) + offset; });
    block.store(to + offset);
  }
  const std::size_t rest = count * element - whole;
  if (rest == 0) return;
  unsigned char padded[bytes] = {};
  reduce_block_exactly(block, sources_count, step, [&](std::size_t source) {
    __builtin_memcpy(padded, static_cast<const unsigned char*>(sources[source]) + whole, rest);
    return static_cast<const unsigned char*>(padded);
  });
  block.store(padded);
  __builtin_memcpy(to + whole, padded, rest);
}

}  // namespace
}  // namespace hmc
