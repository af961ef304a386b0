// Estimates over islands: times that can be told by hand, splits, bounds, bad figures.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "collective/border_split.h"
#include "hmc/islands.h"

namespace hmc {
namespace {

constexpr double GB = 1e9;
constexpr std::uint64_t GiB = std::uint64_t{1} << 30;

IslandCards island(const std::string& name, int cards, double nic = 50 * GB) {
  return {.name = name, .cards = cards, .per_host = std::min(cards, 8), .inside = 400 * GB, .nic = nic, .memory = 5000 * GB};
}

IslandPlan planned(const std::vector<IslandCards>& islands, std::uint64_t bytes = GiB, const IslandOptions& options = {}) {
  const auto plan = plan_islands(bytes, islands, options);
  EXPECT_TRUE(plan.ok()) << plan.status().str();
  return plan.ok() ? *plan : IslandPlan();
}

TEST(IslandPlan, TwoIslandsTakeTheLongerOfInsideAndBetween) {
  const double n = static_cast<double>(GiB);
  const IslandPlan plan = planned({island("a", 8), island("b", 8)});
  EXPECT_EQ(plan.algorithm, "hierarchical");
  EXPECT_EQ(plan.cards, 16);
  ASSERT_EQ(plan.islands.size(), 2U);
  const double inside = 2 * n * 7 / 8 / (400 * GB), between = n / (8 * 50 * GB);
  EXPECT_NEAR(plan.islands[0].inside_seconds, inside, 1e-9);
  EXPECT_NEAR(plan.islands[0].between_seconds, between, 1e-9);
  EXPECT_GE(plan.seconds, std::max(inside, between));
  EXPECT_LE(plan.seconds, 1.05 * std::max(inside, between));
  EXPECT_EQ(plan.busiest, "links inside a");
  // Every card with every other: half of each card's bytes go by its NIC.
  EXPECT_EQ(plan.runner_up.algorithm, "flat");
  EXPECT_NEAR(plan.runner_up.seconds, 2 * n / 16 * 8 / (50 * GB) + 2e-5, 1e-9);
}

TEST(IslandPlan, ThinNicsAreTheBusiest) {
  const IslandPlan plan = planned({island("a", 8, 10 * GB), island("b", 8, 5 * GB)});
  EXPECT_EQ(plan.busiest, "NICs of b");
  EXPECT_NEAR(plan.islands[1].between_seconds, static_cast<double>(GiB) / (8 * 5 * GB), 1e-9);
  EXPECT_NEAR(plan.islands[0].share, 2.0 / 3, 1e-12);
}

TEST(IslandPlan, EvenSplitOverUnequalBorderLinksTakesLonger) {
  const std::vector<IslandCards> both{island("a", 8), island("b", 8)};
  const IslandPlan plan = planned(both, 16 * GiB, {.border = {1 * GB, 2 * GB, 4 * GB}});
  const double least = 16.0 * GiB / (7 * GB);
  EXPECT_NEAR(plan.islands[0].between_seconds, least, 1e-6);
  EXPECT_NEAR(plan.even_seconds / plan.seconds, 7.0 / 3, 0.01);
  EXPECT_LE(plan.seconds, 1.01 * least);
  EXPECT_EQ(plan.busiest, "border links of a");
}

class IslandCalls : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Calls, IslandCalls, ::testing::Values("all_reduce", "reduce_scatter", "reduce", "all_gather", "broadcast"),
                         [](const auto& call) { return std::string(call.param); });

TEST_P(IslandCalls, NoPlanBeatsItsLowerBound) {
  for (const auto& [cards, uneven] :
       {std::pair{1, false}, {2, false}, {8, false}, {8, true}, {64, false}, {64, true}, {10240, false}}) {
    for (const double nic : {1 * GB, 50 * GB, 900 * GB}) {
      for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{4096}, GiB, std::uint64_t{1} << 40}) {
        for (std::size_t count = 1; count <= 4; ++count) {
          std::vector<IslandCards> islands;
          for (std::size_t i = 0; i < count; ++i)
            islands.push_back(island(std::string(1, static_cast<char>('a' + i)), cards, nic * static_cast<double>(1 + i * i)));
          if (uneven && count > 1) {
            islands[0].cards *= 2;
            islands[1].cards = islands[1].per_host = 1;
          }
          const IslandPlan plan = planned(islands, bytes, {.call = GetParam()});
          const std::string what = std::to_string(count) + " islands of " + std::to_string(cards) + ", " + std::to_string(bytes);
          EXPECT_GE(plan.seconds, plan.lower_bound * (1 - 1e-9)) << what;
          EXPECT_GE(plan.runner_up.seconds, plan.seconds) << what;
          EXPECT_TRUE(std::isfinite(plan.even_seconds)) << what;
        }
      }
    }
  }
}

