#include "progress/engine_lock.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "progress/engine_testing.h"

namespace hmc {
namespace {

using testing::eventually;

TEST(EngineLock, OneThreadHasIt) {
  EngineLock lock;
  {
    const auto held = lock.lock();
    EXPECT_TRUE(held.owns_lock());
    std::thread([&] { EXPECT_FALSE(lock.try_lock()); }).join();
  }
  ASSERT_TRUE(lock.try_lock());
  lock.unlock();
  ASSERT_TRUE(lock.try_lock());
  lock.adopt().unlock();
  EXPECT_TRUE(lock.block().owns_lock());
  EXPECT_FALSE(lock.contended());
}

TEST(EngineLock, BlockedThreadMakesItContendedUntilItHasTheLock) {
  EngineLock lock;
  std::atomic<bool> entered{false};
  auto held = lock.lock();
  std::thread blocked([&] {
    const auto mine = lock.lock();
    entered.store(true);
  });
  EXPECT_TRUE(eventually([&] { return lock.contended(); }));
  EXPECT_FALSE(entered.load());
  held.unlock();
  blocked.join();
  EXPECT_TRUE(entered.load());
  EXPECT_FALSE(lock.contended());
}

TEST(EngineLock, PollingThreadLetsEveryOtherIn) {
  EngineLock lock;
  std::atomic<bool> stop{false};
  int guarded = 0;
  std::thread poller([&] {
    while (!stop.load()) {
      if (!lock.try_lock()) continue;
      ++guarded;
      lock.unlock();
      if (lock.contended()) lock.give_way();
    }
  });
  constexpr int threads = 3, turns = 200;
  int taken = 0;
  std::vector<std::thread> posters;
  for (int t = 0; t < threads; ++t) {
    posters.emplace_back([&] {
      for (int i = 0; i < turns; ++i) {
        const auto held = lock.lock();
        ++taken;
      }
    });
  }
  for (auto& poster : posters) poster.join();
  EXPECT_TRUE(eventually([&] {
    const auto held = lock.lock();
    return guarded > 0;
  }));
  stop.store(true);
  poller.join();
  EXPECT_EQ(taken, threads * turns);
}

}  // namespace
}  // namespace hmc
