// Tasks that any thread leaves for the next poll.
#include "comm/session/deferred_tasks.h"

#include <memory>
#include <thread>
#include <vector>

#include "testing.h"

namespace hmc {
namespace {

TEST(DeferredTasks, RunOnceInOrder) {
  DeferredTasks tasks;
  EXPECT_FALSE(tasks.run());
  std::vector<int> ran;
  EXPECT_TRUE(tasks.add([&] { ran.push_back(1); })) << "the first one wakes the engine";
  EXPECT_FALSE(tasks.add([&] { ran.push_back(2); }));
  EXPECT_TRUE(tasks.pending());
  EXPECT_TRUE(tasks.run());
  EXPECT_FALSE(tasks.pending());
  EXPECT_FALSE(tasks.run());
  EXPECT_EQ(ran, (std::vector<int>{1, 2}));
}

TEST(DeferredTasks, ATaskAddsTheNext) {
  DeferredTasks tasks;
  int ran = 0;
  EXPECT_TRUE(tasks.add([&] {
    ++ran;
    EXPECT_TRUE(tasks.add([&] { ++ran; })) << "the list in progress is not extended";
  }));
  EXPECT_TRUE(tasks.run());
  EXPECT_EQ(ran, 1);
  EXPECT_TRUE(tasks.run());
  EXPECT_EQ(ran, 2);
}

TEST(DeferredTasks, StopDiscardsTheRest) {
  DeferredTasks tasks;
  const auto owned = std::make_shared<int>(0);
  EXPECT_TRUE(tasks.add([owned] { FAIL() << "discarded"; }));
  EXPECT_FALSE(tasks.stopped());
  EXPECT_EQ(tasks.stop().size(), 1U);
  EXPECT_TRUE(tasks.stopped());
  EXPECT_FALSE(tasks.add([owned] { FAIL() << "discarded"; }));
  EXPECT_EQ(owned.use_count(), 1) << "discarded tasks release what they own";
}

TEST(DeferredTasks, EveryThreadsTasksRun) {
  DeferredTasks tasks;
  constexpr int each = 1000;
  int ran = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < each; ++i) static_cast<void>(tasks.add([&] { ++ran; }));
    });
  }
  while (ran < 4 * each) {
    if (!tasks.run()) std::this_thread::yield();
  }
  for (auto& thread : threads) thread.join();
  EXPECT_FALSE(tasks.pending());
}

}  // namespace
}  // namespace hmc
