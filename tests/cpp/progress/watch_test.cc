#include "progress/watch.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <thread>

#include "progress/core_testing.h"

namespace hmc::testing {
namespace {

class WatchTest : public CoreFixture {
 protected:
  void SetUp() override {
    CoreFixture::SetUp();
    poller_.on_poll = [this] {
      ++polls_;
      return moves_;
    };
    add(poller_);
    core_.role.take();
  }
  void TearDown() override {
    remove(poller_);
    CoreFixture::TearDown();
  }
  Poller poller_;
  int polls_ = 0;
  bool moves_ = false;
  std::atomic<std::uint32_t> leave_{0};
  Dispatcher dispatcher_;
  Watch watch_{core_, leave_, for_ever, &dispatcher_};
};

TEST_F(WatchTest, ArmsAndSleepsWhenNothingMoves) {
  const auto nap = watch_.round();
  ASSERT_TRUE(nap);
  EXPECT_TRUE(nap->descriptors);
  EXPECT_EQ(nap->until, for_ever);
  EXPECT_EQ(polls_, 1);
  EXPECT_TRUE(armed());
  EXPECT_TRUE(core_.role.armed());
  ASSERT_TRUE(watch_.round());
  EXPECT_EQ(poller_.disarms, 1);
  EXPECT_EQ(poller_.arms, 2);
}

TEST_F(WatchTest, PollsOnWhileSomethingMoves) {
  moves_ = true;
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(watch_.round());
  EXPECT_EQ(polls_, 10);
  EXPECT_FALSE(armed());
}

TEST_F(WatchTest, SleepsUntilTheNextTimerOrItsLimit) {
  const auto due = Deadline::after_seconds(3600).when();
  core_.rounds.sources().timers().add(due, [] {});
  EXPECT_EQ(watch_.round()->until, due);
  const auto limit = Deadline::after_seconds(60).when();
  Watch limited(core_, leave_, limit, nullptr);
  EXPECT_EQ(limited.round()->until, limit);
}

TEST_F(WatchTest, StandsAsideForAPresentDriver) {
  core_.drivers.announce();
  const auto nap = watch_.round();
  ASSERT_TRUE(nap);
  EXPECT_FALSE(nap->descriptors);
  EXPECT_NE(nap->until, for_ever);
  EXPECT_EQ(polls_, 0);
  EXPECT_FALSE(armed());
  core_.drivers.leave();
  EXPECT_EQ(watch_.round()->until, for_ever);
  EXPECT_EQ(polls_, 1);
}

TEST_F(WatchTest, StandsAsideOnceForDriversThatCameAndWent) {
  core_.drivers.count();
  ASSERT_TRUE(watch_.round());
  EXPECT_EQ(polls_, 0);
  ASSERT_TRUE(watch_.round());
  EXPECT_EQ(polls_, 1);
}

TEST_F(WatchTest, PollsBesidePostsThatPollNothing) {
  for (int i = 0; i < 10; ++i) {
    core_.drivers.put_off();
    ASSERT_TRUE(watch_.round());
  }
  EXPECT_EQ(polls_, 5);
}

TEST_F(WatchTest, TakesWhatItsOwnRoundCountsForNoDriver) {
  moves_ = true;
  poller_.on_poll = [this] {
    ++polls_;
    core_.drivers.put_off();  // as Engine::retire() does, for owners of what has ended in the round
    return moves_;
  };
  EXPECT_FALSE(watch_.round());
  moves_ = false;
  const auto nap = watch_.round();
  EXPECT_TRUE(!nap || nap->descriptors) << "a standby";  // it lingers, or has lingered where the host took its time
  EXPECT_EQ(polls_, 2);
}

TEST_F(WatchTest, StandsAsideForAShortTimeWhereSomethingIsUnattended) {
  const auto standby = [this] {
    core_.drivers.count();
    const auto begun = Deadline::Clock::now();
    const auto nap = watch_.round();
    return nap ? nap->until - begun : WatchPace::Duration::max();
  };
  EXPECT_GE(standby(), WatchPace::tick);
  core_.unattended.store(1);
  const auto from = Deadline::Clock::now();
  auto least = standby();
  while (Deadline::Clock::now() - from < std::chrono::seconds(5) && least >= WatchPace::tick) least = std::min(least, standby());
  EXPECT_LT(least, WatchPace::tick);
  EXPECT_EQ(polls_, 0);
}

TEST_F(WatchTest, DriverThatHasDrivenForLongCutsAStandby) {
  core_.unattended.store(1);
  core_.drivers.announce();
  const auto cuts = [this] {  // whether the driver that leaves rings
    const auto until = Deadline::Clock::now() + std::chrono::milliseconds(5);
    core_.role.cut_standby();
    core_.role.cut_standby();  // once
    core_.role.sleep(nullptr, until);
    return Deadline::Clock::now() < until;
  };
  ASSERT_TRUE(watch_.round());
  EXPECT_FALSE(cuts());
  const auto from = Deadline::Clock::now();
  bool cut = false;
  while (Deadline::Clock::now() - from < std::chrono::seconds(20) && !cut) {
    const auto begun = Deadline::Clock::now();
    const auto nap = watch_.round();
    ASSERT_TRUE(nap);
    if (nap->until - begun >= WatchPace::tick) {
      cut = cuts();
    } else {
      core_.role.sleep(nullptr, nap->until);
    }
  }
  EXPECT_TRUE(cut);
  EXPECT_FALSE(cuts());  // it is awake
  EXPECT_EQ(polls_, 0);
}

TEST_F(WatchTest, ServesAKickThoughDriversCome) {
  core_.drivers.count();
  core_.kicks.kick();
  EXPECT_FALSE(watch_.round());  // lingers for more
  EXPECT_EQ(polls_, 1);
}

TEST_F(WatchTest, LeavesAKickToPromptDrivers) {
  make_drivers_prompt();
  core_.drivers.count();
  ASSERT_TRUE(watch_.round());
  EXPECT_EQ(polls_, 0);
}

TEST_F(WatchTest, DoesNotStandByOnceItIsToLeave) {
  core_.drivers.announce();
  leave_.store(1);
  EXPECT_FALSE(watch_.round());
}

TEST_F(WatchTest, BacksOffFromAPollableThatKeepsRefusing) {
  poller_.on_arm = [] { return false; };
  for (unsigned i = 0; i < WatchPace::patient_refusals; ++i) EXPECT_FALSE(watch_.round());
  const auto nap = watch_.round();
  ASSERT_TRUE(nap);
  EXPECT_TRUE(nap->descriptors);
  EXPECT_NE(nap->until, for_ever);
  EXPECT_FALSE(core_.role.armed());
}

TEST_F(WatchTest, WaitsForALongHolderOfTheLock) {
  std::atomic<bool> held{false}, released{false};
  std::thread holder([&] {
    const auto lock = core_.lock.lock();
    held.store(true);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    released.store(true);
  });
  ASSERT_TRUE(eventually([&] { return held.load(); }));
  poller_.on_poll = [&] {
    ++polls_;
    EXPECT_TRUE(released.load());
    return true;
  };
  while (polls_ == 0) EXPECT_FALSE(watch_.round());
  holder.join();
}

TEST_F(WatchTest, OwnersEndOnTheDispatcherOrOnAWaiterItself) {
  std::thread::id ended_on;
  const auto owner = [&] {
    return std::shared_ptr<int>(new int(1), [&](const int* owned) {
      delete owned;
      ended_on = std::this_thread::get_id();
    });
  };
  core_.retired.add(owner());
  static_cast<void>(watch_.round());
  dispatcher_.stop();
  EXPECT_NE(ended_on, std::thread::id());
  EXPECT_NE(ended_on, std::this_thread::get_id());
  core_.retired.add(owner());
  Watch waiter(core_, leave_, for_ever, nullptr);
  static_cast<void>(waiter.round());
  EXPECT_EQ(ended_on, std::this_thread::get_id());
}

TEST_F(WatchTest, NapEndsForADescriptorAndForARing) {
  const UniqueFd fd = make_event(1);
  int calls = 0;
  Handler handler([&](std::uint32_t) { ++calls; });
  const auto nap = watch_.round();
  ASSERT_TRUE(nap);
  ASSERT_TRUE(core_.rounds.sources().descriptors().watch(fd.get(), EPOLLIN, handler).ok());
  watch_.sleep(*nap);
  static_cast<void>(watch_.round());
  EXPECT_EQ(calls, 1);
  core_.rounds.sources().descriptors().unwatch(fd.get());
  std::optional<Watch::Nap> next;
  while (!next) next = watch_.round();
  std::thread ringer([&] { core_.role.wake(); });
  watch_.sleep(*next);
  ringer.join();
  EXPECT_FALSE(core_.role.armed());
}

TEST_F(WatchTest, EndWakesASleeperToTakeTheRole) {
  ASSERT_TRUE(watch_.round());
  Sleeper sleeper{.flag = &leave_};
  const auto held = core_.lock.lock();
  core_.rounds.sleepers().link(sleeper);
  watch_.end();
  EXPECT_EQ(sleeper.word, Sleeper::look_again);
  EXPECT_FALSE(core_.role.taken());
  EXPECT_FALSE(core_.rounds.pollables().armed());
}

}  // namespace
}  // namespace hmc::testing
