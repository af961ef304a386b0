// Reductions on the CPU: every type, operation and variant against one element at a time in higher precision.
#include "device/reduce.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "device/reduce_variants.h"

namespace hmc {
namespace {

// What an element is: read and written by definition, not by the tricks that the loops use.
struct Format {
  unsigned exponent_bits, mantissa_bits;
  int bias;
  bool infinities, negative_zero_is_nan;
};
Format format_of(DataType type) {
  switch (type) {
    case DataType::f16:
      return {5, 10, 15, true, false};
    case DataType::bf16:
      return {8, 7, 127, true, false};
    case DataType::f8_e4m3fn:
      return {4, 3, 7, false, false};
    case DataType::f8_e4m3fnuz:
      return {4, 3, 8, false, true};
    default:
      return {5, 2, 15, true, false};
  }
}
bool narrow(DataType type) { return is_floating(type) && size_of(type) <= 2; }

double decode(DataType type, std::uint32_t code) {
  const Format f = format_of(type);
  const std::uint32_t sign = code >> (f.exponent_bits + f.mantissa_bits);
  const std::uint32_t exponent = (code >> f.mantissa_bits) & ((1U << f.exponent_bits) - 1);
  const std::uint32_t mantissa = code & ((1U << f.mantissa_bits) - 1);
  const bool highest = exponent == (1U << f.exponent_bits) - 1;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  double value = 0;
  if (f.negative_zero_is_nan) {
    if (sign == 1 && exponent == 0 && mantissa == 0) return nan;
  } else if (f.infinities) {
    if (highest) return mantissa != 0 ? nan : sign == 1 ? -HUGE_VAL : HUGE_VAL;
  } else if (highest && mantissa == (1U << f.mantissa_bits) - 1) {
    return nan;
  }
  const double fraction = static_cast<double>(mantissa) / static_cast<double>(1U << f.mantissa_bits);
  value = exponent == 0 ? std::ldexp(fraction, 1 - f.bias) : std::ldexp(1 + fraction, static_cast<int>(exponent) - f.bias);
  return sign == 1 ? -value : value;
}

double value_of(DataType type, std::uint32_t code) {
  static std::map<DataType, std::vector<double>> tables;
  std::vector<double>& table = tables[type];
  while (table.size() < std::size_t{1} << (8 * size_of(type)))
    table.push_back(decode(type, static_cast<std::uint32_t>(table.size())));
  return table[code];
}

// The code whose value is nearest, of two the even one; by search.
std::uint32_t code_of(DataType type, double value) {
  const Format f = format_of(type);
  const std::uint32_t sign_bit = 1U << (f.exponent_bits + f.mantissa_bits);
  const std::uint32_t sign = std::signbit(value) ? sign_bit : 0;
  const double magnitude = std::fabs(value);
  const std::uint32_t not_finite = f.negative_zero_is_nan ? 0 : f.infinities ? 1U << f.mantissa_bits : 1;
  const std::uint32_t last = sign_bit - 1 - not_finite;
  // One step beyond the largest number, where there is such a code or not.
  const double step = value_of(type, last) - value_of(type, last - 1);
  const double tie = value_of(type, last) + step / 2;
  if (magnitude > tie || (magnitude == tie && last % 2 == 1)) {
    if (f.infinities) return sign | (last + 1);
    return f.negative_zero_is_nan ? sign_bit : sign | (last + 1);
  }
  std::uint32_t low = 0, high = last;
  while (low < high) {
    const std::uint32_t middle = (low + high + 1) / 2;
    if (value_of(type, middle) <= magnitude) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  std::uint32_t code = low;
  if (low < last) {
    const double below = magnitude - value_of(type, low), above = value_of(type, low + 1) - magnitude;
    if (above < below || (above == below && low % 2 == 1)) code = low + 1;
  }
  return f.negative_zero_is_nan && code == 0 ? 0 : sign | code;
}

std::uint64_t load(DataType type, const std::byte* from) {
  std::uint64_t code = 0;
  std::memcpy(&code, from, size_of(type));
  return code;
}

bool is_nan(DataType type, std::uint64_t code) {
  if (type == DataType::f64) return std::isnan(std::bit_cast<double>(code));
  if (type == DataType::f32) return std::isnan(std::bit_cast<float>(static_cast<std::uint32_t>(code)));
  return narrow(type) && std::isnan(value_of(type, static_cast<std::uint32_t>(code)));
}

template <class F>
F combine_floats(ReduceOp op, F a, F b) {
  switch (op) {
    case ReduceOp::product:
      return a * b;
    case ReduceOp::min:
      return std::isnan(a) || a < b ? a : b;
    case ReduceOp::max:
      return std::isnan(a) || a > b ? a : b;
    default:
      return a + b;
  }
}

template <class F>
F reduce_floats(const std::vector<F>& values, const ReduceStep& step) {
  F result = values[0] * static_cast<F>(step.scale);
  for (std::size_t i = 1; i < values.size(); ++i) result = combine_floats(step.op, result, values[i] * static_cast<F>(step.scale));
  return result / static_cast<F>(step.divisor);
}

template <class T>
std::uint64_t reduce_integers(const std::vector<std::uint64_t>& codes, const ReduceStep& step) {
  const auto narrowed = [](std::uint64_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  };
  T result = narrowed(codes[0]);
  for (std::size_t i = 1; i < codes.size(); ++i) {
    const T next = narrowed(codes[i]);
    const std::uint64_t a = static_cast<std::uint64_t>(result), b = static_cast<std::uint64_t>(next);
    switch (step.op) {
      case ReduceOp::product:
        result = narrowed(a * b);
        break;
      case ReduceOp::min:
        result = std::min(result, next);
        break;
      case ReduceOp::max:
        result = std::max(result, next);
        break;
      case ReduceOp::band:
        result = narrowed(a & b);
        break;
      case ReduceOp::bor:
        result = narrowed(a | b);
        break;
      case ReduceOp::bxor:
        result = narrowed(a ^ b);
        break;
      default:
        result = narrowed(a + b);
    }
  }
  using Widest = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
  const T divided = static_cast<T>(static_cast<Widest>(result) / static_cast<Widest>(step.divisor));
  std::uint64_t code = 0;
  std::memcpy(&code, &divided, sizeof divided);
  return code;
}

std::uint64_t expected(const std::vector<std::uint64_t>& codes, const ReduceStep& step) {
  const auto floats = [&] {
    std::vector<float> values;
    for (const auto code : codes) {
      const auto narrow_code = static_cast<std::uint32_t>(code);
      values.push_back(step.type == DataType::f32 ? std::bit_cast<float>(narrow_code)
                                                  : static_cast<float>(value_of(step.type, narrow_code)));
    }
    return values;
  };
  switch (step.type) {
    case DataType::f64: {
      std::vector<double> values;
      for (const auto code : codes) values.push_back(std::bit_cast<double>(code));
      return std::bit_cast<std::uint64_t>(reduce_floats(values, step));
    }
    case DataType::f32:
      return std::bit_cast<std::uint32_t>(reduce_floats(floats(), step));
    case DataType::i64:
      return reduce_integers<std::int64_t>(codes, step);
    case DataType::i32:
      return reduce_integers<std::int32_t>(codes, step);
    case DataType::i16:
      return reduce_integers<std::int16_t>(codes, step);
    case DataType::i8:
      return reduce_integers<std::int8_t>(codes, step);
    case DataType::u64:
      return reduce_integers<std::uint64_t>(codes, step);
    case DataType::u32:
      return reduce_integers<std::uint32_t>(codes, step);
    case DataType::u16:
      return reduce_integers<std::uint16_t>(codes, step);
    case DataType::u8:
      return reduce_integers<std::uint8_t>(codes, step);
    default: {
      const float result = reduce_floats(floats(), step);
      if (!std::isnan(result)) return code_of(step.type, static_cast<double>(result));
      const std::uint32_t sign_bit = 1U << (8 * size_of(step.type) - 1);
      return format_of(step.type).negative_zero_is_nan ? sign_bit : sign_bit - 1;
    }
  }
}

// Every pattern of bits: numbers of all sizes, subnormal ones, infinities, NaNs.
std::vector<std::byte> elements(DataType type, std::size_t count, std::uint32_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count * size_of(type));
  const std::uint64_t special[] = {0, 1, ~std::uint64_t{0}, std::uint64_t{1} << (8 * size_of(type) - 1)};
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t code = i % 17 < 4 ? special[(i + seed) % 4] : random();
    // Half of the f32 and f64 ones near 1, so that sums are inexact and do not drown.
    if (i % 2 == 0 && type == DataType::f32) code = std::bit_cast<std::uint32_t>(static_cast<float>(code % 1000003) / 7.0F);
    if (i % 2 == 0 && type == DataType::f64) code = std::bit_cast<std::uint64_t>(static_cast<double>(code % 1000003) / 7.0);
    std::memcpy(bytes.data() + i * size_of(type), &code, size_of(type));
  }
  return bytes;
}

using Case = std::tuple<std::size_t, std::size_t>;  // variant, type

class ReduceTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!variant().usable) GTEST_SKIP() << "this machine cannot run " << variant().name;
  }
  static const ReduceVariant& variant() { return reduce_variants()[std::get<0>(GetParam())]; }
  static DataType type() { return static_cast<DataType>(std::get<1>(GetParam())); }

  // `shift` bytes off any alignment. in_place: the target is that source.
  static void check(const ReduceStep& step, std::size_t sources, std::size_t count, std::size_t shift, std::ptrdiff_t in_place) {
    SCOPED_TRACE(std::string(name_of(step.op)) + " of " + std::to_string(sources) + " x " + std::to_string(count));
    const std::size_t bytes = count * size_of(step.type);
    std::vector<std::vector<std::byte>> memory;
    std::vector<const void*> from;
    for (std::size_t s = 0; s < sources; ++s) {
      auto& each = memory.emplace_back(shift, std::byte{0xa5});
      const auto data = elements(step.type, count, static_cast<std::uint32_t>(100 * s + count + static_cast<std::size_t>(step.op)));
      each.insert(each.end(), data.begin(), data.end());
      each.resize(each.size() + 64, std::byte{0x5a});
    }
    const auto before = memory;
    std::vector<std::byte> apart(shift + bytes + 64, std::byte{0x77});
    auto& target = in_place >= 0 ? memory[static_cast<std::size_t>(in_place)] : apart;
    for (const auto& each : memory) from.push_back(each.data() + shift);
    variant().function(target.data() + shift, from.data(), sources, count, step);
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<std::uint64_t> codes;
      for (const auto& each : before) codes.push_back(load(step.type, each.data() + shift + i * size_of(step.type)));
      const std::uint64_t found = load(step.type, target.data() + shift + i * size_of(step.type));
      const std::uint64_t wanted = expected(codes, step);
      if (is_nan(step.type, wanted) && is_nan(step.type, found)) continue;
      ASSERT_EQ(found, wanted) << "element " << i << ", from " << codes[0] << ", " << codes.back();
    }
    const std::byte edge = in_place >= 0 ? std::byte{0x5a} : std::byte{0x77};
    for (std::size_t i = 0; i < 64; ++i) ASSERT_EQ(target[shift + bytes + i], edge) << "written behind the end";
    for (std::size_t s = 0; s < sources; ++s) {
      if (static_cast<std::ptrdiff_t>(s) != in_place) {
        ASSERT_EQ(memory[s], before[s]);
      }
    }
  }
};

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return std::string(reduce_variants()[std::get<0>(info.param)].name) + "_" +
         std::string(name_of(static_cast<DataType>(std::get<1>(info.param))));
}
INSTANTIATE_TEST_SUITE_P(All, ReduceTest,
                         ::testing::Combine(::testing::Range(std::size_t{0}, reduce_variants().size()),
                                            ::testing::Range(std::size_t{0}, data_types)),
                         case_name);

