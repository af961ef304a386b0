// Sums that are rounded once: by every instruction set, the number of the type that is nearest to the sum of all inputs.
#include "device/reduce_exact.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "device/number_formats.h"
#include "device/reduce.h"
#include "device/reduce_variants.h"

namespace hmc {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

double sum_of(const std::vector<double>& values, bool to_odd = false) {
  ExactSum sum;
  for (const double value : values) sum.add(value);
  return sum.rounded(to_odd);
}

TEST(ExactSum, RoundsToNearestEven) {
  const double ulp = std::ldexp(1, -52);
  EXPECT_EQ(sum_of({}), 0);
  EXPECT_EQ(sum_of({1, ulp / 2}), 1);
  EXPECT_EQ(sum_of({1 + ulp, ulp / 2}), 1 + 2 * ulp);
  EXPECT_EQ(sum_of({1, ulp / 2, std::ldexp(1, -1074)}), 1 + ulp);
  EXPECT_EQ(sum_of({-1, -ulp / 2, -std::ldexp(1, -1074)}), -1 - ulp);
  EXPECT_EQ(sum_of({1, ulp / 2, -std::ldexp(1, -1074)}), 1);
  EXPECT_EQ(sum_of({2 - ulp, ulp / 2}), 2);  // a carry into the next binade
  EXPECT_EQ(sum_of({1e300, 1, -1e300}), 1);
  EXPECT_EQ(sum_of({1e-320, -1e-320, 3e-324}), 3e-324);
  EXPECT_EQ(sum_of({std::ldexp(1, -1022), -std::ldexp(1, -1074)}), std::ldexp(1, -1022) - std::ldexp(1, -1074));
}

TEST(ExactSum, RoundsToOdd) {
  const double ulp = std::ldexp(1, -52);
  EXPECT_EQ(sum_of({1, ulp / 1024}, true), 1 + ulp);
  EXPECT_EQ(sum_of({1 + ulp, ulp / 1024}, true), 1 + ulp);
  EXPECT_EQ(sum_of({1 + ulp, -ulp / 1024}, true), 1 + ulp);
  EXPECT_EQ(sum_of({1 + 2 * ulp, -ulp / 1024}, true), 1 + ulp);
  EXPECT_EQ(sum_of({-1, -ulp / 1024}, true), -1 - ulp);
  EXPECT_EQ(sum_of({1, ulp}, true), 1 + ulp);
}

TEST(ExactSum, OverflowsOnlyWhereTheSumDoes) {
  const double most = std::numeric_limits<double>::max();
  EXPECT_EQ(sum_of({most, most, -most}), most);
  EXPECT_EQ(sum_of({most, most}), infinity);
  EXPECT_EQ(sum_of({-most, -most}), -infinity);
  EXPECT_EQ(sum_of({-most, -most, most, most}), 0);
  EXPECT_FALSE(std::signbit(sum_of({-0.0, -0.0})));
  EXPECT_EQ(sum_of({infinity, 1}), infinity);
  EXPECT_TRUE(std::isnan(sum_of({infinity, -infinity})));
  EXPECT_TRUE(std::isnan(sum_of({std::nan(""), 1})));
}

TEST(ExactSum, DoesNotDependOnTheOrder) {
  std::mt19937_64 random(7);
  std::vector<double> values;
  while (values.size() < 300) {
    const auto value = std::bit_cast<double>(random());
    if (std::isfinite(value)) values.push_back(value);
  }
  for (std::size_t i = 0; i < 150; ++i) values.push_back(-values[i] * (i % 3 == 0 ? 1 : 0.5));
  const double first = sum_of(values), odd = sum_of(values, true);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(values.begin(), values.end(), random);
    ASSERT_EQ(sum_of(values), first);
    ASSERT_EQ(sum_of(values, true), odd);
  }
}

// ---- the loops: checked by comparing sums, not by rounding them another time ----

