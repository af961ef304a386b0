#include "progress/engine_core.h"

#include <gtest/gtest.h>

#include "progress/core_testing.h"

namespace hmc::testing {
namespace {

class EngineCoreTest : public CoreFixture {};

TEST_F(EngineCoreTest, TakingOverDisarmsAndWakesTheWatcher) {
  Poller poller;
  add(poller);
  const auto held = core_.lock.lock();
  ASSERT_TRUE(core_.rounds.arm());
  core_.role.announce_armed(for_ever);
  core_.take_over();
  EXPECT_FALSE(core_.rounds.pollables().armed());
  EXPECT_EQ(poller.disarms, 1);
  expect_rung();
  core_.role.announce_standby({});
  core_.take_over();  // nothing is armed
  EXPECT_EQ(poller.disarms, 1);
  expect_not_rung();
}

TEST_F(EngineCoreTest, WatcherOnStandbyIsNotWokenForPromptDrivers) {
  core_.role.announce_standby({});
  core_.wake_watcher_unless_prompt();
  expect_rung();
  make_drivers_prompt();
  core_.role.announce_standby({});
  core_.wake_watcher_unless_prompt();
  expect_not_rung();
  core_.role.announce_armed(for_ever);
  core_.wake_watcher_unless_prompt();
  expect_rung();
}

TEST_F(EngineCoreTest, KicksAreAnsweredOnce) {
  core_.kicks.kick();
  core_.kicks.expect_answer(Deadline::Clock::now());
  core_.answer_kicks();
  EXPECT_FALSE(core_.kicks.unanswered());
  EXPECT_TRUE(core_.kicks.kicked());
  core_.answer_kicks();
  EXPECT_FALSE(core_.kicks.drivers_are_prompt());
}

TEST_F(EngineCoreTest, RetiredOwnersEndWithoutTheLock) {
  bool ended = false;
  core_.retired.add(std::shared_ptr<int>(new int(1), [&](const int* owned) {
    delete owned;
    ended = core_.lock.try_lock();
    if (ended) core_.lock.unlock();
  }));
  core_.drop_retired();
  EXPECT_TRUE(ended);
  EXPECT_TRUE(core_.retired.empty());
}

TEST_F(EngineCoreTest, IsNotForked) { EXPECT_FALSE(core_.forked()); }

}  // namespace
}  // namespace hmc::testing
