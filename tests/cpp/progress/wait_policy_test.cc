#include "progress/wait_policy.h"

#include <gtest/gtest.h>

#include <chrono>

namespace hmc {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

TEST(WaitPolicy, StartsAtMostRounds) { EXPECT_EQ(WaitPolicy().rounds(), WaitPolicy::most_rounds); }

TEST(WaitPolicy, FallsWhenAnotherThreadRuns) {
  WaitPolicy policy;
  for (int i = 0; i < 10; ++i) policy.yielded(nanoseconds(300));
  EXPECT_EQ(policy.rounds(), WaitPolicy::most_rounds);
  for (int i = 0; i < 2; ++i) policy.yielded(microseconds(3));
  EXPECT_EQ(policy.rounds(), WaitPolicy::least_rounds);
}

TEST(WaitPolicy, FallsWhereNoYieldWasEverFast) {
  WaitPolicy policy;
  for (int i = 0; i < 2; ++i) policy.yielded(microseconds(4));
  EXPECT_EQ(policy.rounds(), WaitPolicy::least_rounds);
}

TEST(WaitPolicy, OneLongYieldChangesNothing) {
  WaitPolicy policy;
  for (int i = 0; i < 100; ++i) policy.yielded(i % 2 == 0 ? nanoseconds(300) : nanoseconds(50'000));
  EXPECT_EQ(policy.rounds(), WaitPolicy::most_rounds);
}

TEST(WaitPolicy, ReturnsOnceTheCoreIsFree) {
  WaitPolicy policy;
  for (int i = 0; i < 5; ++i) policy.yielded(microseconds(3));
  for (int i = 0; i < 63; ++i) policy.yielded(nanoseconds(300));
  EXPECT_EQ(policy.rounds(), WaitPolicy::least_rounds);
  policy.yielded(nanoseconds(300));
  EXPECT_EQ(policy.rounds(), WaitPolicy::most_rounds);
}

TEST(WaitPolicy, YieldsLongerWhileSleepsAreShort) {
  WaitPolicy policy;
  const auto least = policy.yield_time();
  policy.slept(2 * least);
  EXPECT_EQ(policy.yield_time(), 2 * least);
  for (int i = 0; i < 10; ++i) policy.slept(least);
  EXPECT_EQ(policy.yield_time(), 8 * least);
  policy.slept(100 * least);
  EXPECT_EQ(policy.yield_time(), least);
}

}  // namespace
}  // namespace hmc
