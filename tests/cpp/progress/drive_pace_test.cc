#include "progress/drive_pace.h"

#include <gtest/gtest.h>

#include <chrono>

namespace hmc {
namespace {

constexpr DrivePace::TimePoint start = DrivePace::TimePoint{} + std::chrono::hours(1);

void look(DrivePace& pace, unsigned count) {
  for (unsigned i = 0; i < count; ++i) pace.looked(false);
}

TEST(DrivePace, SpinsThenYields) {
  WaitPolicy policy;
  DrivePace pace(policy);
  look(pace, policy.rounds() - 1);
  EXPECT_TRUE(pace.spins());
  EXPECT_FALSE(pace.keeps_lock());
  look(pace, 1);
  EXPECT_FALSE(pace.spins());
  EXPECT_TRUE(pace.begins_to_yield());
  look(pace, 1);
  EXPECT_FALSE(pace.begins_to_yield());
}

TEST(DrivePace, KeepsTheLockWhileItSpins) {
  WaitPolicy policy;
  DrivePace pace(policy);
  EXPECT_TRUE(pace.keeps_lock());
  look(pace, policy.rounds() - 2);
  EXPECT_TRUE(pace.keeps_lock());
}

TEST(DrivePace, MovementBeginsAnewWithThePresentPolicy) {
  WaitPolicy policy;
  DrivePace pace(policy);
  look(pace, policy.rounds());
  EXPECT_FALSE(pace.spins());
  policy.yielded(std::chrono::seconds(1));
  policy.yielded(std::chrono::seconds(1));
  ASSERT_EQ(policy.rounds(), WaitPolicy::least_rounds);
  pace.looked(true);
  EXPECT_TRUE(pace.spins());
  look(pace, WaitPolicy::least_rounds);
  EXPECT_FALSE(pace.spins());
}

TEST(DrivePace, LooksAtDescriptorsOnlyBetweenYields) {
  WaitPolicy policy;
  DrivePace pace(policy);
  unsigned looks = 0;
  for (unsigned i = 0; i < policy.rounds(); ++i) {
    EXPECT_FALSE(pace.with_descriptors());
    look(pace, 1);
  }
  for (unsigned i = 0; i < 40; ++i) {
    look(pace, 1);
    looks += pace.with_descriptors() ? 1U : 0U;
  }
  EXPECT_EQ(looks, 10U);
}

TEST(DrivePace, IsPromptForTheFirstEmptyRounds) {
  WaitPolicy policy;
  DrivePace pace(policy);
  for (unsigned i = 1; i < DrivePace::prompt_rounds; ++i) {
    look(pace, 1);
    EXPECT_TRUE(pace.prompt());
  }
  look(pace, 1);
  EXPECT_FALSE(pace.prompt());
  DrivePace moving(policy);
  moving.looked(true);
  EXPECT_FALSE(moving.prompt());
}

TEST(DrivePace, IsNotPromptOnceItYields) {
  WaitPolicy policy;
  policy.yielded(std::chrono::seconds(1));
  policy.yielded(std::chrono::seconds(1));
  ASSERT_LT(policy.rounds(), DrivePace::prompt_rounds);
  DrivePace pace(policy);
  look(pace, policy.rounds() - 1);
  EXPECT_TRUE(pace.prompt());
  look(pace, 1);
  EXPECT_FALSE(pace.spins());
  EXPECT_FALSE(pace.prompt());
}

TEST(DrivePace, LooksAtTheClockAtIntervals) {
  WaitPolicy policy;
  DrivePace idle(policy);
  unsigned looks = 0;
  for (unsigned i = 0; i < 10 * DrivePace::clock_interval; ++i) {
    look(idle, 1);
    looks += idle.clock_due() ? 1U : 0U;
  }
  EXPECT_EQ(looks, 10U);
  DrivePace moving(policy);
  looks = 0;
  for (unsigned i = 0; i < 10 * DrivePace::moving_clock_interval; ++i) {
    moving.looked(true);
    looks += moving.clock_due_moving() ? 1U : 0U;
  }
  EXPECT_EQ(looks, 10U);
}

TEST(DrivePace, LooksAtTheClockThoughOnlyEveryEighthRoundMoves) {
  WaitPolicy policy;
  DrivePace pace(policy);
  unsigned looks = 0;
  for (unsigned i = 0; i < DrivePace::moving_clock_interval; ++i) {
    pace.looked(true);
    looks += pace.clock_due_moving() ? 1U : 0U;
    look(pace, 7);
  }
  EXPECT_EQ(looks, 1U);
}

TEST(DrivePace, SleepsOnceItHasYieldedLongEnough) {
  WaitPolicy policy;
  DrivePace pace(policy);
  look(pace, policy.rounds());
  pace.idle_since(start);
  EXPECT_FALSE(pace.sleeps(start));
  EXPECT_TRUE(pace.sleeps(start + policy.yield_time()));
  pace.slept();
  EXPECT_TRUE(pace.spins());
}

TEST(DrivePace, SleepsAtOnceAfterAYieldOfATimeSliceInWhichNothingMoved) {
  WaitPolicy policy;
  DrivePace pace(policy);
  const auto sleeps = [&] { return pace.sleeps(DrivePace::TimePoint::clock::now()); };
  look(pace, policy.rounds() + 1);
  pace.idle_since(DrivePace::TimePoint::clock::now());
  pace.yielded(WaitPolicy::time_slice / 2);
  look(pace, 1);
  EXPECT_FALSE(policy.maybe_crowded());
  pace.yielded(WaitPolicy::time_slice);
  pace.looked(true);
  look(pace, 1);
  EXPECT_FALSE(policy.maybe_crowded());
  pace.yielded(WaitPolicy::time_slice);
  look(pace, 1);
  EXPECT_TRUE(policy.maybe_crowded());
  EXPECT_TRUE(pace.clock_due());
  EXPECT_TRUE(sleeps());
  pace.idle_since(DrivePace::TimePoint::clock::now() + std::chrono::hours(1));
  EXPECT_FALSE(pace.sleeps(DrivePace::TimePoint::clock::now() + WaitPolicy::most_crowded_time));
  EXPECT_FALSE(policy.maybe_crowded());
}

TEST(WaitPolicy, IsCrowdedForLongerWhereThatBeginsAnewSoon) {
  WaitPolicy policy;
  auto now = start;
  const auto lasts = [&](WaitPolicy::Duration expected) {
    policy.crowd(now);
    EXPECT_TRUE(policy.crowded(now + expected - std::chrono::nanoseconds(1)));
    now += expected;
    EXPECT_FALSE(policy.crowded(now));
  };
  lasts(WaitPolicy::least_crowded_time);
  lasts(2 * WaitPolicy::least_crowded_time);
  lasts(4 * WaitPolicy::least_crowded_time);
  for (int i = 0; i < 4; ++i) lasts(WaitPolicy::most_crowded_time);
  now += 2 * WaitPolicy::most_crowded_time;
  lasts(WaitPolicy::least_crowded_time);
}

TEST(WaitPolicy, IsCrowdedAfterTimeSlicesThatFollowOneAnother) {
  WaitPolicy policy;
  auto now = start;
  const auto slice = [&](WaitPolicy::Duration since_the_last) {
    now += since_the_last;
    policy.sliced(now, now + 2 * WaitPolicy::time_slice);
    now += 2 * WaitPolicy::time_slice;
    return policy.crowded(now);
  };
  EXPECT_FALSE(slice(std::chrono::seconds(1)));
  EXPECT_FALSE(slice(WaitPolicy::time_slice));
  EXPECT_TRUE(slice(WaitPolicy::time_slice / 4));
}

}  // namespace
}  // namespace hmc
