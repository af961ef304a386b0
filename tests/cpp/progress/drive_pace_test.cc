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
  const WaitPolicy policy;
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
  const WaitPolicy policy;
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
  const WaitPolicy policy;
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
  const WaitPolicy policy;
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
  const WaitPolicy policy;
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
  const WaitPolicy policy;
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
  const WaitPolicy policy;
  DrivePace pace(policy);
  look(pace, policy.rounds());
  pace.idle_since(start);
  EXPECT_FALSE(pace.sleeps(start));
  EXPECT_TRUE(pace.sleeps(start + policy.yield_time()));
  pace.slept();
  EXPECT_TRUE(pace.spins());
}

}  // namespace
}  // namespace hmc
