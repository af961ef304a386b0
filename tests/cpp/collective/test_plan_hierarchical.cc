// The hierarchical all_reduce: carried out in random order by a simulated network, and timed over links of unequal bandwidth.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "collective/choose.h"
#include "collective/cost.h"
#include "collective/island_chunks.h"
#include "collective/plan_hierarchical.h"
#include "collective/plan_simulator.h"
#include "collective/plan_spread.h"
#include "testing.h"

namespace hmc {
namespace {

using testing::pattern_byte;
using testing::PlanSimulator;
using testing::SimulatedRank;

// Islands of those sizes, of ranks dealt out at random.
std::vector<Island> random_islands(const std::vector<std::uint32_t>& sizes, std::mt19937& random) {
  std::vector<std::uint32_t> ranks(std::accumulate(sizes.begin(), sizes.end(), 0U));
  std::iota(ranks.begin(), ranks.end(), 0U);
  std::ranges::shuffle(ranks, random);
  std::vector<Island> islands;
  std::size_t at = 0;
  for (const std::uint32_t size : sizes) {
    Island island;
    for (std::uint32_t i = 0; i < size; ++i) {
      island.ranks.push_back(ranks[at++]);
      island.bandwidths.push_back(std::uniform_real_distribution(0.1, 10.0)(random));
    }
    std::ranges::sort(island.ranks);
    islands.push_back(std::move(island));
  }
  return islands;
}

std::vector<std::vector<std::uint32_t>> island_sizes() {
  return testing::swept<std::vector<std::uint32_t>>(
      {{2, 2}, {1, 2}, {3, 1}, {2, 3, 4}, {1, 1, 2}, {8, 1, 1, 5}, {2, 2, 2, 2, 2, 2, 2}}, {{3, 1}, {2, 3, 4}});
}

std::byte input(std::uint32_t rank, std::uint64_t i) { return pattern_byte(i, rank * 7919 + 1); }

// In rank order within each island, then in the order of the islands.
std::byte expected(const std::vector<Island>& islands, std::uint64_t i) {
  std::byte result{0};
  for (const Island& island : islands) {
    std::byte sum{0};
    for (const std::uint32_t rank : island.ranks) sum = PlanSimulator::fold(sum, input(rank, i));
    result = PlanSimulator::fold(result, sum);
  }
  return result;
}

TEST(PlanHierarchical, PiecesAreTheWholeArray) {
  std::mt19937 random(1);
  for (const auto& sizes : island_sizes()) {
    for (const std::uint64_t elements : {1U, 2U, 7U, 1000U, 100003U}) {
      const auto islands = random_islands(sizes, random);
      std::uint64_t at = 0;
      for (const IslandPiece& piece : island_pieces(islands, elements * 8, 8)) {
        ASSERT_EQ(piece.part.offset, at);
        ASSERT_GT(piece.part.bytes, 0U);
        ASSERT_EQ(piece.part.bytes % 8, 0U);
        ASSERT_EQ(piece.delegates.size(), islands.size());
        for (std::size_t i = 0; i < islands.size(); ++i)
          ASSERT_TRUE(std::ranges::binary_search(islands[i].ranks, piece.delegates[i]));
        at += piece.part.bytes;
      }
      ASSERT_EQ(at, elements * 8);
    }
  }
}

TEST(PlanHierarchical, GivesEveryRankTheSameBits) {
  std::mt19937 random(2);
  for (const auto& sizes : island_sizes()) {
    for (const std::uint64_t bytes : {8ULL, 24ULL, 1000ULL, testing::slow() ? 8ULL * 131 : 8ULL * 1021, 1ULL << 14}) {
      for (const bool in_place : {false, true}) {
        const auto islands = random_islands(sizes, random);
        const auto size = static_cast<std::uint32_t>(std::accumulate(sizes.begin(), sizes.end(), 0U));
        std::vector<SimulatedRank> ranks(size);
        for (std::uint32_t r = 0; r < size; ++r) {
          for (std::uint64_t i = 0; i < bytes; ++i) ranks[r].in.push_back(input(r, i));
          ranks[r].out = in_place ? ranks[r].in : std::vector<std::byte>(bytes, std::byte{0xAA});
          ranks[r].in_place = in_place;
          // Who reduces is each rank's own affair.
          const ReduceTuning tuning{.chunk = 64, .window = 2, .staged = std::bernoulli_distribution(0.4)(random)};
          ranks[r].schedule = plan_hierarchical_all_reduce(r, islands, bytes, 8, tuning);
        }
        PlanSimulator network(std::move(ranks), static_cast<unsigned>(random()));
        ASSERT_EQ(network.run(), "") << sizes.size() << " islands, " << bytes << " bytes";
        for (std::uint32_t r = 0; r < size; ++r) {
          for (std::uint64_t i = 0; i < bytes; ++i)
            ASSERT_EQ(network.rank(r).out[i], expected(islands, i)) << bytes << " bytes, rank " << r << ", byte " << i;
        }
      }
    }
  }
}

// Uneven blocks, some of them empty, with a gap in front of each.
struct Blocks {
  std::vector<std::uint64_t> counts, displacements;
  std::uint64_t end = 0;
  Blocks(std::size_t size, std::uint64_t most, std::mt19937& random) {
    for (std::size_t r = 0; r < size; ++r) {
      displacements.push_back(end + 8);
      counts.push_back(r % 3 == 1 ? 0 : 8 * std::uniform_int_distribution<std::uint64_t>(1, most)(random));
      end = displacements.back() + counts.back();
    }
  }
  [[nodiscard]] BlockLayout layout() const { return {counts, displacements}; }
};

TEST(PlanHierarchical, ReduceScatterGivesEachRankItsBlock) {
  std::mt19937 random(3);
  for (const auto& sizes : island_sizes()) {
    for (const std::uint64_t most : {1U, 100U, 3000U}) {
      const auto islands = random_islands(sizes, random);
      const auto size = static_cast<std::uint32_t>(std::accumulate(sizes.begin(), sizes.end(), 0U));
      const Blocks blocks(size, most, random);
      std::vector<SimulatedRank> ranks(size);
      for (std::uint32_t r = 0; r < size; ++r) {
        for (std::uint64_t i = 0; i < blocks.end; ++i) ranks[r].in.push_back(input(r, i));
        ranks[r].out.assign(blocks.counts[r], std::byte{0xAA});
        const ReduceTuning tuning{.chunk = 64, .window = 3, .staged = std::bernoulli_distribution(0.4)(random)};
        ranks[r].schedule = plan_hierarchical_reduce_scatter(r, islands, blocks.layout(), 8, tuning);
      }
      PlanSimulator network(std::move(ranks), static_cast<unsigned>(random()));
      ASSERT_EQ(network.run(), "") << size << " ranks, " << most;
      for (std::uint32_t r = 0; r < size; ++r) {
        for (std::uint64_t i = 0; i < blocks.counts[r]; ++i)
          ASSERT_EQ(network.rank(r).out[i], expected(islands, blocks.displacements[r] + i)) << "rank " << r << ", byte " << i;
      }
    }
  }
}

TEST(PlanHierarchical, AllGatherGivesEveryRankAllBlocks) {
  std::mt19937 random(4);
  for (const auto& sizes : island_sizes()) {
    for (const std::uint64_t most : {1U, 100U, 3000U}) {
      for (const std::uint64_t inline_copy : {0U, 1U << 20}) {
        const auto size = static_cast<std::uint32_t>(std::accumulate(sizes.begin(), sizes.end(), 0U));
        const Blocks blocks(size, most, random);
        const auto islands = std::make_shared<const std::vector<Island>>(random_islands(sizes, random));
        std::vector<SimulatedRank> ranks(size);
        for (std::uint32_t r = 0; r < size; ++r) {
          for (std::uint64_t i = 0; i < blocks.counts[r]; ++i) ranks[r].in.push_back(input(r, i));
          ranks[r].out.assign(blocks.end, std::byte{0xAA});
          const SpreadTuning tuning{.chunk = 64, .inline_copy = inline_copy, .hierarchical = 1, .islands = islands};
          ranks[r].schedule = plan_all_gather_blocks(r, size, blocks.layout(), tuning);
        }
        PlanSimulator network(std::move(ranks), static_cast<unsigned>(random()));
        ASSERT_EQ(network.run(), "") << size << " ranks, " << most;
        std::vector<std::byte> wanted(blocks.end, std::byte{0xAA});
        for (std::uint32_t r = 0; r < size; ++r) {
          for (std::uint64_t i = 0; i < blocks.counts[r]; ++i) wanted[blocks.displacements[r] + i] = input(r, i);
        }
        for (std::uint32_t r = 0; r < size; ++r) ASSERT_TRUE(network.rank(r).out == wanted) << "rank " << r;
      }
    }
  }
}

std::vector<Schedule> schedules_of(const std::vector<Island>& islands, std::uint64_t bytes, std::uint32_t size) {
  std::vector<Schedule> schedules;
  for (std::uint32_t r = 0; r < size; ++r) schedules.push_back(plan_hierarchical_all_reduce(r, islands, bytes, 4, {}));
  return schedules;
}

// Two hosts of three cards, fast inside, with border links of bandwidths 1, 2 and 4 GB/s.
CostModel border() {
  CostModel cost(6, {1e-6, 1e6}, {.reduction = 1e12});
  for (std::uint32_t a = 0; a < 6; ++a) {
    for (std::uint32_t b = 0; b < 6; ++b) {
      if (a / 3 == b / 3) cost.link(a, b) = {1e-6, 400e9};
    }
  }
  for (std::uint32_t i = 0; i < 3; ++i) cost.link(i, i + 3) = cost.link(i + 3, i) = {1e-5, 1e9 * (1 << i)};
  return cost;
}

TEST(PlanHierarchical, UnequalBorderLinksEndTogether) {
  constexpr std::uint64_t bytes = 256 << 20;
  const CostModel cost = border();
  const std::vector<Island> proportional{{{0, 1, 2}, {1, 2, 4}}, {{3, 4, 5}, {1, 2, 4}}};
  const std::vector<Island> even{{{0, 1, 2}, {1, 1, 1}}, {{3, 4, 5}, {1, 1, 1}}};
  const auto fast = predict(schedules_of(proportional, bytes, 6), cost), slow = predict(schedules_of(even, bytes, 6), cost);
  ASSERT_TRUE(fast.ok() && slow.ok());
  // Each byte crosses the border once in each direction: N / sum(b).
  const double bound = static_cast<double>(bytes) / 7e9;
  EXPECT_LE(*fast, bound / 0.9);
  EXPECT_GE(*slow, 2 * *fast);
}

// A delegate of two islands sends its sums as soon as it has them, whatever it has received.
TEST(PlanHierarchical, TwoIslandsExchangeSumsOnly) {
  const std::vector<Island> islands{{{0, 1}, {1, 1}}, {{2, 3}, {1, 1}}};
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> across;
  const auto schedules = schedules_of(islands, 8 << 20, 4);
  for (std::uint32_t r = 0; r < 4; ++r) {
    for (const Step& step : schedules[r].steps) {
      if (step.kind != StepKind::send || step.peer / 2 == r / 2) continue;
      EXPECT_EQ(step.from.area, Area::scratch);
      EXPECT_EQ(step.waits, 1U);
      across[{r, step.peer}] += step.bytes;
    }
  }
  ASSERT_EQ(across.size(), 4U);
  for (const auto& [pair, bytes] : across) EXPECT_EQ(bytes, 4U << 20) << pair.first << " to " << pair.second;
}

TEST(PlanHierarchical, BroadcastGivesEveryRankTheBytes) {
  std::mt19937 random(5);
  for (const auto& sizes : island_sizes()) {
    for (const std::uint64_t bytes : {1U, 2U, 63U, 1000U, 20'011U}) {
      const auto size = static_cast<std::uint32_t>(std::accumulate(sizes.begin(), sizes.end(), 0U));
      const auto islands = std::make_shared<const std::vector<Island>>(random_islands(sizes, random));
      const SpreadTuning tuning{.chunk = 64, .hierarchical = 1, .islands = islands};
      for (std::uint32_t root = 0; root < size; ++root) {
        std::vector<SimulatedRank> ranks(size);
        for (std::uint32_t r = 0; r < size; ++r) {
          ranks[r].out.assign(bytes, std::byte{0xAA});
          for (std::uint64_t i = 0; r == root && i < bytes; ++i) ranks[r].out[i] = input(root, i);
          ranks[r].schedule = plan_broadcast(r, size, root, bytes, tuning);
        }
        const std::vector<std::byte> wanted = ranks[root].out;
        PlanSimulator network(std::move(ranks), static_cast<unsigned>(random()));
        ASSERT_EQ(network.run(), "") << size << " ranks, " << bytes << " bytes, root " << root;
        for (std::uint32_t r = 0; r < size; ++r) ASSERT_TRUE(network.rank(r).out == wanted) << bytes << " bytes, rank " << r;
      }
    }
  }
}

TEST(PlanHierarchical, ReduceGivesTheRootTheSum) {
  std::mt19937 random(6);
  for (const auto& sizes : island_sizes()) {
    for (const std::uint64_t bytes : {8U, 24U, 1000U, 8U * 1021}) {
      const auto size = static_cast<std::uint32_t>(std::accumulate(sizes.begin(), sizes.end(), 0U));
      const auto islands = std::make_shared<const std::vector<Island>>(random_islands(sizes, random));
      for (std::uint32_t root = 0; root < size; ++root) {
        std::vector<SimulatedRank> ranks(size);
        for (std::uint32_t r = 0; r < size; ++r) {
          for (std::uint64_t i = 0; i < bytes; ++i) ranks[r].in.push_back(input(r, i));
          if (r == root) {  // others have no output
            ranks[r].in_place = root % 2 == 0;
            ranks[r].out = ranks[r].in_place ? ranks[r].in : std::vector<std::byte>(bytes, std::byte{0xAA});
          }
          const ReduceTuning tuning{
              .chunk = 64, .window = 2, .staged = std::bernoulli_distribution(0.4)(random), .hierarchical = 1, .islands = islands};
          ranks[r].schedule = plan_reduce(r, size, root, bytes, 8, tuning);
        }
        PlanSimulator network(std::move(ranks), static_cast<unsigned>(random()));
        ASSERT_EQ(network.run(), "") << size << " ranks, " << bytes << " bytes, root " << root;
        for (std::uint64_t i = 0; i < bytes; ++i)
          ASSERT_EQ(network.rank(root).out[i], expected(*islands, i)) << bytes << " bytes, root " << root << ", byte " << i;
      }
    }
  }
}

TEST(PlanHierarchical, EachByteLeavesAnIslandOnce) {
  constexpr std::uint64_t bytes = 8 << 20;
  const std::vector<Island> islands{{{0, 1, 2, 3}, {1, 1, 1, 1}}, {{4, 5, 6, 7}, {1, 1, 1, 1}}};
  std::uint64_t across = 0;
  for (const PairTraffic& pair : traffic_of(schedules_of(islands, bytes, 8))) {
    if ((pair.from < 4) != (pair.to < 4)) across += pair.bytes;
  }
  EXPECT_EQ(across, 2 * bytes);
}

TEST(PlanHierarchical, EachBlockEntersAnIslandOnce) {
  const auto islands =
      std::make_shared<const std::vector<Island>>(std::vector<Island>{{{0, 1, 2}, {1, 1, 1}}, {{3, 4}, {1, 1}}, {{5, 6}, {1, 1}}});
  constexpr std::uint64_t block = 1 << 20;
  for (const CallKind kind : {CallKind::all_gather, CallKind::reduce_scatter, CallKind::broadcast, CallKind::reduce}) {
    const EqualCall call{.kind = kind, .size = 7, .bytes = 7 * block, .element = 4, .root = 4, .islands = islands};
    Tuning tuning = tuning_for(true, false);
    tuning.reduce.islands = tuning.spread.islands = islands;
    EXPECT_EQ(choice_of(call, tuning).algorithm, Algorithm::hierarchical);
    std::vector<Schedule> schedules;
    for (std::uint32_t r = 0; r < 7; ++r) schedules.push_back(schedule_of(call, r, tuning));
    const auto island_of = [](std::uint32_t rank) { return rank < 3 ? 0 : rank < 5 ? 1 : 2; };
    std::uint64_t across = 0;
    for (const PairTraffic& pair : traffic_of(schedules)) {
      if (island_of(pair.from) != island_of(pair.to)) across += pair.bytes;
    }
    EXPECT_EQ(across, 7 * 2 * block) << name_of(kind);
  }
}

TEST(PlanHierarchical, IsChosenForLargeInputsOfSeveralIslands) {
  const auto islands = std::make_shared<const std::vector<Island>>(std::vector<Island>{{{0, 1}, {1, 1}}, {{2, 3}, {1, 1}}});
  for (const std::uint64_t bytes : {0ULL, 4ULL, (1ULL << 20) - 4, 1ULL << 20, 1ULL << 30}) {
    const EqualCall call{.kind = CallKind::all_reduce, .size = 4, .bytes = bytes, .element = 4, .islands = islands};
    Tuning tuning = tuning_for(true, false);
    tuning.reduce.islands = islands;
    EXPECT_EQ(choice_of(call, tuning).algorithm == Algorithm::hierarchical, bytes >= 1 << 20) << bytes;
    Tuning named = tuning_for(true, false, Algorithm::hierarchical);
    named.reduce.islands = islands;
    EXPECT_EQ(choice_of(call, named).algorithm == Algorithm::hierarchical, bytes > 0) << bytes;
    Tuning other = tuning_for(true, false, Algorithm::divided);
    other.reduce.islands = islands;
    EXPECT_NE(choice_of(call, other).algorithm, Algorithm::hierarchical) << bytes;
  }
}

TEST(PlanHierarchical, IslandsOfOneRankEachHaveNoHierarchy) {
  const Island one{{0}, {1}}, other{{1}, {1}}, two{{2, 3}, {1, 1}};
  EXPECT_FALSE(has_hierarchy(std::vector<Island>{}));
  EXPECT_FALSE(has_hierarchy(std::vector<Island>{two}));
  EXPECT_FALSE(has_hierarchy(std::vector<Island>{one, other}));
  EXPECT_TRUE(has_hierarchy(std::vector<Island>{one, other, two}));
}

// Through the one rank of an island go pieces of all others.
TEST(PlanHierarchical, RoundsSufficeForEveryPiece) {
  const auto islands_of = [](const std::vector<std::uint32_t>& sizes) {
    std::vector<Island> islands;
    std::uint32_t next = 0;
    for (const std::uint32_t size : sizes) {
      Island island{{}, std::vector<double>(size, 1)};
      for (std::uint32_t i = 0; i < size; ++i) island.ranks.push_back(next++);
      islands.push_back(std::move(island));
    }
    return islands;
  };
  std::vector<std::uint32_t> many(17, 8);
  EXPECT_TRUE(has_hierarchy(islands_of(many)));
  many.push_back(1);
  EXPECT_FALSE(has_hierarchy(islands_of(many)));
  EXPECT_TRUE(has_hierarchy(islands_of({64, 1})));
  EXPECT_FALSE(has_hierarchy(islands_of({128, 1})));
  EXPECT_FALSE(has_hierarchy(islands_of(std::vector<std::uint32_t>(200, 2))));
  for (const auto& sizes :
       {std::vector<std::uint32_t>{126, 1}, std::vector<std::uint32_t>(17, 8), std::vector<std::uint32_t>{2, 100}}) {
    const auto islands = islands_of(sizes);
    if (!has_hierarchy(islands)) continue;
    for (const std::uint64_t bytes : {std::uint64_t{4}, std::uint64_t{1} << 20, std::uint64_t{1} << 34})
      EXPECT_FALSE(plan_hierarchical_all_reduce(0, islands, bytes, 4, {}).steps.empty());
  }
}

}  // namespace
}  // namespace hmc
