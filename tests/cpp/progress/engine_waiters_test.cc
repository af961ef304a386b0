#include "progress/engine.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "progress/engine_testing.h"

namespace hmc {
namespace {

using testing::Handler;
using testing::make_event;
using testing::Poller;
using testing::process_cpu;
using testing::raise_event;

class EngineWaitersTest : public testing::EngineModes {};

INSTANTIATE_TEST_SUITE_P(Modes, EngineWaitersTest, ::testing::Values(Progress::background, Progress::manual), testing::mode_name);

TEST_P(EngineWaitersTest, DriveHonoursItsDeadline) {
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

TEST_P(EngineWaitersTest, DriveWithZeroDeadlineLooksAtEverythingOnce) {
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

TEST_P(EngineWaitersTest, DeadlineHoldsWhileADescriptorStaysReady) {
  // Its handler takes nothing: every look at descriptors moves something, the rounds between them do not.
  const UniqueFd fd = make_event(1);
  Handler handler([](std::uint32_t) {});
  Poller poller;
  {
    const auto lock = engine_->lock();
    engine_->add(poller);
    ASSERT_TRUE(engine_->watch(fd.get(), EPOLLIN, handler).ok());
  }
  const std::atomic<std::uint32_t> never{0};
  EXPECT_FALSE(engine_->drive_flag(Deadline::after_seconds(0), never));
  EXPECT_FALSE(engine_->drive_flag(Deadline::after_seconds(0.02), never));
  const auto lock = engine_->lock();
  engine_->unwatch(fd.get());
  engine_->remove(poller);
}

TEST_P(EngineWaitersTest, SpinningWaiterStillSeesDescriptorsAndTimers) {
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
  EXPECT_TRUE(engine_->drive_flag(Deadline::after_seconds(60), seen));
  EXPECT_TRUE(engine_->drive_flag(Deadline::after_seconds(60), fired));
  std::atomic<std::uint32_t> never{0};
  EXPECT_FALSE(engine_->drive_flag(Deadline::after_seconds(0.02), never));  // the deadline too
  const auto lock = engine_->lock();
  engine_->remove(busy);
  engine_->unwatch(fd.get());
}

TEST_P(EngineWaitersTest, DoorbellWakesASleepingWaiter) {
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
      engine_->wake();
    });
    EXPECT_TRUE(engine_->drive_flag(Deadline::after_seconds(60), flag));
    peer.join();
  }
  EXPECT_GT(poller.arms.load(), 0);
  const auto lock = engine_->lock();
  engine_->remove(poller);
}

TEST_P(EngineWaitersTest, SleepingWaiterIsWokenByAPostFromAnotherThread) {
  std::atomic<std::uint32_t> flag{0};
  bool condition = false;
  auto by_flag = std::async(std::launch::async, [&] { return engine_->drive_flag(Deadline::after_seconds(60), flag); });
  auto by_function =
      std::async(std::launch::async, [&] { return engine_->drive(Deadline::after_seconds(60), [&] { return condition; }); });
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

TEST_P(EngineWaitersTest, ArmThatRefusesIsPolledOn) {
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
  EXPECT_TRUE(engine_->drive_flag(Deadline::after_seconds(60), flag));
  const auto lock = engine_->lock();
  engine_->remove(poller);
}

TEST_P(EngineWaitersTest, WaitersOfManyThreadsShareTheEngine) {
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
        if (!engine_->drive_flag(Deadline::after_seconds(60), flags[static_cast<std::size_t>(r * count + t)])) ++failures;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
  const auto lock = engine_->lock();
  engine_->remove(poller);
}

TEST_P(EngineWaitersTest, IdleCostsNoCpu) {
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
  auto waiter = std::async(std::launch::async, [&] { return engine_->drive_flag(Deadline::after_seconds(150), flag); });
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
