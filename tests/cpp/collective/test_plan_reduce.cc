// Schedules that reduce, carried out in random order by a simulated network, with an operation that tells the order of the ranks.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "collective/plan_reduce.h"
#include "collective/plan_simulator.h"
#include "testing.h"

namespace hmc {
namespace {

using testing::pattern_byte;
using testing::PlanSimulator;
using testing::SimulatedRank;

std::vector<std::byte> input_of(std::uint32_t rank, std::uint64_t bytes) {
  std::vector<std::byte> made(bytes);
  for (std::uint64_t i = 0; i < bytes; ++i) made[i] = pattern_byte(i, rank * 7919 + 1);
  return made;
}

std::byte expected(std::uint32_t size, std::uint64_t i) {
  std::byte result{0};
  for (std::uint32_t r = 0; r < size; ++r) result = PlanSimulator::fold(result, pattern_byte(i, r * 7919 + 1));
  return result;
}

struct Case {
  std::uint32_t size;
  std::uint64_t bytes;
  std::size_t element;
  ReduceTuning tuning;
  bool in_place;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::uint32_t size : {1U, 2U, 3U, 5U, 8U}) {
    for (const std::uint64_t bytes : {0ULL, 8ULL, 24ULL, 1000ULL, testing::slow() ? 8ULL * 131 : 8ULL * 1021}) {
      for (const std::uint64_t whole : {0ULL, 1ULL << 30}) {
        for (const bool staged : {false, true}) {
          for (const bool in_place : {false, true})
            all.push_back({size, bytes, 8, {.whole = whole, .chunk = 64, .window = 2, .staged = staged}, in_place});
        }
      }
    }
  }
  // More chunks than there are rounds.
  all.push_back({2, 1 << 16, 4, {.whole = 0, .chunk = 4, .window = 3, .staged = false}, true});
  return all;
}

std::string text(const Case& c) {
  return std::to_string(c.size) + " ranks, " + std::to_string(c.bytes) + " bytes" + (c.tuning.whole != 0 ? ", whole" : "") +
         (c.tuning.staged ? ", staged" : "") + (c.in_place ? ", in place" : "");
}

SimulatedRank rank_of(std::uint32_t rank, const Case& c, Schedule schedule) {
  SimulatedRank made;
  made.in = input_of(rank, c.bytes);
  made.out = c.in_place ? made.in : std::vector<std::byte>(c.bytes, std::byte{0xAA});
  made.in_place = c.in_place;
  made.schedule = std::move(schedule);
  return made;
}

TEST(PlanReduce, AllReduceGivesEveryRankTheSameBits) {
  for (const Case& c : cases()) {
    for (unsigned seed = 0; seed < 3; ++seed) {
      std::vector<SimulatedRank> ranks;
      for (std::uint32_t r = 0; r < c.size; ++r)
        ranks.push_back(rank_of(r, c, plan_all_reduce(r, c.size, c.bytes, c.element, c.tuning)));
      PlanSimulator network(std::move(ranks), seed);
      ASSERT_EQ(network.run(), "") << text(c);
      for (std::uint32_t r = 0; r < c.size; ++r) {
        for (std::uint64_t i = 0; i < c.bytes; ++i)
          ASSERT_EQ(network.rank(r).out[i], expected(c.size, i)) << text(c) << ", rank " << r;
      }
    }
  }
}

TEST(PlanReduce, ReduceGivesTheRootTheResultAndOthersNothing) {
  for (const Case& c : cases()) {
    const std::uint32_t root = c.size - 1;
    std::vector<SimulatedRank> ranks;
    for (std::uint32_t r = 0; r < c.size; ++r)
      ranks.push_back(rank_of(r, c, plan_reduce(r, c.size, root, c.bytes, c.element, c.tuning)));
    PlanSimulator network(std::move(ranks), 5);
    ASSERT_EQ(network.run(), "") << text(c);
    for (std::uint32_t r = 0; r < c.size; ++r) {
      const auto untouched = c.in_place ? input_of(r, c.bytes) : std::vector<std::byte>(c.bytes, std::byte{0xAA});
      for (std::uint64_t i = 0; i < c.bytes; ++i)
        ASSERT_EQ(network.rank(r).out[i], r == root ? expected(c.size, i) : untouched[i]) << text(c) << ", rank " << r;
    }
  }
}

TEST(PlanReduce, ReduceScatterGivesEachRankItsBlock) {
  for (const Case& c : cases()) {
    // Uneven blocks, one of them empty, with a gap in front of each.
    std::vector<std::uint64_t> counts, displacements;
    std::uint64_t total = 0;
    for (std::uint32_t r = 0; r < c.size; ++r) {
      displacements.push_back(total + c.element);
      counts.push_back(r == 1 ? 0 : c.bytes / c.element * c.element + r * c.element);
      total = displacements.back() + counts.back();
    }
    std::vector<SimulatedRank> ranks;
    for (std::uint32_t r = 0; r < c.size; ++r) {
      SimulatedRank made;
      made.in = input_of(r, total);
      made.out.assign(counts[r], std::byte{0xAA});
      made.schedule = plan_reduce_scatter(r, c.size, {counts, displacements}, c.element, c.tuning);
      ranks.push_back(std::move(made));
    }
    PlanSimulator network(std::move(ranks), 9);
    ASSERT_EQ(network.run(), "") << text(c);
    for (std::uint32_t r = 0; r < c.size; ++r) {
      for (std::uint64_t i = 0; i < counts[r]; ++i)
        ASSERT_EQ(network.rank(r).out[i], expected(c.size, displacements[r] + i)) << text(c) << ", rank " << r;
    }
  }
}

TEST(PlanReduce, LargeReductionsTakeBoundedScratchMemory) {
  const std::uint64_t bytes = 1ULL << 33;
  const Schedule schedule = plan_all_reduce(1, 4, bytes, 4);
  EXPECT_LE(schedule.scratch, bytes / 4);
  for (const Step& step : schedule.steps) EXPECT_LE(step.bytes, bytes / 4 / 100);
  EXPECT_LE(plan_all_reduce(1, 2, 64 << 20, 4).scratch, 4ULL << 20);
}

}  // namespace
}  // namespace hmc
