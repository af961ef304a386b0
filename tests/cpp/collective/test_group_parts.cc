// The parts of a group that need no other process.
#include <gtest/gtest.h>

#include "collective/early_calls.h"
#include "collective/schedule_cache.h"

namespace hmc {
namespace {

constexpr std::uint32_t kind(CallKind each) { return static_cast<std::uint32_t>(each); }

TEST(EarlyCalls, AnotherKindIsFoundWhicheverCameFirst) {
  const std::uint32_t barrier = kind(CallKind::barrier), exchange = kind(CallKind::exchange);
  for (const bool other_first : {false, true}) {
    EarlyCalls calls;
    EXPECT_FALSE(calls.other_than(5, barrier));
    calls.note(5, {1, other_first ? exchange : barrier});
    calls.note(5, {2, other_first ? barrier : exchange});
    calls.note(5, {3, exchange});
    const auto other = calls.other_than(5, barrier);
    ASSERT_TRUE(other);
    EXPECT_EQ(other->call, exchange);
    EXPECT_EQ(other->rank, other_first ? 1U : 2U);
    EXPECT_EQ(calls.other_than(5, exchange)->call, barrier);
    EXPECT_FALSE(calls.other_than(4, barrier));
    EXPECT_FALSE(calls.other_than(13, barrier)) << "the entry is that of collective 5";
    calls.note(13, {4, barrier});
    EXPECT_FALSE(calls.other_than(5, barrier));
    EXPECT_FALSE(calls.other_than(13, barrier));
  }
}

TEST(EarlyCalls, BlockSizesDoNotMakeAnotherKind) {
  EarlyCalls calls;
  calls.note(1, {1, encode_call(CallKind::all_to_all, 64)});
  EXPECT_FALSE(calls.other_than(1, encode_call(CallKind::all_to_all, 1 << 20)));
  EXPECT_TRUE(calls.other_than(1, encode_call(CallKind::all_to_all_v)));
}

TEST(ScheduleCache, KeepsTheLastOfEachRank) {
  const std::vector<std::uint32_t> local{2, 5};
  ScheduleCache cache(Engine::create(Progress::manual).value(), 7, local);
  const auto barrier = cache.barrier(2);
  EXPECT_EQ(barrier, cache.barrier(2));
  EXPECT_NE(barrier, cache.barrier(5));
  EXPECT_EQ(barrier->steps.size(), plan_barrier(2, 7).steps.size());
  AllToAllTuning tuning;
  const auto small = cache.all_to_all(5, 100, tuning);
  EXPECT_EQ(small, cache.all_to_all(5, 100, tuning));
  tuning.inline_copy = 0;  // its own block goes as a message then
  const auto other = cache.all_to_all(5, 100, tuning);
  EXPECT_NE(small, other);
  EXPECT_EQ(other->steps.size(), plan_all_to_all(5, 7, 100, tuning).steps.size());
  EXPECT_NE(other, cache.all_to_all(5, 101, tuning));
  EXPECT_NE(cache.all_to_all(2, 100, tuning), cache.all_to_all(5, 100, tuning));
  EXPECT_EQ(barrier, cache.barrier(2));
}

}  // namespace
}  // namespace hmc
