// Weighted sums against plain loops, for every instruction set: the same bits.
#include "hmc/weighted_sum.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <random>
#include <vector>

#include "layout/tile.h"

namespace hmc {
namespace {

constexpr std::array sum_types{DataType::f32,       DataType::f16,         DataType::bf16,
                               DataType::f8_e4m3fn, DataType::f8_e4m3fnuz, DataType::f8_e5m2};

// `count` small numbers of either sign, as elements of `type`.
std::vector<std::byte> numbers(DataType type, std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 333;
  std::vector<std::byte> made(count * size_of(type));
  tile_baseline.cast(made.data(), type, reinterpret_cast<const std::byte*>(values.data()), DataType::f32, count, 1);
  return made;
}

std::vector<std::byte> expected(const std::vector<std::byte>& rows, const std::vector<float>& weights, std::size_t terms,
                                std::size_t columns, DataType type) {
  std::vector<float> wide(rows.size() / size_of(type));
  tile_baseline.cast(reinterpret_cast<std::byte*>(wide.data()), DataType::f32, rows.data(), type, wide.size(), 1);
  std::vector<float> sums(weights.size() / terms * columns);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    for (std::size_t j = 0; j < columns; ++j) {
      volatile float product = wide[i * columns + j] * weights[i];  // rounded by itself
      sums[i / terms * columns + j] += product;
    }
  }
  std::vector<std::byte> made(sums.size() * size_of(type));
  tile_baseline.cast(made.data(), type, reinterpret_cast<const std::byte*>(sums.data()), DataType::f32, sums.size(), 1);
  return made;
}

TEST(WeightedSum, IsThatOfTheLoop) {
  std::mt19937 random(11);
  for (const DataType type : sum_types) {
    for (const std::size_t columns : {1U, 3U, 64U, 1023U, 1024U, 1025U, 2500U}) {
      for (const std::size_t terms : {1U, 2U, 7U}) {
        std::vector<float> weights(5 * terms);
        for (float& weight : weights) weight = static_cast<float>(random() % 1000) / 1000;
        const auto rows = numbers(type, weights.size() * columns, static_cast<std::uint32_t>(random()));
        std::vector<std::byte> out(5 * columns * size_of(type), std::byte{0xa5});
        ASSERT_TRUE(weighted_sum(out, rows, weights, terms, type).ok());
        EXPECT_EQ(out, expected(rows, weights, terms, columns, type)) << name_of(type) << ", " << columns << " x " << terms;
      }
    }
  }
}

#if defined(__x86_64__)
TEST(WeightedSum, VectorsGiveTheSameBits) {
  if (&tile_kernels() != &tile_avx2) GTEST_SKIP() << "no AVX2 on this machine";
  for (const DataType type : sum_types) {
    const auto values = numbers(type, 3 * 4099, 7);
    const std::size_t row = 4099 * size_of(type);
    const std::array<WeightedRow, 3> rows{{{values.data(), 0.37F}, {values.data() + row, -1.1F}, {values.data() + 2 * row, 5}}};
    std::vector<std::byte> a(row), b(row, std::byte{1});
    tile_baseline.weighted_sum(a.data(), type, rows.data(), rows.size(), 4099);
    tile_avx2.weighted_sum(b.data(), type, rows.data(), rows.size(), 4099);
    EXPECT_EQ(a, b) << name_of(type);
  }
}
#endif

// As if their rows and weights were zeros, which infinities and NaNs are not allowed to spoil.
TEST(WeightedSum, LeavesOutUnusedTerms) {
  std::mt19937 random(5);
  for (const DataType type : sum_types) {
    std::vector<float> weights(4 * 3), zeroed;
    std::vector<std::uint8_t> used;
    auto rows = numbers(type, weights.size() * 37, 3);
    auto cleared = rows;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] = static_cast<float>(random() % 1000) / 1000;
      used.push_back(random() % 2 == 0 ? 0 : 9);
      zeroed.push_back(used[i] == 0 ? 0 : weights[i]);
      if (used[i] != 0) continue;
      const std::size_t row = 37 * size_of(type);
      std::fill_n(rows.begin() + static_cast<std::ptrdiff_t>(i * row), row, std::byte{0xff});
      std::fill_n(cleared.begin() + static_cast<std::ptrdiff_t>(i * row), row, std::byte{0});
      weights[i] = std::numeric_limits<float>::infinity();
    }
    std::vector<std::byte> out(4 * 37 * size_of(type));
    ASSERT_TRUE(weighted_sum(out, rows, weights, 3, type, used).ok());
    EXPECT_EQ(out, expected(cleared, zeroed, 3, 37, type)) << name_of(type);

