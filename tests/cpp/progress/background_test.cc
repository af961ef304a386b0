// The background thread: it finishes what nobody waits for, and never keeps others out.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "progress/engine.h"
#include "progress/engine_testing.h"
#include "testing.h"

namespace hmc {
namespace {

using testing::eventually;
using testing::Poller;

TEST(Engine, BackgroundThreadFinishesKickedWorkWithoutWaiters) {
  auto engine = Engine::create(Progress::background).value();
  Poller poller;
  std::atomic<int> left{0};
  std::atomic<int> finished{0};
  poller.on_poll = [&] {
    if (left.load() == 0) return false;
    if (--left == 0) ++finished;
    return true;
  };
  {
    const auto lock = engine->lock();
    engine->add(poller);
  }
  for (int i = 0; i < 50; ++i) {
    // Sometimes it sleeps armed, sometimes it stands by, sometimes it is awake.
    std::this_thread::sleep_for(std::chrono::microseconds(i % 3 == 0 ? 0 : i * 100));
    {
      const auto lock = engine->lock();
      left.store(100);
      engine->kick();
    }
    ASSERT_TRUE(eventually([&] { return finished.load() > i; }));
  }
  engine->stop();
  const auto lock = engine->lock();
  engine->remove(poller);
}

// The system refuses their thread for a while, and no other callback follows.
TEST(Engine, CallbacksRunOnceThereCanBeAThreadForThem) {
  for (const Progress progress : {Progress::background, Progress::manual}) {
    auto engine = Engine::create(progress).value();
    Poller poller;
    {
      const auto lock = engine->lock();
      engine->add(poller);
    }
    std::atomic<int> ran{0};
    {
      const testing::NoThreads refused;
      for (int i = 0; i < 3; ++i) engine->dispatch([&ran, i] { ran.store(ran.load() * 10 + i + 1); });
      std::this_thread::sleep_for(std::chrono::milliseconds(250));
      EXPECT_EQ(ran.load(), 0);
    }
    EXPECT_TRUE(eventually([&] {
      if (progress == Progress::manual) engine->drive(Deadline::after(std::chrono::milliseconds(1)), [] { return false; });
      return ran.load() == 123;
    })) << ran.load();
    engine->stop();
    const auto lock = engine->lock();
    engine->remove(poller);
  }
}

TEST(Engine, BackgroundThreadStandsAsideForPromptDriversAndMissesNothing) {
  auto engine = Engine::create(Progress::background).value();
  Poller poller;
  std::atomic<int> first{0}, second{0};  // polls that each piece of work needs still
  std::atomic<std::uint32_t> over{0};    // the first is
  poller.on_poll = [&] {
    const bool moved = first.load() != 0 || second.load() != 0;
    if (first.load() != 0 && --first == 0) over.store(1);
    if (second.load() != 0) --second;
    return moved;
  };
  poller.on_busy = [&] { return first.load() != 0 || second.load() != 0; };
  {
    const auto lock = engine->lock();
    engine->add(poller);
  }
  const auto post = [&](int some, int more) {
    const auto lock = engine->lock();
    over.store(0);
    first.store(some);
    second.store(more);
    engine->kick();
  };
  for (int i = 0; i < 200; ++i) {
    for (int n = 0; n < 8; ++n) {
      post(3, 0);
      ASSERT_TRUE(engine->drive_flag(Deadline::after_seconds(60), over));
    }
    // Nobody comes for this one, or somebody who leaves half of it behind.
    const bool alone = i % 2 == 0;
    post(3, alone ? 3 : 100);
    if (!alone) {
      ASSERT_TRUE(engine->drive_flag(Deadline::after_seconds(60), over));
    }
    ASSERT_TRUE(eventually([&] { return first.load() == 0 && second.load() == 0; })) << i;
  }
  engine->stop();
  const auto lock = engine->lock();
  engine->remove(poller);
}

TEST(Engine, BackgroundThreadTakesOverWhatAWaiterLeftBehind) {
  // Work that moves only when polled and was never kicked: the thread must come by within a tick of the last waiter.
  auto engine = Engine::create(Progress::background).value();
  Poller poller;
  std::atomic<int> polls{0};
  std::atomic<bool> pending{false};
  std::atomic<std::uint32_t> flag{0};
  poller.on_poll = [&] {
    ++polls;
    flag.store(1);
    return false;
  };
  poller.on_arm = [&] { return !pending.load(); };
  {
    const auto lock = engine->lock();
    engine->add(poller);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // asleep, armed
  pending.store(true);
  flag.store(0);
  ASSERT_TRUE(engine->drive_flag(Deadline::after_seconds(60), flag));
  const int before = polls.load();
  EXPECT_TRUE(eventually([&] { return polls.load() >= before + 100; }));
  pending.store(false);
  engine->stop();
  const auto lock = engine->lock();
  engine->remove(poller);
}

TEST(Engine, EarlierTimerWakesTheSleepingThread) {
  auto engine = Engine::create(Progress::background).value();
  std::atomic<int> fired{0};
  {
    const auto lock = engine->lock();
    engine->at(Deadline::after_seconds(3600), [] {});
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  for (int i = 0; i < 5; ++i) {
    {
      const auto lock = engine->lock();
      engine->at(Deadline::after_seconds(0.005), [&] { ++fired; });
    }
    ASSERT_TRUE(eventually([&] { return fired.load() > i; }));
  }
  engine->stop();
}

TEST(Engine, PollableAddedWhileEverybodySleepsIsArmed) {
  auto engine = Engine::create(Progress::background).value();
  Poller first;
  Poller second;
  {
    const auto lock = engine->lock();
    engine->add(first);
  }
  ASSERT_TRUE(eventually([&] { return first.arms.load() > 0; }));
  {
    const auto lock = engine->lock();
    engine->add(second);
  }
  EXPECT_TRUE(eventually([&] { return second.arms.load() > 0; }));
  engine->stop();
  EXPECT_EQ(first.arms.load(), first.disarms.load());
}

// A deferred function often holds the last thing that holds the engine.
TEST(Engine, WhatIsDeferredAtTheEndRunsAndDoesNotKeepTheEngine) {
  for (const Progress progress : {Progress::background, Progress::manual}) {
    int ran = 0;
    auto engine = Engine::create(progress).value();
    const std::weak_ptr<Engine> weak = engine;
    {
      const auto lock = engine->lock();
      engine->defer([&ran, engine] {
        ++ran;
        engine->defer([&ran, engine] { ++ran; });
      });
    }
    engine->stop();
    EXPECT_EQ(ran, 2);
    engine.reset();
    EXPECT_TRUE(weak.expired());
  }
}

TEST(Engine, BlockedPostersAreNotStarvedByAWaiterInItsFastLoop) {
  auto engine = Engine::create(Progress::background).value();
  Poller busy;
  busy.on_poll = [] {
    for (int i = 0; i < 2000; ++i) asm volatile("");
    return true;
  };
  std::atomic<std::uint32_t> flag{0};
  {
    const auto lock = engine->lock();
    engine->add(busy);
  }
  std::thread waiter([&] { EXPECT_TRUE(engine->drive_flag(Deadline::after_seconds(150), flag)); });
  std::vector<std::thread> posters;
  for (int t = 0; t < 3; ++t) {
    posters.emplace_back([&] {
      for (int i = 0; i < 200; ++i) const auto lock = engine->lock();
    });
  }
  for (auto& poster : posters) poster.join();
  {
    const auto lock = engine->lock();
    flag.store(1);
  }
  waiter.join();
  engine->stop();
  const auto lock = engine->lock();
  engine->remove(busy);
}

}  // namespace
}  // namespace hmc
