// How a large operation is shared out among rails.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "transport/verbs/split.h"

namespace hmc::verbs {
namespace {

constexpr std::size_t chunk = 64 << 10;

// What each rail carries of `total` bytes, where each asks as soon as it has room and carries at its rate.
std::vector<std::size_t> share(std::vector<RailLoad> rails, std::size_t total) {
  std::vector<std::size_t> carried(rails.size(), 0);
  std::vector<double> free_at(rails.size(), 0);
  double now = 0;
  for (std::size_t left = total; left != 0;) {
    bool taken = false;
    for (std::size_t i = 0; i < rails.size() && left != 0; ++i) {
      rails[i].in_flight = free_at[i] > now ? static_cast<std::size_t>((free_at[i] - now) * rails[i].rate) : 0;
      const std::size_t bytes = std::min(chunk, left);
      if (rails[i].in_flight >= 4 * chunk || !takes_chunk(rails, i, bytes, left)) continue;
      free_at[i] = std::max(free_at[i], now) + static_cast<double>(bytes) / rails[i].rate;
      carried[i] += bytes;
      left -= bytes;
      taken = true;
    }
    if (!taken) now += 1e-6;
    if (now > 60) return {};  // all decline
  }
  return carried;
}

double part(std::size_t carried, std::size_t total) { return static_cast<double>(carried) / static_cast<double>(total); }

TEST(VerbsSplit, BySpeed) {
  constexpr std::size_t total = 256 << 20;
  const auto carried = share({{1e9}, {3e9}, {1e9}}, total);
  ASSERT_EQ(carried.size(), 3U);
  EXPECT_NEAR(part(carried[0], total), 0.2, 0.02);
  EXPECT_NEAR(part(carried[1], total), 0.6, 0.02);
  EXPECT_NEAR(part(carried[2], total), 0.2, 0.02);
}

TEST(VerbsSplit, ASlowRailGetsNoLastPiece) {
  const auto carried = share({{1e9}, {1e7}}, 1 << 20);
  ASSERT_EQ(carried.size(), 2U);
  EXPECT_EQ(carried[1], 0U);
}

TEST(VerbsSplit, NearestFirst) {
  const auto little = share({{1e9, 0, false}, {1e9, 0, true}}, chunk);
  ASSERT_EQ(little.size(), 2U);
  EXPECT_EQ(little[0], 0U);
  constexpr std::size_t total = 256 << 20;
  const auto much = share({{1e9, 0, false}, {1e9, 0, true}}, total);
  ASSERT_EQ(much.size(), 2U);
  EXPECT_GT(part(much[0], total), 0.3);
  EXPECT_GE(much[1], much[0]);
}

// Whatever the rates: somebody takes.
TEST(VerbsSplit, NeverAllDecline) {
  const std::array<double, 5> rates{0, 1, 1e8, 1e9, 5e10};
  for (const double a : rates) {
    for (const double b : rates) {
      for (const double c : rates) {
        for (unsigned far = 0; far < 8; ++far) {
          const std::array<RailLoad, 3> rails{{{a, 0, (far & 1) == 0}, {b, chunk, (far & 2) == 0}, {c, 3 * chunk, (far & 4) == 0}}};
          bool taken = false;
          for (std::size_t i = 0; i < rails.size(); ++i) taken = taken || takes_chunk(rails, i, chunk, chunk);
          EXPECT_TRUE(taken) << a << ' ' << b << ' ' << c << ' ' << far;
        }
      }
    }
  }
}

// A rail of which next to nothing is expected is measured again all the same, and takes little time of the others.
TEST(VerbsSplit, SlowRailsAreProbed) {
  for (const double slow : {0.0, 1e5, 1e7, 1e8}) {
    std::array<RailLoad, 2> rails{{{1e10}, {slow}}};
    std::size_t probes = 0;
    constexpr std::size_t total = std::size_t{64} << 30;
    for (std::size_t sent = 0; sent < total; sent += chunk) {
      const bool probe = takes_chunk(rails, 1, chunk, 4 * chunk);
      probes += probe ? 1 : 0;
      rails[1].passed = probe ? 0 : rails[1].passed + chunk;
    }
    EXPECT_GE(probes, 16U) << slow;
    const double most = static_cast<double>(total) / static_cast<double>(chunk) / 50 * std::max(slow, 1e10 / 512) / 1e10;
    EXPECT_LE(static_cast<double>(probes), most) << slow;
    rails[1].passed = std::size_t{1} << 50;
    EXPECT_FALSE(takes_chunk(rails, 1, 1000, 1000)) << slow;  // too little to measure
  }
}

TEST(VerbsSplit, Windows) {
  EXPECT_EQ(window_of(0), 1U << 20);
  EXPECT_EQ(window_of(1.5e10), 1500000U);
  EXPECT_EQ(window_of(1e12), 2U << 20);
}

}  // namespace
}  // namespace hmc::verbs
