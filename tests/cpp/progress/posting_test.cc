#include "progress/posting.h"

#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <thread>

#include "progress/core_testing.h"

namespace hmc {
namespace {

class PostingTest : public testing::CoreFixture {
 protected:
  Posting posting_{core_};
  testing::Poller poller_;
};

TEST_F(PostingTest, ALookPollsAndSaysSo) {
  int polls = 0;
  bool looked = false;
  poller_.on_poll = [&] {
    ++polls;
    looked = posting_.looks();
    return true;
  };
  add(poller_);
  {
    const auto held = core_.lock.lock();
    posting_.look();
  }
  EXPECT_EQ(polls, 1);
  EXPECT_TRUE(looked);
  EXPECT_FALSE(posting_.looks());
  EXPECT_EQ(core_.drivers.posts(), 1U);
  remove(poller_);
}

TEST_F(PostingTest, ALookThatThrowsIsOver) {
  poller_.on_poll = []() -> bool { throw std::bad_alloc(); };
  add(poller_);
  {
    const auto held = core_.lock.lock();
    EXPECT_THROW(posting_.look(), std::bad_alloc);
    EXPECT_FALSE(posting_.looks());
  }
  remove(poller_);
}

TEST_F(PostingTest, APollThatPostsIsNotPolledAgain) {
  int polls = 0;
  poller_.on_poll = [&] {
    ++polls;
    posting_.look();
    return true;
  };
  add(poller_);
  {
    const auto held = core_.lock.lock();
    core_.rounds.run(false);
  }
  EXPECT_EQ(polls, 1);
  EXPECT_EQ(core_.drivers.posts(), 0U);
  remove(poller_);
}

TEST_F(PostingTest, LeavesWhatIsArmedToTheWatcher) {
  int polls = 0;
  poller_.on_poll = [&] {
    ++polls;
    return false;
  };
  add(poller_);
  {
    const auto held = core_.lock.lock();
    ASSERT_TRUE(core_.rounds.arm());
    posting_.look();
    core_.rounds.pollables().disarm();
  }
  EXPECT_EQ(polls, 0);
  remove(poller_);
}

TEST_F(PostingTest, WhatIsLeftToTheTickPutsTheWatcherOff) {
  const auto held = core_.lock.lock();
  const auto put_offs = core_.drivers.put_offs();
  core_.kicks.kick();
  core_.kicks.expect_answer(Deadline::Clock::now());
  EXPECT_FALSE(posting_.leave_to_tick());
  EXPECT_NE(core_.drivers.put_offs(), put_offs);
  EXPECT_FALSE(core_.kicks.unanswered());
  core_.retired.add(std::make_shared<int>(0));
  EXPECT_TRUE(posting_.leave_to_tick());
}

// The watcher leaves both to a row of posts, or of joins that come within each tick.
TEST_F(PostingTest, ALookSeesToEventsThatNobodyHasLookedAt) {
  int ran = 0;
  add(poller_);  // without a Pollable every round looks
  {
    const auto held = core_.lock.lock();
    core_.rounds.run(true);
    core_.rounds.sources().timers().add(Deadline::after_seconds(0).when(), [&] { ++ran; });
    std::this_thread::sleep_for(Posting::events_after);
    posting_.look();
  }
  EXPECT_EQ(ran, 1);
  remove(poller_);
}

}  // namespace
}  // namespace hmc