// A number of a type by its code, whose magnitudes are in the order of the numbers.
template <class Format, class Code>
struct Coded {
  static constexpr std::size_t bytes = sizeof(Code);
  static double value(std::uint64_t code) { return Format::decode(static_cast<Code>(code)); }
};
template <class Code, class Float>
struct Coded<Plain<Float>, Code> {
  static constexpr std::size_t bytes = sizeof(Code);
  static double value(std::uint64_t code) { return std::bit_cast<Float>(static_cast<Code>(code)); }
};
struct TypeOfCode {
  DataType type;
  std::size_t bytes;
  double (*value)(std::uint64_t code);
  std::uint64_t largest;  // code of the largest finite number
};
template <class Format, class Code>
constexpr TypeOfCode row(DataType type, std::uint64_t largest) {
  return {type, sizeof(Code), Coded<Format, Code>::value, largest};
}
const std::vector<TypeOfCode> types{row<Plain<double>, std::uint64_t>(DataType::f64, 0x7fef'ffff'ffff'ffff),
                                    row<Plain<float>, std::uint32_t>(DataType::f32, 0x7f7f'ffff),
                                    row<Half, std::uint16_t>(DataType::f16, 0x7bff),
                                    row<Bfloat16, std::uint16_t>(DataType::bf16, 0x7f7f),
                                    row<Float8E4m3fn, std::uint8_t>(DataType::f8_e4m3fn, 0x7e),
                                    row<Float8E4m3fnuz, std::uint8_t>(DataType::f8_e4m3fnuz, 0x7f),
                                    row<Float8E5m2, std::uint8_t>(DataType::f8_e5m2, 0x7b)};

std::uint64_t code_at(const TypeOfCode& type, const void* memory, std::size_t index) {
  std::uint64_t code = 0;
  std::memcpy(&code, static_cast<const std::byte*>(memory) + index * type.bytes, type.bytes);
  return code;
}

// The sign of 2 * (sum of inputs) - a - b: on which side of the middle of a and b the sum is.
double side(const std::vector<double>& inputs, double a, double b) {
  ExactSum sum;
  for (const double input : inputs) {
    sum.add(input);
    sum.add(input);
  }
  sum.add(-a);
  sum.add(-b);
  return sum.rounded(false);
}

// Whether `code` is the number nearest to the sum, the even one of two that are as near.
testing::AssertionResult is_nearest(const TypeOfCode& type, std::uint64_t code, const std::vector<double>& inputs) {
  double exact = sum_of(inputs);
  const double found = type.value(code);
  const auto wrong = [&] {
    auto result = ::testing::AssertionFailure() << name_of(type.type) << ": " << found << " for " << exact << " from";
    for (const double input : inputs) result << " " << input;
    return result;
  };
  if (std::isnan(exact)) return std::isnan(found) ? ::testing::AssertionSuccess() : wrong();
  const double largest = type.value(type.largest), before = type.value(type.largest - 1);
  // As if there were numbers beyond. Of f64 there is no double for that one, so that sums near the limit are left to ExactSum.
  if (type.type == DataType::f64) return found == exact ? ::testing::AssertionSuccess() : wrong();
  const double beyond = 2 * largest - before;
  const auto magnitude = [&](std::uint64_t each) { return each > type.largest ? beyond : type.value(each); };
  if (std::isinf(exact)) return !std::isfinite(found) ? ::testing::AssertionSuccess() : wrong();
  if (!std::isfinite(found)) {
    const double sign = exact < 0 ? -1 : 1;
    return sign * side(inputs, sign * largest, sign * beyond) >= 0 ? ::testing::AssertionSuccess() : wrong();
  }
  const std::uint64_t sign_bit = std::uint64_t{1} << (8 * type.bytes - 1), absolute = code & ~sign_bit;
  const double sign = (code & sign_bit) != 0 ? -1 : 1;
  if (absolute == 0) {
    if (sign < 0 && !(exact < 0)) return wrong();  // a sum of 0 is +0
    const double least = type.value(1);
    return std::fabs(side(inputs, 0, 0)) <= least ? ::testing::AssertionSuccess() : wrong();
  }
  const double above = sign * side(inputs, found, sign * magnitude(absolute + 1));
  const double below = sign * side(inputs, found, sign * magnitude(absolute - 1));
  const bool even = (absolute & 1) == 0;
  return (above < 0 || (above == 0 && even)) && (below > 0 || (below == 0 && even)) ? ::testing::AssertionSuccess() : wrong();
}

// Any code; codes of numbers of about one size; and such that cancel each other.
std::vector<std::byte> inputs_of(const TypeOfCode& type, std::size_t count, std::size_t source, int kind) {
  std::mt19937_64 random(1000 * source + count + static_cast<std::size_t>(kind));
  std::vector<std::byte> bytes(count * type.bytes), opposite;
  if (kind == 2 && source % 2 == 1) opposite = inputs_of(type, count, source - 1, kind);
  const std::uint64_t sign = std::uint64_t{1} << (8 * type.bytes - 1);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t code = random();
    if (kind != 0) {
      std::mt19937_64 same(i);
      const std::uint64_t near = same() % (type.largest + 1), spread = type.largest / 32 + 1;
      code = std::min(near - std::min(near, random() % spread), type.largest) | (random() % 2 != 0 ? sign : 0);
      if (!opposite.empty() && i % 3 != 0) code = code_at(type, opposite.data(), i) ^ sign;
    }
    std::memcpy(bytes.data() + i * type.bytes, &code, type.bytes);
  }
  return bytes;
}

class ReduceExactly : public ::testing::TestWithParam<std::tuple<std::size_t, std::size_t>> {  // variant, type
 protected:
  void SetUp() override {
    if (!variant().usable) GTEST_SKIP() << "this machine cannot run " << variant().name;
  }
  static const ReduceVariant& variant() { return reduce_variants()[std::get<0>(GetParam())]; }
  static const TypeOfCode& type() { return types[std::get<1>(GetParam())]; }
};
INSTANTIATE_TEST_SUITE_P(All, ReduceExactly,
                         ::testing::Combine(::testing::Range(std::size_t{0}, reduce_variants().size()),
                                            ::testing::Range(std::size_t{0}, types.size())),
                         [](const auto& info) {
                           return std::string(reduce_variants()[std::get<0>(info.param)].name) + "_" +
                                  std::string(name_of(types[std::get<1>(info.param)].type));
                         });

TEST_P(ReduceExactly, FindsTheNearestNumber) {
  constexpr std::size_t shift = 3;
  for (const int kind : {0, 1, 2}) {
    for (const std::size_t sources : {1U, 2U, 3U, 4U, 9U}) {
      for (const std::size_t count : {0U, 1U, 15U, 16U, 17U, 203U}) {
        std::vector<std::vector<std::byte>> memory;
        std::vector<const void*> from;
        for (std::size_t s = 0; s < sources; ++s) {
          auto& each = memory.emplace_back(shift, std::byte{0xa5});
          const auto data = inputs_of(type(), count, s, kind);
          each.insert(each.end(), data.begin(), data.end());
        }
        for (const auto& each : memory) from.push_back(each.data() + shift);
        std::vector<std::byte> target(shift + count * type().bytes + 64, std::byte{0x77});
        variant().function(target.data() + shift, from.data(), sources, count, {.type = type().type, .exact = true});
        for (std::size_t i = 0; i < count; ++i) {
          std::vector<double> inputs;
          for (const void* each : from) inputs.push_back(type().value(code_at(type(), each, i)));
          ASSERT_TRUE(is_nearest(type(), code_at(type(), target.data() + shift, i), inputs)) << "element " << i;
        }
        for (std::size_t i = 0; i < 64; ++i) ASSERT_EQ(target[shift + count * type().bytes + i], std::byte{0x77});
      }
    }
  }
}

TEST_P(ReduceExactly, AnyOrderGivesTheSameBits) {
  for (const auto& [op, scale, divisor] :
       {std::tuple(ReduceOp::sum, 1.0, 1U), std::tuple(ReduceOp::avg, 1.0, 5U), std::tuple(ReduceOp::premul_sum, 0.3, 1U)}) {
    const ReduceStep step{type().type, op, scale, divisor, true};
    constexpr std::size_t count = 77;
    std::vector<std::vector<std::byte>> memory;
    for (std::size_t s = 0; s < 5; ++s) memory.push_back(inputs_of(type(), count, s, s % 2 == 0 ? 1 : 2));
    std::vector<const void*> from;
    for (const auto& each : memory) from.push_back(each.data());
    std::ranges::sort(from);
    std::vector<std::byte> first;
    do {
      std::vector<std::byte> target(count * type().bytes);
      variant().function(target.data(), from.data(), from.size(), count, step);
      if (first.empty()) first = target;
      ASSERT_EQ(target, first);
    } while (std::ranges::next_permutation(from).found);
  }
}

TEST_P(ReduceExactly, InPlaceOfAnySource) {
  constexpr std::size_t count = 101;
  std::vector<std::byte> wanted(count * type().bytes);
  for (std::size_t in_place = 0; in_place < 4; ++in_place) {
    std::vector<std::vector<std::byte>> memory;
    std::vector<const void*> from;
    for (std::size_t s = 0; s < 3; ++s) memory.push_back(inputs_of(type(), count, s, 1));
    for (const auto& each : memory) from.push_back(each.data());
    auto& target = in_place == 0 ? wanted : memory[in_place - 1];
    variant().function(target.data(), from.data(), 3, count, {.type = type().type, .exact = true});
    ASSERT_EQ(target, wanted) << in_place;
  }
}

TEST(ReduceExact, SumsOfThreeNeedNoOrder) {
  const float values[3] = {1e8F, 1, -1e8F};
  float result = 0;
  const void* const from[3] = {values, values + 1, values + 2};
  reduce_on_cpu(&result, from, 1, {.type = DataType::f32});
  EXPECT_EQ(result, 0);
  reduce_on_cpu(&result, from, 1, {.type = DataType::f32, .exact = true});
  EXPECT_EQ(result, 1);
}

TEST(ReduceExact, OtherOperationsAreRefused) {
  for (const ReduceOp op : {ReduceOp::product, ReduceOp::min, ReduceOp::max})
    EXPECT_EQ(check_reduction({DataType::f32, op, 1, true}).code(), Code::invalid_argument);
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::premul_sum})
    EXPECT_TRUE(check_reduction({DataType::f32, op, 1, true}).ok());
  EXPECT_TRUE(check_reduction({DataType::i32, ReduceOp::sum, 1, true}).ok());
}

}  // namespace
}  // namespace hmc
