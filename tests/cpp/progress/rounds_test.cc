#include "progress/rounds.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <string>

#include "progress/engine_testing.h"

namespace hmc {
namespace {

using testing::Handler;
using testing::make_event;
using testing::Poller;

class RoundsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(role_.open().ok());
    ASSERT_TRUE(rounds_.sources().descriptors().open().ok());
  }
  WatcherRole role_;
  Kicks kicks_;
  Rounds rounds_{role_, kicks_};
};

TEST_F(RoundsTest, RunPollablesThenEventsThenDeferredFunctions) {
  std::string order;
  Poller poller;
  poller.on_poll = [&] {
    order += 'p';
    return false;
  };
  const UniqueFd fd = make_event(1);
  Handler handler([&](std::uint32_t) { order += 'd'; });
  rounds_.pollables().add(poller);
  ASSERT_TRUE(rounds_.sources().descriptors().watch(fd.get(), EPOLLIN, handler).ok());
  rounds_.sources().timers().add(Deadline::after_seconds(0).when(), [&] { order += 't'; });
  rounds_.defer([&] { order += 'f'; });
  EXPECT_EQ(rounds_.run(true), Rounds::pollables_moved | Rounds::descriptors_moved | Rounds::timers_moved);
  EXPECT_EQ(order, "pdtf");
}

TEST_F(RoundsTest, SayWhatMoved) {
  Poller poller;
  bool moves = false;
  poller.on_poll = [&] { return moves; };
  rounds_.pollables().add(poller);
  EXPECT_EQ(rounds_.run(true), Rounds::nothing);
  moves = true;
  EXPECT_EQ(rounds_.run(true), Rounds::pollables_moved);
  moves = false;
  rounds_.sources().timers().add(Deadline::after_seconds(0).when(), [] {});
  EXPECT_EQ(rounds_.run(true), Rounds::timers_moved);
  const UniqueFd fd = make_event(1);
  Handler handler([](std::uint32_t) {});
  ASSERT_TRUE(rounds_.sources().descriptors().watch(fd.get(), EPOLLIN, handler).ok());
  EXPECT_EQ(rounds_.run(true), Rounds::descriptors_moved);
}

TEST_F(RoundsTest, LookAtEventsNowAndThenUnasked) {
  Poller poller;  // without a Pollable every round looks
  rounds_.pollables().add(poller);
  EXPECT_EQ(rounds_.run(true), Rounds::nothing);
  int ran = 0;
  rounds_.sources().timers().add(Deadline::after_seconds(0).when(), [&] { ++ran; });
  EXPECT_EQ(rounds_.run(false), Rounds::nothing);
  for (unsigned i = 0; i < EventSources::quiet_interval && ran == 0; ++i) static_cast<void>(rounds_.run(false));
  EXPECT_EQ(ran, 1);
}

TEST_F(RoundsTest, KickForFunctionsThatDeferredFunctionsDefer) {
  int ran = 0;
  rounds_.defer([&] {
    ++ran;
    rounds_.defer([&] { ++ran; });
  });
  EXPECT_EQ(rounds_.run(false), Rounds::pollables_moved);
  EXPECT_EQ(ran, 1);
  EXPECT_TRUE(kicks_.kicked());
  EXPECT_TRUE(rounds_.busy());
  kicks_.clear();
  EXPECT_EQ(rounds_.run(false), Rounds::pollables_moved);
  EXPECT_EQ(ran, 2);
  EXPECT_FALSE(kicks_.kicked());
  EXPECT_FALSE(rounds_.busy());
}

TEST_F(RoundsTest, WakeSleepersAtTheirEnd) {
  bool condition = false;
  Poller poller;
  poller.on_poll = [&] { return condition = true; };
  rounds_.pollables().add(poller);
  const std::function<bool()> done = [&] {
    EXPECT_TRUE(rounds_.pollables().in_round());  // a predicate that waits would start a round in a round
    return condition;
  };
  Sleeper sleeper{.done = &done};
  rounds_.sleepers().link(sleeper);
  static_cast<void>(rounds_.run(false));
  EXPECT_EQ(sleeper.word, Sleeper::satisfied);
}

TEST_F(RoundsTest, ThatMoveNothingEvaluateNoPredicate) {
  Poller poller;
  rounds_.pollables().add(poller);
  int calls = 0;
  const std::function<bool()> done = [&] { return ++calls > 1; };
  Sleeper sleeper{.done = &done};
  EXPECT_EQ(rounds_.run(true), Rounds::nothing);  // the next look at events is far off
  rounds_.sleepers().link(sleeper);
  EXPECT_EQ(rounds_.run(false), Rounds::nothing);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(rounds_.run(true), Rounds::nothing);
  EXPECT_EQ(calls, 1);
  rounds_.sleepers().unlink(sleeper);
}

TEST_F(RoundsTest, ChangesOutsideWakeThePredicatesOwnerAndChangesInsideDoNot) {
  const std::function<bool()> done = [] { return false; };
  Sleeper sleeper{.done = &done};
  rounds_.wake_waiters();  // nobody sleeps
  rounds_.sleepers().link(sleeper);
  {
    const Pollables::Round round(rounds_.pollables());
    rounds_.wake_waiters();
  }
  EXPECT_EQ(sleeper.word, Sleeper::asleep);
  rounds_.wake_waiters();
  EXPECT_EQ(sleeper.word, Sleeper::look_again);
}

TEST_F(RoundsTest, DoNotArmOverDeferredFunctions) {
  Poller poller;
  rounds_.pollables().add(poller);
  rounds_.defer([] {});
  EXPECT_FALSE(rounds_.arm());
  EXPECT_EQ(poller.arms, 0);
  EXPECT_EQ(rounds_.run(false), Rounds::pollables_moved);
  poller.on_arm = [&] {
    rounds_.defer([] {});
    return true;
  };
  EXPECT_FALSE(rounds_.arm());
  EXPECT_EQ(poller.disarms, 1);
  EXPECT_FALSE(rounds_.pollables().armed());
  EXPECT_EQ(rounds_.run(false), Rounds::pollables_moved);
  poller.on_arm = nullptr;
  EXPECT_TRUE(rounds_.arm());
}

TEST_F(RoundsTest, FinishRunsWhatIsDeferredMeanwhileButNotForEver) {
  int ran = 0;
  rounds_.defer([&] {
    ++ran;
    rounds_.defer([&] { ++ran; });
  });
  rounds_.finish();
  EXPECT_EQ(ran, 2);
  EXPECT_FALSE(rounds_.busy());
  std::function<void()> again = [&] { rounds_.defer(again); };
  rounds_.defer(again);
  rounds_.finish();
  EXPECT_TRUE(rounds_.busy());
}

}  // namespace
}  // namespace hmc