TEST_P(ReduceTest, EveryOperationAndSize) {
  for (std::size_t op = 0; op < reduce_ops; ++op) {
    ReduceStep step{type(), static_cast<ReduceOp>(op), 1, 1};
    if (!check_reduction({step.type, step.op, 1}).ok()) continue;
    for (const std::size_t count : {0U, 1U, 7U, 8U, 1023U, 1024U, 1025U, 3001U}) check(step, 2, count, 0, -1);
    for (const std::size_t sources : {1U, 3U, 5U}) check(step, sources, 1100, 3, -1);
  }
}

TEST_P(ReduceTest, InPlaceOfAnySource) {
  for (std::ptrdiff_t in_place = 0; in_place < 3; ++in_place) check({type(), ReduceOp::sum, 1, 1}, 3, 2500, 1, in_place);
}

TEST_P(ReduceTest, DividesAndScales) {
  for (const std::uint32_t divisor : {2U, 3U, 1000U}) check({type(), ReduceOp::avg, 1, divisor}, 3, 1500, 0, -1);
  if (is_floating(type())) check({type(), ReduceOp::premul_sum, 0.3, 1}, 3, 1500, 0, -1);
}

TEST(Reduce, NamesAndSizes) {
  for (std::size_t i = 0; i < data_types; ++i) {
    const auto type = static_cast<DataType>(i);
    EXPECT_EQ(data_type(name_of(type)), type);
    EXPECT_TRUE(size_of(type) == 1 || size_of(type) == 2 || size_of(type) == 4 || size_of(type) == 8);
  }
  for (std::size_t i = 0; i < reduce_ops; ++i) EXPECT_EQ(reduce_op(name_of(static_cast<ReduceOp>(i))), static_cast<ReduceOp>(i));
  EXPECT_EQ(data_type("f33"), std::nullopt);
  EXPECT_EQ(reduce_op(""), std::nullopt);
  EXPECT_TRUE(check_reduction({DataType::u8, ReduceOp::bxor, 1}).ok());
  EXPECT_EQ(check_reduction({DataType::bf16, ReduceOp::band, 1}).code(), Code::invalid_argument);
  EXPECT_EQ(check_reduction({DataType::i32, ReduceOp::premul_sum, 2}).code(), Code::invalid_argument);
}

}  // namespace
}  // namespace hmc
