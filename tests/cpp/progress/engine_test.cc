#include "progress/engine.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <algorithm>
#include <functional>
#include <future>
#include <thread>

#include "base/fd.h"
#include "progress/engine_testing.h"

namespace hmc {
namespace {

using testing::Handler;
using testing::make_event;
using testing::Poller;
using testing::process_cpu;
using testing::raise_event;

class EngineTest : public ::testing::TestWithParam<Progress> {
 protected:
  void SetUp() override { engine_ = Engine::create(GetParam()).value(); }
  void TearDown() override {
    if (engine_) engine_->stop();
  }
  // What `function` needs to become true, with the engine turned in the way of its mode.
  bool until(const std::function<bool()>& function, double seconds = 10) {
    return engine_->drive(Deadline::after_seconds(seconds), function);
  }
  std::shared_ptr<Engine> engine_;
};

INSTANTIATE_TEST_SUITE_P(Modes, EngineTest, ::testing::Values(Progress::background, Progress::manual),
                         [](const auto& mode) { return mode.param == Progress::manual ? "manual" : "background"; });

TEST_P(EngineTest, DescriptorsAreLevelTriggeredAndModifiable) {
  const UniqueFd fd = make_event();
  int calls = 0;
  Handler handler([&](std::uint32_t events) {
    EXPECT_NE(events & EPOLLIN, 0U);
    ++calls;
  });
  {
    const auto lock = engine_->lock();
    ASSERT_TRUE(engine_->watch(fd.get(), EPOLLIN, handler).ok());
    EXPECT_EQ(engine_->watch(fd.get(), EPOLLIN, handler).code(), Code::invalid_argument);
    EXPECT_FALSE(engine_->watch(-1, EPOLLIN, handler).ok());
  }
  EXPECT_FALSE(until([&] { return calls > 0; }, 0.05));
  raise_event(fd.get());
  EXPECT_TRUE(until([&] { return calls >= 3; }));  // not read: ready again and again
  {
    const auto lock = engine_->lock();
    engine_->modify(fd.get(), 0);
    calls = 0;
  }
  EXPECT_FALSE(until([&] { return calls > 0; }, 0.05));
  {
    const auto lock = engine_->lock();
    engine_->modify(fd.get(), EPOLLIN);
  }
  EXPECT_TRUE(until([&] { return calls > 0; }));
  const auto lock = engine_->lock();
  engine_->unwatch(fd.get());
  engine_->unwatch(fd.get());
}

TEST_P(EngineTest, HandlersMayRemoveEachOtherWithinOneBatch) {
  // Both are ready at once; whoever comes first removes the other, whose event is already fetched.
  const UniqueFd a = make_event(1);
  const UniqueFd b = make_event(1);
  int calls = 0;
  Handler on_a([&](std::uint32_t) {
    ++calls;
    engine_->unwatch(a.get());
    engine_->unwatch(b.get());
  });
  Handler on_b = on_a;
  {
    const auto lock = engine_->lock();
    ASSERT_TRUE(engine_->watch(a.get(), EPOLLIN, on_a).ok());
    ASSERT_TRUE(engine_->watch(b.get(), EPOLLIN, on_b).ok());
  }
  ASSERT_TRUE(until([&] { return calls > 0; }));
  EXPECT_FALSE(until([&] { return calls > 1; }, 0.05));
}

TEST_P(EngineTest, EventsOfAnOldWatchNeverReachTheNewHandlerOfTheSameNumber) {
  UniqueFd a = make_event(1);
  UniqueFd b = make_event(1);
  int old_calls = 0;
  int new_calls = 0;
  Handler successor([&](std::uint32_t) { ++new_calls; });
  const auto replace = [&](UniqueFd& other) {
    ++old_calls;
    engine_->unwatch(a.get());
    engine_->unwatch(b.get());
    const int number = other.get();
    other.reset();
    other = make_event(0);  // not ready, and most likely the same number
    EXPECT_EQ(other.get(), number);
    ASSERT_TRUE(engine_->watch(other.get(), EPOLLIN, successor).ok());
  };
  Handler on_a([&](std::uint32_t) { replace(b); });
  Handler on_b([&](std::uint32_t) { replace(a); });
  {
    const auto lock = engine_->lock();
    ASSERT_TRUE(engine_->watch(a.get(), EPOLLIN, on_a).ok());
    ASSERT_TRUE(engine_->watch(b.get(), EPOLLIN, on_b).ok());
  }
  ASSERT_TRUE(until([&] { return old_calls > 0; }));
  EXPECT_FALSE(until([&] { return new_calls > 0 || old_calls > 1; }, 0.05));
  const auto lock = engine_->lock();
  engine_->unwatch(a.get());
  engine_->unwatch(b.get());
}

TEST_P(EngineTest, TimersRunOnceInOrderAndCanBeCancelled) {
  std::vector<int> order;
  const auto held = std::make_shared<int>(0);
  {
    const auto lock = engine_->lock();
    engine_->at(Deadline::after_seconds(0.03), [&] { order.push_back(3); });
    engine_->at(Deadline::after_seconds(0.01), [&] {
      order.push_back(1);
      engine_->at(Deadline::after_seconds(0), [&] { order.push_back(2); });
    });
    const auto cancelled = engine_->at(Deadline::after_seconds(0.02), [&, held] { order.push_back(99); });
    EXPECT_EQ(held.use_count(), 2);
    engine_->cancel_timer(cancelled);
    EXPECT_EQ(held.use_count(), 1);
    engine_->cancel_timer(cancelled);
    engine_->cancel_timer(12345);
    engine_->at(Deadline::never(), [&] { order.push_back(100); });
  }
  EXPECT_TRUE(until([&] { return order.size() >= 3; }));
  EXPECT_FALSE(until([&] { return order.size() > 3; }, 0.05));
  ASSERT_EQ(order.size(), 3U);
  EXPECT_EQ(order[0], 1);  // 3 may come before 2 when both are due: what a timer adds waits for the next round
  EXPECT_TRUE(std::is_permutation(order.begin(), order.end(), std::vector<int>{1, 2, 3}.begin()));
}

TEST_P(EngineTest, TimerMayCancelItselfAndOthersDueAtOnce) {
  int ran = 0;
  Engine::TimerId first = 0;
  Engine::TimerId second = 0;
  const auto now = Deadline::after_seconds(0.01);
  {
    const auto lock = engine_->lock();
    const auto callback = [&] {
      ++ran;
      engine_->cancel_timer(first);
      engine_->cancel_timer(second);
    };
    first = engine_->at(now, callback);
    second = engine_->at(now, callback);
  }
  EXPECT_TRUE(until([&] { return ran > 0; }));
  EXPECT_FALSE(until([&] { return ran > 1; }, 0.05));
}

TEST_P(EngineTest, DeferredRunsOutsideTheCallChainAndMayDefer) {
  std::vector<int> order;
  Poller poller;
  bool inside = false;
  bool once = true;
  poller.on_poll = [&] {
    if (!once) return false;
    once = false;
    inside = true;
    engine_->defer([&] {
      EXPECT_FALSE(inside);
      order.push_back(1);
      engine_->defer([&] { order.push_back(2); });
    });
    inside = false;
    return true;
  };
  {
    const auto lock = engine_->lock();
    engine_->add(poller);
  }
  EXPECT_TRUE(until([&] { return order.size() == 2; }));
  const auto lock = engine_->lock();
  engine_->remove(poller);
}

TEST_P(EngineTest, PollablesMayRemoveThemselvesAndOthersAndAdd) {
  Poller a;
  Poller b;
  Poller c;
  int removed_polls = 0;
  bool c_polled = false;
  a.on_poll = [&] {
    engine_->remove(b);
    engine_->remove(a);
    engine_->add(c);
    return true;
  };
  b.on_poll = [&] {
    ++removed_polls;
    return false;
  };
  c.on_poll = [&] { return c_polled = true, false; };
  {
    const auto lock = engine_->lock();
    engine_->add(a);
    engine_->add(b);
    EXPECT_TRUE(engine_->poll_once());
    EXPECT_EQ(removed_polls, 0);
  }
  EXPECT_TRUE(until([&] { return c_polled; }));
  EXPECT_EQ(removed_polls, 0);
  const auto lock = engine_->lock();
  engine_->remove(c);
  engine_->remove(c);
}

TEST_P(EngineTest, DriveHonoursItsDeadline) {
  std::atomic<std::uint32_t> flag{0};
  for (const double seconds : {0.0, 0.0005, 0.02, 0.1}) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_FALSE(engine_->drive_flag(Deadline::after_seconds(seconds), flag));
    EXPECT_FALSE(engine_->drive(Deadline::after_seconds(seconds), [] { return false; }));
    EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::duration<double>(2 * seconds));
  }
  flag.store(1);
  EXPECT_TRUE(engine_->drive_flag(Deadline::after_seconds(0), flag));
  EXPECT_TRUE(engine_->drive(Deadline::after_seconds(0), [] { return true; }));
}

