// Element types and operations of collectives that reduce. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "hmc/export.h"
#include "hmc/status.h"

namespace hmc {

// f16: IEEE binary16. bf16: the upper half of an f32. f8_*: OCP FP8 e4m3fn (no infinities, largest 448) and e5m2, and e4m3fnuz
// (no infinities, no negative zero, largest 240) of AMD's and Graphcore's proposal.
enum class DataType : std::uint8_t {
  f64,
  f32,
  f16,
  bf16,
  f8_e4m3fn,
  f8_e4m3fnuz,
  f8_e5m2,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
};
inline constexpr std::size_t data_types = 15;

enum class ReduceOp : std::uint8_t {
  sum,
  product,
  min,
  max,
  avg,   // the sum divided by the number of ranks
  band,  // bitwise, integers only
  bor,
  bxor,
  premul_sum,  // the sum of all elements, each times Reduction::factor, floating types only
};
inline constexpr std::size_t reduce_ops = 9;

// Results are those of the same loop over NumPy scalars, in rank order, but for floating sums, averages and products between
// islands and by a vendor's library, which have an order of their own (docs/explanation/collectives.md):
// - f64 and f32 round after each operation. Narrower floating types are added up in f32 and rounded once, to nearest even.
//   A result beyond the largest number is an infinity, or NaN where the type has none.
// - Integers wrap around. `avg` of integers divides the wrapped sum and rounds toward zero.
// - A NaN's sign and payload depend on the processor that reduces the element.
// - min and max return NaN if any element is NaN. Of zeros with different signs they return the one of the highest rank.
struct Reduction {
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  double factor = 1;  // of premul_sum; alike on every rank
  // sum, avg and premul_sum only: each element is the sum of all inputs, rounded once. So it depends on the numbers alone, not on
  // the order of the ranks, nor on inputs of zeros. avg divides that sum; premul_sum rounds each product first. Sums of integers
  // are exact in any case. Takes longer, and the CPU reduces device memory.
  bool exact = false;
};

// Bytes of one element.
[[nodiscard]] HMC_API std::size_t size_of(DataType type) noexcept;
// "f32", "f8_e4m3fn", "u8"
[[nodiscard]] HMC_API std::string_view name_of(DataType type) noexcept;
// "sum", "premul_sum"
[[nodiscard]] HMC_API std::string_view name_of(ReduceOp op) noexcept;
// By these names. nullopt: unknown.
[[nodiscard]] HMC_API std::optional<DataType> data_type(std::string_view name) noexcept;
[[nodiscard]] HMC_API std::optional<ReduceOp> reduce_op(std::string_view name) noexcept;
[[nodiscard]] HMC_API bool is_floating(DataType type) noexcept;
// Errors: invalid_argument, an operation that the type does not have.
[[nodiscard]] HMC_API Status check_reduction(const Reduction& reduction);

}  // namespace hmc
