// Schedules, carried out in random order by a simulated network: every byte of every rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "collective/plan_simulator.h"
#include "testing.h"

namespace hmc {
namespace {

using testing::pattern_byte;
using testing::PlanSimulator;
using testing::SimulatedRank;

std::uint64_t pair_seed(std::uint32_t from, std::uint32_t to) { return from * 1000ULL + to; }

// Uneven on purpose, with empty blocks; both ends compute it.
std::uint64_t uneven(std::uint32_t from, std::uint32_t to) {
  return (from * 7 + to * 3) % 5 == 0 ? 0 : (from * 31 + to * 17) % 97 + 1;
}

struct Layouts {
  std::vector<std::uint64_t> counts, displacements;
  std::uint64_t total = 0;
};

// Blocks in reverse order with gaps, so that displacements are not what a packed layout would give.
Layouts layout(std::uint32_t size, const std::function<std::uint64_t(std::uint32_t)>& count) {
  Layouts made;
  made.counts.resize(size);
  made.displacements.resize(size);
  for (std::uint32_t r = size; r-- > 0;) {
    made.displacements[r] = made.total + 3;
    made.counts[r] = count(r);
    made.total += 3 + made.counts[r];
  }
  return made;
}

std::string all_to_all_v(std::uint32_t size, const AllToAllTuning& tuning, unsigned seed) {
  std::vector<SimulatedRank> ranks;
  for (std::uint32_t me = 0; me < size; ++me) {
    const Layouts in = layout(size, [&](std::uint32_t to) { return uneven(me, to); });
    const Layouts out = layout(size, [&](std::uint32_t from) { return uneven(from, me); });
    SimulatedRank rank;
    rank.in.assign(in.total, std::byte{0});
    rank.out.assign(out.total, std::byte{0xAA});
    for (std::uint32_t to = 0; to < size; ++to) {
      for (std::uint64_t i = 0; i < in.counts[to]; ++i) rank.in[in.displacements[to] + i] = pattern_byte(i, pair_seed(me, to));
    }
    rank.schedule = plan_all_to_all_v(me, size, {out.counts, out.displacements}, {in.counts, in.displacements}, tuning);
    ranks.push_back(std::move(rank));
  }
  PlanSimulator network(std::move(ranks), seed);
  if (auto error = network.run(); !error.empty()) return error;
  for (std::uint32_t me = 0; me < size; ++me) {
    const Layouts out = layout(size, [&](std::uint32_t from) { return uneven(from, me); });
    std::vector<std::byte> expected(out.total, std::byte{0xAA});
    for (std::uint32_t from = 0; from < size; ++from) {
      for (std::uint64_t i = 0; i < out.counts[from]; ++i)
        expected[out.displacements[from] + i] = pattern_byte(i, pair_seed(from, me));
    }
    if (network.rank(me).out != expected) return "rank " + std::to_string(me) + " has wrong bytes";
  }
  return "";
}

std::string all_to_all(std::uint32_t size, std::uint64_t block, const AllToAllTuning& tuning, unsigned seed) {
  std::vector<SimulatedRank> ranks;
  for (std::uint32_t me = 0; me < size; ++me) {
    SimulatedRank rank;
    for (std::uint32_t to = 0; to < size; ++to) {
      for (std::uint64_t i = 0; i < block; ++i) rank.in.push_back(pattern_byte(i, pair_seed(me, to)));
    }
    rank.out.assign(rank.in.size(), std::byte{0xAA});
    rank.schedule = plan_all_to_all(me, size, block, tuning);
    ranks.push_back(std::move(rank));
  }
  PlanSimulator network(std::move(ranks), seed);
  if (auto error = network.run(); !error.empty()) return error;
  for (std::uint32_t me = 0; me < size; ++me) {
    for (std::uint32_t from = 0; from < size; ++from) {
      for (std::uint64_t i = 0; i < block; ++i) {
        if (network.rank(me).out[from * block + i] != pattern_byte(i, pair_seed(from, me))) {
          return "rank " + std::to_string(me) + " has wrong bytes from " + std::to_string(from);
        }
      }
    }
  }
  return "";
}

TEST(Plan, AllToAllDirectOfEverySize) {
  AllToAllTuning direct;
  direct.relay_ranks = 1000;
  for (const std::uint32_t size : testing::rank_counts()) {
    for (const std::uint64_t block : {0U, 1U, 7U, 64U})
      ASSERT_EQ(all_to_all(size, block, direct, size), "") << size << " ranks, " << block << " bytes";
  }
}

TEST(Plan, AllToAllRelayedOfEverySize) {
  AllToAllTuning relay;
  relay.relay_ranks = 1;
  for (const std::uint32_t size : testing::rank_counts()) {
    for (const std::uint64_t block : {1U, 5U, 64U})
      ASSERT_EQ(all_to_all(size, block, relay, size), "") << size << " ranks, " << block << " bytes";
  }
}

TEST(Plan, RelayTalksToFewRanks) {
  const Schedule schedule = plan_all_to_all(11, 64, 64);
  EXPECT_EQ(
      std::count_if(schedule.steps.begin(), schedule.steps.end(), [](const Step& step) { return step.kind == StepKind::send; }), 6);
}

TEST(Plan, AllToAllVOfEverySize) {
  AllToAllTuning windows;
  windows.large = 1;
  windows.inline_copy = 50;
  for (const std::uint32_t size : testing::rank_counts()) {
    ASSERT_EQ(all_to_all_v(size, {}, size), "") << size << " ranks";
    for (const std::uint32_t window : {1U, 2U, 4U}) {
      windows.window = window;
      ASSERT_EQ(all_to_all_v(size, windows, size + window), "") << size << " ranks, window " << window;
    }
  }
}

TEST(Plan, LargeSendsKeepToTheWindow) {
  AllToAllTuning tuning;
  tuning.large = 0;
  tuning.window = 3;
  const std::vector<std::uint64_t> counts(20, 8), displacements(20, 0);
  const Schedule schedule = plan_all_to_all_v(4, 20, {counts, displacements}, {counts, displacements}, tuning);
  std::size_t at_once = 0, sends = 0;
  for (const Step& step : schedule.steps) {
    if (step.kind != StepKind::send) continue;
    ++sends;
    if (step.waits == 0) ++at_once;
    EXPECT_LE(step.waits, 1U);
  }
  EXPECT_EQ(sends, 19U);
  EXPECT_EQ(at_once, 3U);
}

TEST(Plan, ReceivesArePostedBeforeSendsAndStaggered) {
  for (std::uint32_t size = 2; size <= 9; ++size) {
    std::vector<std::uint32_t> first_target;
    for (std::uint32_t me = 0; me < size; ++me) {
      const Schedule schedule = plan_all_to_all(me, size, 64);
      bool sending = false;
      for (const Step& step : schedule.steps) {
        if (step.kind == StepKind::send && !std::exchange(sending, true)) first_target.push_back(step.peer);
        EXPECT_FALSE(sending && step.kind == StepKind::receive);
      }
    }
    std::sort(first_target.begin(), first_target.end());
    EXPECT_EQ(std::unique(first_target.begin(), first_target.end()), first_target.end()) << "two ranks begin with the same target";
  }
}

TEST(Plan, AllGatherOfEverySizeAndUnevenCounts) {
  for (const std::uint32_t size : testing::rank_counts()) {
    for (const int kind : {0, 1, 2}) {
      std::vector<std::uint64_t> counts(size);
      for (std::uint32_t r = 0; r < size; ++r) counts[r] = kind == 0 ? 8 : kind == 1 ? uneven(r, 1) : 0;
      std::vector<std::byte> expected;
      std::vector<SimulatedRank> ranks;
      for (std::uint32_t me = 0; me < size; ++me) {
        SimulatedRank rank;
        rank.in = testing::pattern(counts[me], me);
        expected.insert(expected.end(), rank.in.begin(), rank.in.end());
        rank.schedule = plan_all_gather(me, size, counts);
        ranks.push_back(std::move(rank));
      }
      for (auto& rank : ranks) rank.out.assign(expected.size(), std::byte{0xAA});
      PlanSimulator network(std::move(ranks), size);
      ASSERT_EQ(network.run(), "") << size << " ranks";
      for (std::uint32_t me = 0; me < size; ++me) ASSERT_EQ(network.rank(me).out, expected) << "rank " << me << " of " << size;
    }
  }
}

// Nobody leaves a barrier before everybody has come: knowledge, carried along the messages, must be complete at every end.
TEST(Plan, BarrierTellsEverybodyOfEverybody) {
  for (const std::uint32_t size : testing::rank_counts()) {
    std::vector<std::vector<bool>> knows(size, std::vector<bool>(size, false));
    std::vector<Schedule> schedules;
    for (std::uint32_t r = 0; r < size; ++r) {
      knows[r][r] = true;
      schedules.push_back(plan_barrier(r, size));
    }
    // A send says only what the receives it waits for have told: replay round by round with just those.
    std::uint8_t rounds = 0;
    for (std::uint32_t distance = 1; distance < size; distance *= 2) ++rounds;
    for (std::uint8_t round = 0; round < rounds; ++round) {
      auto next = knows;
      for (std::uint32_t r = 0; r < size; ++r) {
        const auto send = std::find_if(schedules[r].steps.begin(), schedules[r].steps.end(),
                                       [&](const Step& step) { return step.kind == StepKind::send && step.round == round; });
        ASSERT_NE(send, schedules[r].steps.end());
        ASSERT_EQ(send->waits, round);
        for (std::uint32_t other = 0; other < size; ++other) {
          if (knows[r][other]) next[send->peer][other] = true;
        }
      }
      knows = next;
    }
    for (std::uint32_t r = 0; r < size; ++r) EXPECT_EQ(std::count(knows[r].begin(), knows[r].end(), true), size);
    std::vector<SimulatedRank> ranks;
    for (auto& schedule : schedules) ranks.push_back({std::move(schedule), {}, {}, {}});
    EXPECT_EQ(PlanSimulator(std::move(ranks), size).run(), "");
  }
}

}  // namespace
}  // namespace hmc