TEST_P(EngineTest, DriveWithZeroDeadlineLooksAtEverythingOnce) {
  const UniqueFd fd = make_event(1);
  int calls = 0;
  Handler handler([&](std::uint32_t) { ++calls; });
  {
    const auto lock = engine_->lock();
    ASSERT_TRUE(engine_->watch(fd.get(), EPOLLIN, handler).ok());
  }
  EXPECT_TRUE(engine_->drive(Deadline::after_seconds(0), [&] { return calls > 0; }));
  const auto lock = engine_->lock();
  engine_->unwatch(fd.get());
}

TEST_P(EngineTest, SpinningWaiterStillSeesDescriptorsAndTimers) {
  // A Pollable that always moves something keeps every waiter in its fast loop.
  Poller busy;
  busy.on_poll = [] { return true; };
  const UniqueFd fd = make_event(1);
  std::atomic<std::uint32_t> seen{0};
  std::atomic<std::uint32_t> fired{0};
  Handler handler([&](std::uint32_t) { seen.store(1); });
  {
    const auto lock = engine_->lock();
    engine_->add(busy);
    ASSERT_TRUE(engine_->watch(fd.get(), EPOLLIN, handler).ok());
    engine_->at(Deadline::after_seconds(0.01), [&] { fired.store(1); });
  }
  EXPECT_TRUE(engine_->drive_flag(Deadline::after_seconds(10), seen));
  EXPECT_TRUE(engine_->drive_flag(Deadline::after_seconds(10), fired));
  std::atomic<std::uint32_t> never{0};
  EXPECT_FALSE(engine_->drive_flag(Deadline::after_seconds(0.02), never));  // the deadline too
  const auto lock = engine_->lock();
  engine_->remove(busy);
  engine_->unwatch(fd.get());
}

