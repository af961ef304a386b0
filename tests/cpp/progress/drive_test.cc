#include "progress/drive.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <future>
#include <thread>

#include "progress/core_testing.h"
#include "progress/drive_pace.h"

namespace hmc::testing {
namespace {

class DriveTest : public CoreFixture {
 protected:
  bool drive(double seconds = 60) {
    return Drive<FlagDone>(core_, background_, Deadline::after_seconds(seconds), FlagDone{flag_}).run();
  }
  bool drive(const std::function<bool()>& done, double seconds = 60) {
    return Drive<FunctionDone>(core_, background_, Deadline::after_seconds(seconds), FunctionDone{done}).run();
  }
  // Sets the flag as a completion does.
  void complete() {
    const auto held = core_.lock.lock();
    flag_.store(1);
    core_.rounds.wake_waiters();
  }
  bool a_waiter_watches_asleep() {
    return eventually([&] { return core_.role.armed(); });
  }
  std::atomic<std::uint32_t> flag_{0};
  Dispatcher dispatcher_;
  BackgroundThread background_{core_, dispatcher_, Progress::manual};
};

TEST_F(DriveTest, EndsWithoutAPollWhenItIsDone) {
  Poller poller;
  int polls = 0;
  poller.on_poll = [&] { return ++polls != 0; };
  add(poller);
  flag_.store(1);
  EXPECT_TRUE(drive());
  EXPECT_EQ(polls, 0);
  EXPECT_FALSE(core_.drivers.present());
  remove(poller);
}

TEST_F(DriveTest, PollsUntilItIsDone) {
  Poller poller;
  int polls = 0;
  poller.on_poll = [&] {
    EXPECT_TRUE(core_.drivers.present());
    if (++polls == 1000) flag_.store(1);
    return polls % 3 == 0;
  };
  add(poller);
  const auto driven = core_.drivers.driven();
  EXPECT_TRUE(drive());
  EXPECT_EQ(polls, 1000);
  EXPECT_NE(core_.drivers.driven(), driven);
  EXPECT_FALSE(core_.drivers.present());
  remove(poller);
}

TEST_F(DriveTest, TakesOverFromAnArmedWatcher) {
  Poller poller;
  poller.on_poll = [&] {
    flag_.store(1);
    return true;
  };
  add(poller);
  {
    const auto held = core_.lock.lock();
    ASSERT_TRUE(core_.rounds.arm());
    core_.role.take();
    core_.role.announce_armed(for_ever);
  }
  EXPECT_TRUE(drive());
  EXPECT_FALSE(armed());
  expect_rung();
  remove(poller);
}

TEST_F(DriveTest, LooksAtEverythingOnceThoughTheDeadlineHasPassed) {
  const UniqueFd fd = make_event(1);
  int calls = 0;
  Handler handler([&](std::uint32_t) {
    ++calls;
    core_.rounds.sources().descriptors().modify(fd.get(), 0);
  });
  Poller poller;
  add(poller);
  ASSERT_TRUE(core_.rounds.sources().descriptors().watch(fd.get(), EPOLLIN, handler).ok());
  EXPECT_FALSE(drive(0));
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(core_.drivers.present());
  core_.rounds.sources().descriptors().unwatch(fd.get());
  remove(poller);
}

TEST_F(DriveTest, LeavesKickedWorkToTheWatcher) {
  flag_.store(1);
  core_.role.take();
  core_.role.announce_standby({});
  core_.kicks.kick();
  EXPECT_TRUE(drive());
  expect_rung();
}

TEST_F(DriveTest, CutsAStandbyShort) {
  flag_.store(1);
  core_.role.take();
  core_.role.announce_standby(Deadline::Clock::now());
  EXPECT_TRUE(drive());
  expect_rung();
  core_.role.announce_standby({});
  EXPECT_TRUE(drive());
  expect_not_rung();
}

TEST_F(DriveTest, CutsAStandbyShortThoughAnotherDriverHasTheLock) {
  BackgroundThread startable(core_, dispatcher_, Progress::background);
  core_.role.take();
  core_.role.announce_standby(Deadline::Clock::now());
  const auto held = core_.lock.lock();
  flag_.store(1);
  auto waiter = std::async(std::launch::async,
                           [&] { return Drive<FlagDone>(core_, startable, Deadline::after_seconds(60), FlagDone{flag_}).run(); });
  EXPECT_TRUE(waiter.get());
  expect_rung();
}

TEST_F(DriveTest, PromptDriverWakesTheWatcherOnlyForWorkThatIsLeft) {
  bool busy = false;
  Poller poller;
  poller.on_busy = [&] { return busy; };
  add(poller);
  flag_.store(1);
  core_.role.take();
  make_drivers_prompt();
  core_.role.announce_standby({});
  EXPECT_TRUE(drive());
  expect_not_rung();
  busy = true;
  core_.role.announce_standby({});
  EXPECT_TRUE(drive());
  expect_rung();
  remove(poller);
}

TEST_F(DriveTest, PassesAFreeRoleToASleeper) {
  const std::atomic<std::uint32_t> never{0};
  Sleeper sleeper{.flag = &never};
  core_.rounds.sleepers().link(sleeper);
  flag_.store(1);
  EXPECT_TRUE(drive());
  EXPECT_EQ(sleeper.word, Sleeper::look_again);
}

TEST_F(DriveTest, DropsRetiredOwnersWithoutTheLock) {
  bool ended = false;
  core_.retired.add(std::shared_ptr<int>(new int(1), [&](const int* owned) {
    delete owned;
    ended = core_.lock.try_lock();
    if (ended) core_.lock.unlock();
  }));
  flag_.store(1);
  EXPECT_TRUE(drive());
  EXPECT_TRUE(ended);
}

TEST_F(DriveTest, SeesItsFlagWhileAnotherDriverHasTheLock) {
  BackgroundThread startable(core_, dispatcher_, Progress::background);
  const auto held = core_.lock.lock();
  flag_.store(1);
  auto waiter = std::async(std::launch::async,
                           [&] { return Drive<FlagDone>(core_, startable, Deadline::after_seconds(60), FlagDone{flag_}).run(); });
  EXPECT_TRUE(waiter.get());
  EXPECT_FALSE(core_.drivers.present());
}

TEST_F(DriveTest, SleepsAsTheWatcherWithoutABackgroundThread) {
  Poller poller;
  add(poller);
  auto waiter = std::async(std::launch::async, [&] { return drive(); });
  ASSERT_TRUE(a_waiter_watches_asleep());
  complete();
  EXPECT_TRUE(waiter.get());
  EXPECT_FALSE(core_.role.taken());
  EXPECT_FALSE(armed());
  EXPECT_TRUE(core_.rounds.sleepers().empty());
  remove(poller);
}

TEST_F(DriveTest, SleeperTakesTheRoleThatAnotherGaveUp) {
  auto first = std::async(std::launch::async, [&] { return drive(); });
  ASSERT_TRUE(a_waiter_watches_asleep());
  std::atomic<std::uint32_t> other{0};
  auto second = std::async(std::launch::async,
                           [&] { return Drive<FlagDone>(core_, background_, Deadline::after_seconds(60), FlagDone{other}).run(); });
  complete();
  EXPECT_TRUE(first.get());
  ASSERT_TRUE(a_waiter_watches_asleep());
  {
    const auto held = core_.lock.lock();
    other.store(1);
    core_.rounds.wake_waiters();
  }
  EXPECT_TRUE(second.get());
  EXPECT_FALSE(core_.role.taken());
}

TEST_F(DriveTest, SleeperLooksByItselfAtWhatNobodyAnnounced) {
  core_.role.take();  // another watches, and wakes nobody
  std::atomic<int> looks{0};
  auto waiter = std::async(std::launch::async, [&] {
    return drive([&] {
      ++looks;
      return flag_.load() != 0;
    });
  });
  ASSERT_TRUE(eventually([&] {
    const auto held = core_.lock.lock();
    return !core_.rounds.sleepers().empty();
  }));
  flag_.store(1);
  EXPECT_TRUE(waiter.get());
  EXPECT_EQ(core_.rounds.sleepers().late_wakeups(), 1U);
  EXPECT_FALSE(core_.drivers.present());
}

TEST_F(DriveTest, FunctionIsNotCalledAgainOnceItWasTrue) {
  Poller poller;
  add(poller);
  bool condition = false;
  int trues = 0;
  auto waiter = std::async(std::launch::async, [&] { return drive([&] { return condition && ++trues != 0; }); });
  ASSERT_TRUE(a_waiter_watches_asleep());
  {
    const auto held = core_.lock.lock();
    condition = true;
    core_.rounds.wake_waiters();
  }
  EXPECT_TRUE(waiter.get());
  EXPECT_EQ(trues, 1);
  remove(poller);
}

TEST_F(DriveTest, EndsAtItsDeadlineAsleep) {
  const auto start = Deadline::Clock::now();
  EXPECT_FALSE(drive(0.05));
  EXPECT_GE(Deadline::Clock::now() - start, std::chrono::milliseconds(50));
  EXPECT_FALSE(core_.role.taken());
  EXPECT_TRUE(core_.rounds.sleepers().empty());
}

struct Interrupt final : Interruptible {
  bool asked() override {
    ++asks;
    return true;
  }
  void before_waiting() override { ++waits; }
  int asks = 0;
  int waits = 0;
};

TEST_F(DriveTest, InterruptedThreadEndsItsWait) {
  Interrupt interrupt;
  EXPECT_FALSE(drive(1000));
  EXPECT_EQ(interrupt.asks, 1);
  EXPECT_GE(interrupt.waits, 1);
  EXPECT_TRUE(core_.rounds.sleepers().empty());
}

TEST_F(DriveTest, PromptCallDoesNotCountAsOneThatWaits) {
  Interrupt interrupt;
  Poller poller;
  unsigned polls = 0;
  poller.on_poll = [&] {
    if (++polls == DrivePace::looks_per_locking) flag_.store(1);
    return false;
  };
  add(poller);
  EXPECT_TRUE(drive());
  EXPECT_EQ(interrupt.waits, 0);
  flag_.store(0);
  static_assert(3 * DrivePace::prompt_rounds < WaitPolicy::most_rounds);  // before a yield, which could be long and lead to a sleep
  poller.on_poll = [&] {
    if (++polls == 3 * DrivePace::prompt_rounds) flag_.store(1);
    return false;
  };
  EXPECT_TRUE(drive());
  EXPECT_EQ(interrupt.waits, 1);
  remove(poller);
}

// What before_waiting() releases (an interpreter's lock) may be what the awaited thread waits for.
TEST_F(DriveTest, CountsAsOneThatWaitsBeforeItsFirstYield) {
  Interrupt interrupt;
  core_.wait_policy.yielded(std::chrono::seconds(1));
  core_.wait_policy.yielded(std::chrono::seconds(1));
  ASSERT_EQ(core_.wait_policy.rounds(), WaitPolicy::least_rounds);
  Poller poller;
  unsigned polls = 0, polls_before_waiting = 0;
  poller.on_poll = [&] {
    if (interrupt.waits == 0) polls_before_waiting = polls;
    if (++polls == WaitPolicy::least_rounds + 1) flag_.store(1);  // after one yield: a long second one could lead to a sleep
    return false;
  };
  add(poller);
  EXPECT_TRUE(drive());
  EXPECT_EQ(interrupt.waits, 1);
  EXPECT_LT(polls_before_waiting, WaitPolicy::least_rounds);
  remove(poller);
}

}  // namespace
}  // namespace hmc::testing
