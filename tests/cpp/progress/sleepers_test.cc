#include "progress/sleepers.h"

#include <gtest/gtest.h>

#include "progress/watcher_role.h"

namespace hmc {
namespace {

// A test whose wake is missing hangs: its sleep has no end of its own.
constexpr auto for_ever = WatcherRole::TimePoint::max();

class SleepersTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(role_.open().ok()); }
  void TearDown() override { role_.close(); }
  WatcherRole role_;
  Sleepers sleepers_;
  std::atomic<std::uint32_t> flag_{0};
};

TEST_F(SleepersTest, WakesThoseWhoseFlagIsSet) {
  std::atomic<std::uint32_t> unset{0};
  Sleeper first{.flag = &flag_};
  Sleeper second{.flag = &unset};
  sleepers_.link(first);
  sleepers_.link(second);
  flag_ = 1;
  sleepers_.wake_flagged(true, role_);
  EXPECT_EQ(first.word, Sleeper::satisfied);
  EXPECT_EQ(second.word, Sleeper::asleep);
  sleepers_.unlink(second);
  EXPECT_TRUE(sleepers_.empty());
}

TEST_F(SleepersTest, EvaluatesPredicatesOnlyWhereAllowed) {
  int calls = 0;
  const std::function<bool()> done = [&calls] { return ++calls > 1; };
  Sleeper sleeper{.done = &done};
  sleepers_.link(sleeper);
  sleepers_.wake_flagged(false, role_);
  EXPECT_EQ(sleeper.word, Sleeper::asleep);
  EXPECT_EQ(calls, 0);
  sleepers_.wake_satisfied(role_);
  EXPECT_EQ(sleeper.word, Sleeper::asleep);
  sleepers_.wake_satisfied(role_);
  EXPECT_EQ(sleeper.word, Sleeper::satisfied);
  EXPECT_TRUE(sleepers_.empty());
}

TEST_F(SleepersTest, PredicateOwnersLookAgain) {
  const std::function<bool()> done = [] { return true; };
  Sleeper sleeper{.done = &done};
  sleepers_.link(sleeper);
  sleepers_.wake_flagged(true, role_);
  EXPECT_EQ(sleeper.word, Sleeper::look_again);
}

TEST_F(SleepersTest, WakesOneToLookAgain) {
  sleepers_.wake_one(role_);  // nobody sleeps
  Sleeper first{.flag = &flag_};
  Sleeper second{.flag = &flag_};
  sleepers_.link(first);
  sleepers_.link(second);
  sleepers_.wake_one(role_);
  EXPECT_EQ(first.word + second.word, Sleeper::look_again);
  EXPECT_FALSE(sleepers_.empty());
}

TEST_F(SleepersTest, CountsThoseThatWokeByThemselves) {
  Sleeper sleeper{.flag = &flag_};
  sleepers_.link(sleeper);
  sleepers_.unlink_satisfied(sleeper);
  EXPECT_EQ(sleeper.word, Sleeper::satisfied);
  EXPECT_EQ(sleepers_.late_wakeups(), 1U);
}

TEST_F(SleepersTest, WakesTheWatcherByItsDoorbell) {
  role_.take();
  role_.announce_standby({});
  Sleeper sleeper{.flag = &flag_, .watching = true};
  sleepers_.link(sleeper);
  flag_ = 1;
  sleepers_.wake_flagged(true, role_);
  role_.sleep(nullptr, for_ever);
  EXPECT_EQ(sleeper.word, Sleeper::satisfied);
}

TEST_F(SleepersTest, RoleIsTakenUntilGivenUp) {
  EXPECT_FALSE(role_.taken());
  role_.take();
  role_.announce_armed(for_ever);
  EXPECT_TRUE(role_.taken());
  EXPECT_TRUE(role_.armed());
  role_.wake_by(WatcherRole::TimePoint{});
  role_.sleep(nullptr, for_ever);
  EXPECT_FALSE(role_.armed());
  EXPECT_TRUE(role_.taken());
  role_.give_up();
  EXPECT_FALSE(role_.taken());
}

}  // namespace
}  // namespace hmc