TEST_P(EngineTest, DoorbellWakesASleepingWaiter) {
  // Readiness that only poll() can see, announced through the doorbell alone, after everybody has gone to sleep.
  std::atomic<bool> arrived{false};
  std::atomic<std::uint32_t> flag{0};
  Poller poller;
  poller.on_poll = [&] {
    if (!arrived.exchange(false)) return false;
    flag.store(1);
    return true;
  };
  {
    const auto lock = engine_->lock();
    engine_->add(poller);
  }
  for (int i = 0; i < 20; ++i) {
    flag.store(0);
    std::thread peer([&] {
      const int before = poller.arms.load();
      for (int n = 0; n < 10'000 && poller.arms.load() == before; ++n) std::this_thread::sleep_for(std::chrono::microseconds(100));
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      arrived.store(true);
      raise_event(engine_->doorbell());
    });
    EXPECT_TRUE(engine_->drive_flag(Deadline::after_seconds(10), flag));
    peer.join();
  }
  EXPECT_GT(poller.arms.load(), 0);
  const auto lock = engine_->lock();
  engine_->remove(poller);
}

TEST_P(EngineTest, SleepingWaiterIsWokenByAPostFromAnotherThread) {
  std::atomic<std::uint32_t> flag{0};
  bool condition = false;
  auto by_flag = std::async(std::launch::async, [&] { return engine_->drive_flag(Deadline::after_seconds(20), flag); });
  auto by_function =
      std::async(std::launch::async, [&] { return engine_->drive(Deadline::after_seconds(20), [&] { return condition; }); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  {
    const auto lock = engine_->lock();
    flag.store(1);
    condition = true;
    engine_->wake_waiters();
  }
  EXPECT_TRUE(by_flag.get());
  EXPECT_TRUE(by_function.get());
}

TEST_P(EngineTest, ArmThatRefusesIsPolledOn) {
  Poller poller;
  std::atomic<int> polls{0};
  std::atomic<std::uint32_t> flag{0};
  poller.on_arm = [] { return false; };
  poller.on_poll = [&] {
    if (++polls < 2000) return false;
    flag.store(1);
    return true;
  };
  {
    const auto lock = engine_->lock();
    engine_->add(poller);
  }
  EXPECT_TRUE(engine_->drive_flag(Deadline::after_seconds(20), flag));
  const auto lock = engine_->lock();
  engine_->remove(poller);
}

TEST_P(EngineTest, WaitersOfManyThreadsShareTheEngine) {
  // Each thread waits for its own flag; one Pollable sets them in turn.
  constexpr int count = 8;
  constexpr int rounds = 200;
  std::vector<std::atomic<std::uint32_t>> flags(count * rounds);
  std::atomic<int> next{0};
  Poller poller;
  poller.on_poll = [&] {
    if (next.load() == count * rounds) return false;
    flags[static_cast<std::size_t>(next.load())].store(1);
    ++next;
    return true;
  };
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  {
    const auto lock = engine_->lock();
    engine_->add(poller);
  }
  for (int t = 0; t < count; ++t) {
    threads.emplace_back([&, t] {
      for (int r = 0; r < rounds; ++r) {
        if (!engine_->drive_flag(Deadline::after_seconds(30), flags[static_cast<std::size_t>(r * count + t)])) ++failures;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
  const auto lock = engine_->lock();
  engine_->remove(poller);
}

TEST_P(EngineTest, IdleCostsNoCpu) {
  // A contract, not a speed: armed and asleep means no periodic work at all, also with a waiter asleep and a far timer set.
  const UniqueFd fd = make_event();
  Handler handler([](std::uint32_t) {});
  Poller poller;
  std::atomic<std::uint32_t> flag{0};
  {
    const auto lock = engine_->lock();
    engine_->add(poller);
    ASSERT_TRUE(engine_->watch(fd.get(), EPOLLIN, handler).ok());
    engine_->at(Deadline::after_seconds(3600), [] {});
    engine_->kick();
  }
  auto waiter = std::async(std::launch::async, [&] { return engine_->drive_flag(Deadline::after_seconds(30), flag); });
  ASSERT_TRUE(testing::eventually([&] { return poller.arms.load() > 0; }));
  // Several windows, for a machine so busy that the waiter has not gone to sleep in the first: periodic work would show in all.
  bool idle = false;
  for (int window = 0; window < 5 && !idle; ++window) {
    const int arms = poller.arms.load();
    const double before = process_cpu();
    std::this_thread::sleep_for(std::chrono::seconds(1));
    idle = process_cpu() - before < 0.010 && poller.arms.load() == arms;
  }
  EXPECT_TRUE(idle);
  {
    const auto lock = engine_->lock();
    flag.store(1);
    engine_->wake_waiters();
  }
  EXPECT_TRUE(waiter.get());
  const auto lock = engine_->lock();
  engine_->remove(poller);
  engine_->unwatch(fd.get());
}

}  // namespace
}  // namespace hmc