    std::vector<std::vector<std::byte>> apart;  // each row has memory of its own
    std::vector<const std::byte*> at;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const std::byte* const row = rows.data() + i * 37 * size_of(type);
      apart.emplace_back(row, row + 37 * size_of(type));
      at.push_back(used[i] == 0 ? nullptr : apart.back().data());
    }
    std::vector<std::byte> of_rows(out.size(), std::byte{1});
    ASSERT_TRUE(weighted_sum_of_rows(of_rows, at, weights, 3, type).ok());
    EXPECT_EQ(of_rows, out) << name_of(type);
  }
}

TEST(WeightedSum, OfNothing) {
  std::vector<std::byte> out(64, std::byte{1});
  ASSERT_TRUE(weighted_sum(out, {}, {}, 0, DataType::bf16).ok());
  EXPECT_EQ(out, std::vector<std::byte>(64));
  EXPECT_TRUE(weighted_sum({}, {}, {}, 4, DataType::f16).ok());
  out.assign(64, std::byte{1});
  ASSERT_TRUE(weighted_sum_of_rows(out, {}, {}, 0, DataType::bf16).ok());
  EXPECT_EQ(out, std::vector<std::byte>(64));
  EXPECT_TRUE(weighted_sum_of_rows({}, {}, {}, 4, DataType::f16).ok());
}

TEST(WeightedSum, RefusesWhatDoesNotFit) {
  std::vector<std::byte> out(16), rows(64);
  const std::vector<float> weights(4, 1);
  EXPECT_TRUE(weighted_sum(out, rows, weights, 4, DataType::f32).ok());
  const auto refused = [&](std::size_t out_bytes, std::size_t row_bytes, std::size_t terms, DataType type) {
    const Status status = weighted_sum(std::span(out).first(out_bytes), std::span(rows).first(row_bytes), weights, terms, type);
    return status.code() == Code::invalid_argument;
  };
  EXPECT_TRUE(refused(16, 63, 4, DataType::f32));
  EXPECT_TRUE(refused(15, 60, 4, DataType::f32));
  EXPECT_TRUE(refused(16, 64, 3, DataType::f32));
  EXPECT_TRUE(refused(16, 64, 0, DataType::f32));
  EXPECT_TRUE(refused(16, 64, 4, DataType::f64));
  EXPECT_TRUE(refused(16, 64, 4, DataType::i32));
  const std::vector<std::uint8_t> few(3, 1);
  EXPECT_EQ(weighted_sum(out, rows, weights, 4, DataType::f32, few).code(), Code::invalid_argument);
  const std::vector<const std::byte*> at(4, rows.data());
  const auto refused_rows = [&](std::size_t out_bytes, std::size_t count, std::size_t terms, DataType type) {
    const auto some = std::span(at).first(count);
    return weighted_sum_of_rows(std::span(out).first(out_bytes), some, weights, terms, type).code() == Code::invalid_argument;
  };
  EXPECT_FALSE(refused_rows(16, 4, 4, DataType::f32));
  EXPECT_TRUE(refused_rows(16, 3, 4, DataType::f32));
  EXPECT_TRUE(refused_rows(15, 4, 4, DataType::f32));
  EXPECT_TRUE(refused_rows(16, 4, 3, DataType::f32));
  EXPECT_TRUE(refused_rows(16, 4, 0, DataType::f32));
  EXPECT_TRUE(refused_rows(16, 4, 4, DataType::f64));
  EXPECT_EQ(prepare_weighted_sum(Device::cpu(), DataType::i32).status().code(), Code::invalid_argument);
  const auto ready = prepare_weighted_sum(Device::cpu(), DataType::bf16);
  EXPECT_TRUE(ready.ok() && *ready);
}

}  // namespace
}  // namespace hmc