// Two islands of eight cards: what each resource of a card of either moves.
TEST(IslandPlan, LoadsOfEachCall) {
  const double n = static_cast<double>(GiB), stage = n * 7 / 8 / (400 * GB), border = n / (8 * 50 * GB);
  struct Expected {
    const char* call;
    double root_inside, inside, between;
  };
  for (const Expected& each :
       {Expected{"all_reduce", 2 * stage, 2 * stage, border}, Expected{"reduce_scatter", stage, stage, border / 2},
        Expected{"all_gather", stage, stage, border / 2}, Expected{"reduce", 2 * stage, stage, border},
        Expected{"broadcast", 2 * stage, stage, border}}) {
    const IslandPlan plan = planned({island("a", 8), island("b", 8)}, GiB, {.call = each.call});
    EXPECT_EQ(plan.call, each.call);
    EXPECT_NEAR(plan.islands[0].inside_seconds, each.root_inside, 1e-9) << each.call;
    EXPECT_NEAR(plan.islands[1].inside_seconds, each.inside, 1e-9) << each.call;
    for (const IslandLoad& load : plan.islands) EXPECT_NEAR(load.between_seconds, each.between, 1e-9) << each.call;
  }
  // A root of three islands receives two sums.
  const IslandPlan plan = planned({island("a", 8), island("b", 8), island("c", 8)}, GiB, {.call = "reduce"});
  EXPECT_NEAR(plan.islands[0].between_seconds, 2 * border, 1e-9);
  EXPECT_NEAR(plan.islands[2].between_seconds, border, 1e-9);
}

TEST(IslandPlan, TenThousandCardsTakeNoTime) {
  const std::clock_t begin = std::clock();  // of the CPU: a busy machine takes longer
  const IslandPlan plan = planned({island("a", 5120), island("b", 5120)});
  EXPECT_LT(std::clock() - begin, 2 * CLOCKS_PER_SEC);
  EXPECT_EQ(plan.algorithm, "hierarchical");
  // Within an island 639 of 640 parts of an eighth go by the NIC, both ways.
  const double among = 2.0 * GiB / 8 * 639 / 640, exchange = static_cast<double>(GiB) / 5120;
  EXPECT_NEAR(plan.islands[0].between_seconds, (among + exchange) / (50 * GB), 1e-9);
}

TEST(IslandPlan, SplitsEndTogether) {
  const std::vector<double> links{1, 2, 4};
  EXPECT_EQ(split_by_bandwidth(links), (std::vector<double>{1 / 7.0, 2 / 7.0, 4 / 7.0}));
  const std::vector<double> near{3, 4, 5};
  const auto parts = split_among_islands(near);
  EXPECT_NEAR(std::accumulate(parts.begin(), parts.end(), 0.0), 1, 1e-12);
  for (std::size_t i = 0; i < near.size(); ++i) EXPECT_NEAR((1 + parts[i]) / near[i], 4.0 / 12, 1e-12);
  const auto slow = split_among_islands(std::vector<double>{1, 10, 10, 10});
  EXPECT_NEAR(slow[0], 0, 1e-12);
  EXPECT_NEAR(std::accumulate(slow.begin(), slow.end(), 0.0), 1, 1e-12);
}

TEST(IslandPlan, TextFitsEightyColumns) {
  const IslandPlan plan = planned({island("an island with a very long name indeed", 64), island("b", 8)}, std::uint64_t{1} << 50);
  std::istringstream text(plan.str());
  for (std::string line; std::getline(text, line);) EXPECT_LE(line.size(), 80U) << line;
}

TEST(IslandPlan, BadFiguresAreRefused) {
  const auto refused = [](const IslandCards& one, const IslandOptions& options = {}, std::uint64_t bytes = 8) {
    return plan_islands(bytes, {&one, 1}, options).status().code() == Code::invalid_argument;
  };
  const IslandCards fine = island("a", 8);
  EXPECT_FALSE(refused(fine));
  EXPECT_EQ(plan_islands(8, {}).status().code(), Code::invalid_argument);
  for (const double rate : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (double IslandCards::* field : {&IslandCards::inside, &IslandCards::nic, &IslandCards::memory}) {
      IslandCards wrong = fine;
      wrong.*field = rate;
      EXPECT_TRUE(refused(wrong));
    }
    EXPECT_TRUE(refused(fine, {.border = {GB, rate}}));
  }
  for (const auto& [cards, per_host] : {std::pair(0, 8), {-8, 8}, {9, 8}, {8, 0}, {8, -1}, {std::numeric_limits<int>::max(), 1}}) {
    IslandCards wrong = fine;
    wrong.cards = cards;
    wrong.per_host = per_host;
    EXPECT_TRUE(refused(wrong)) << cards << " " << per_host;
  }
  EXPECT_TRUE(refused(fine, {.chunk = 0}));
  EXPECT_TRUE(refused(fine, {.nic_latency = -1}));
  EXPECT_TRUE(refused(fine, {.border = std::vector<double>(9, GB)}));
  EXPECT_TRUE(refused(island("a", 16), {.border = {GB}}));
  EXPECT_TRUE(refused(fine, {}, ~std::uint64_t{0}));
}

TEST(IslandPlan, LongNamesAreCutBetweenCharacters) {
  const std::string nineteen(19, 'x');
  const std::string text = planned({island(nineteen + "\u00e9", 8), island("b", 8)}).str();
  EXPECT_NE(text.find("\n  " + nineteen + "   "), std::string::npos) << text;
}

}  // namespace
}  // namespace hmc
