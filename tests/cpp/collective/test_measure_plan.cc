// Which links are measured, with which messages, and what becomes of the figures: shares at the border.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "collective/border_split.h"
#include "collective/cost.h"
#include "collective/measure_plan.h"
#include "collective/plan_hierarchical.h"
#include "collective/plan_simulator.h"
#include "testing.h"

namespace hmc {
namespace {

using testing::PlanSimulator;
using testing::SimulatedRank;

std::vector<Island> islands_of_sizes(const std::vector<std::size_t>& sizes) {
  std::vector<Island> islands;
  std::uint32_t next = 0;
  for (const std::size_t size : sizes) {
    Island island{{}, std::vector<double>(size, 1)};
    for (std::size_t i = 0; i < size; ++i) island.ranks.push_back(next++);
    islands.push_back(std::move(island));
  }
  return islands;
}

std::size_t island_at(const std::vector<Island>& islands, std::uint32_t rank) {
  for (std::size_t i = 0; i < islands.size(); ++i) {
    if (std::ranges::binary_search(islands[i].ranks, rank)) return i;
  }
  return islands.size();
}

TEST(MeasurePlan, EveryRankIsMeasuredAcrossABorderAndFewWithin) {
  for (const auto& sizes : std::vector<std::vector<std::size_t>>{{1},
                                                                 {2},
                                                                 {9},
                                                                 {1, 1},
                                                                 {3, 3},
                                                                 {8, 8},
                                                                 {16, 16},
                                                                 {17, 16},
                                                                 {1, 255},
                                                                 {1, 50, 1, 50},
                                                                 {128, 128},
                                                                 std::vector<std::size_t>(64, 4)}) {
    const auto islands = islands_of_sizes(sizes);
    const auto pairs = pairs_to_measure(islands);
    std::set<std::uint32_t> at_border;
    std::set<std::pair<std::uint32_t, std::uint32_t>> different;
    std::vector<std::size_t> within(islands.size());
    std::size_t across = 0;
    for (const RankPair& pair : pairs) {
      ASSERT_NE(pair.first, pair.second);
      different.insert(std::minmax(pair.first, pair.second));
      const std::size_t a = island_at(islands, pair.first), b = island_at(islands, pair.second);
      ASSERT_TRUE(a < islands.size() && b < islands.size());
      if (a == b) {
        ++within[a];
      } else {
        ++across;
        at_border.insert({pair.first, pair.second});
      }
    }
    std::size_t ranks = 0;
    for (std::size_t i = 0; i < islands.size(); ++i) {
      EXPECT_EQ(within[i], std::min<std::size_t>(3, sizes[i] - 1));
      ranks += sizes[i];
    }
    EXPECT_LE(across, std::max<std::size_t>(64, 2 * ranks));
    EXPECT_EQ(different.size(), pairs.size()) << "a pair is measured twice";
    EXPECT_EQ(at_border.size(), islands.size() > 1 ? ranks : 0);
  }
}

TEST(MeasurePlan, SmallBordersAreMeasuredCompletely) {
  const auto pairs = pairs_to_measure(islands_of_sizes({3, 2}));
  const std::vector<RankPair> expected{{0, 1}, {1, 2}, {3, 4}, {0, 3}, {0, 4}, {1, 3}, {1, 4}, {2, 3}, {2, 4}};
  EXPECT_EQ(pairs, expected);
}

// Both ends in a network that delivers in random order: everything arrives, and ranks outside have nothing to do.
TEST(MeasurePlan, LegsFitTogether) {
  for (const std::vector<Leg>& legs :
       std::vector<std::vector<Leg>>{{},
                                     {{true, 0}},
                                     {{false, 0}, {true, 8}, {false, 8}, {true, 8}},
                                     {{true, measured_chunk}, {false, 0}},
                                     {{true, 0}, {false, 5 * measured_chunk}, {true, 9 * measured_chunk}}}) {
    for (unsigned seed = 1; seed <= 5; ++seed) {
      const RankPair pair{2, 0};
      std::vector<SimulatedRank> ranks(3);
      for (std::uint32_t r = 0; r < 3; ++r) {
        ranks[r].in.assign(measured_buffer, std::byte{1});
        ranks[r].out.assign(measured_buffer, std::byte{0});
        ranks[r].schedule = plan_legs(r, pair, legs);
      }
      EXPECT_TRUE(ranks[1].schedule.steps.empty());
      PlanSimulator network(std::move(ranks), seed);
      ASSERT_EQ(network.run(), "") << legs.size() << " legs";
    }
  }
  // More than the buffers hold goes round in them.
  for (const Step& step : plan_legs(0, {0, 1}, std::vector<Leg>{{true, 40 * measured_chunk}}).steps)
    ASSERT_LE(step.from.offset + step.bytes, measured_buffer);
}

TEST(MeasurePlan, EffortStaysInItsRange) {
  const Effort fast = Effort::of_link(1e-6, 1e-5), slow = Effort::of_link(0.05, 0.1), still = Effort::of_link(0, 0);
  EXPECT_EQ(fast.chunks, 64U);
  EXPECT_EQ(fast.trips, 16U);
  EXPECT_EQ(fast.repetitions, Effort::most_repetitions);
  EXPECT_EQ(slow, (Effort{.chunks = 2, .trips = 1, .repetitions = Effort::fewest_repetitions}));
  EXPECT_EQ(still, fast);
  EXPECT_EQ(Effort::of_link(-1, -1).trips, 16U);
  EXPECT_EQ(Effort::decode(fast.encode()), fast);
  EXPECT_EQ(Effort::decode(slow.encode()), slow);
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    const Effort any = Effort::decode(i == 0 ? 0 : i == 1 ? ~std::uint64_t{0} : random());
    ASSERT_TRUE(any.chunks >= 2 && any.chunks <= 64 && any.trips >= 1 && any.trips <= 16);
    ASSERT_TRUE(any.repetitions >= Effort::fewest_repetitions && any.repetitions <= Effort::most_repetitions);
  }
}

TEST(BorderSplit, NoiseMakesNoDifference) {
  const auto alike = without_noise(std::vector<double>{100, 10.5, 10, 99, 11, 20});
  EXPECT_EQ(alike, (std::vector<double>{99.5, 10.5, 10.5, 99.5, 10.5, 20}));
  EXPECT_TRUE(without_noise({}).empty());
}

// Two islands of three hosts, whose links have 1, 2 and 4 GB/s: between two hosts the slower link counts.
std::vector<MeasuredLink> border_links(std::mt19937& random) {
  std::uniform_real_distribution noise(0.95, 1.05);
  std::vector<MeasuredLink> links;
  for (int a = 0; a < 6; ++a) {
    for (int b = 0; b < 6; ++b) {
      if (a != b) links.push_back({a, b, 5, (a / 3 == b / 3 ? 400e9 : 1e9 * (1 << std::min(a % 3, b % 3))) * noise(random)});
    }
  }
  return links;
}

TEST(BorderSplit, MeasuredBordersHaveTheirProportions) {
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    const auto links = border_links(random);
    const auto even = islands_of_sizes({3, 3});
    auto measured = even;
    ASSERT_TRUE(use_measured_borders(links, measured));
    for (const Island& island : measured) {
      EXPECT_NEAR(island.bandwidths[1] / island.bandwidths[0], 2, 0.25);
      EXPECT_NEAR(island.bandwidths[2] / island.bandwidths[0], 4, 0.5);
    }
    CostModel cost(6, {5e-6, 1e9}, {.reduction = 1e12});
    for (const MeasuredLink& link : links)
      cost.link(static_cast<std::uint32_t>(link.source), static_cast<std::uint32_t>(link.target)).bandwidth = link.bandwidth;
    constexpr std::uint64_t bytes = 256 << 20;
    const auto seconds = [&](const std::vector<Island>& islands) {
      std::vector<Schedule> schedules;
      for (std::uint32_t r = 0; r < 6; ++r) schedules.push_back(plan_hierarchical_all_reduce(r, islands, bytes, 4, {}));
      const auto predicted = predict(schedules, cost);
      EXPECT_TRUE(predicted.ok());
      return predicted.ok() ? *predicted : 0.0;
    };
    EXPECT_GE(seconds(even), 2 * seconds(measured));
  }
}

TEST(BorderSplit, BordersThatWereNotMeasuredStay) {
  const auto before = islands_of_sizes({2, 2});
  const std::vector<MeasuredLink> all{{0, 2, 5, 1e9}, {2, 0, 5, 3e9}, {1, 3, 5, 2e9}, {3, 1, 5, 2e9}, {0, 1, 1, 9e9}};
  auto islands = before;
  ASSERT_TRUE(use_measured_borders(all, islands));
  EXPECT_EQ(islands[0].bandwidths, (std::vector<double>{1e9, 2e9}));  // the slower direction
  EXPECT_EQ(islands[1].bandwidths, (std::vector<double>{1e9, 2e9}));
  for (std::size_t missing = 0; missing < 4; ++missing) {
    auto links = all;
    links.erase(links.begin() + static_cast<std::ptrdiff_t>(missing));
    islands = before;
    EXPECT_FALSE(use_measured_borders(links, islands)) << missing;
    EXPECT_EQ(islands[0].bandwidths, before[0].bandwidths);
  }
}

}  // namespace
}  // namespace hmc
