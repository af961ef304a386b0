// in_parallel: each part once, on several threads, also after fork().
#include "progress/in_parallel.h"

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "testing.h"

namespace hmc {
namespace {

// Whether two parts were under way at one time.
bool parts_meet() {
  std::mutex mutex;
  std::condition_variable changed;
  int here = 0;
  bool met = true;
  in_parallel(2, 2, [&](std::size_t) {
    std::unique_lock lock(mutex);
    ++here;
    changed.notify_one();
    if (!changed.wait_for(lock, std::chrono::seconds(60), [&] { return here == 2; })) met = false;
  });
  return met;
}

int status_of(pid_t child) {
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(InParallel, EachPartOnceAlsoInsideAnother) {
  std::array<std::array<std::atomic<int>, 9>, 7> done{};
  in_parallel(4, done.size(), [&](std::size_t i) { in_parallel(3, 9, [&, i](std::size_t j) { ++done.at(i).at(j); }); });
  for (const auto& row : done) {
    for (const auto& count : row) EXPECT_EQ(count, 1);
  }
  in_parallel(0, 0, [](std::size_t) { ADD_FAILURE(); });
  EXPECT_TRUE(parts_meet());
}

TEST(InParallel, AnExceptionOfAPartComesOut) {
  for (int round = 0; round < 100; ++round) {
    std::atomic<int> begun{0};
    const auto part = [&](std::size_t i) {
      ++begun;
      if (i == 1) throw std::runtime_error("part 1");
    };
    EXPECT_THROW(in_parallel(3, 1'000'000, part), std::runtime_error);
    EXPECT_LT(begun, 1'000'000);
  }
}

TEST(InParallelChild, Main) {
  if (std::getenv("HMC_IN_PARALLEL_CHILD") == nullptr) GTEST_SKIP() << "runs only as a child of another test";
  ASSERT_TRUE(parts_meet());
  testing::wait_until_other_threads_sleep();
  const pid_t child = fork();
  if (child == 0) {
    alarm(120);
    _exit(parts_meet() ? 0 : 1);
  }
  EXPECT_EQ(status_of(child), 0);
}

// In a process that has made no Context.
TEST(InParallel, AForkedChildHasThreadsOfItsOwn) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer allows no new thread in a forked child";
#endif
  char program[] = "/proc/self/exe", filter[] = "--gtest_filter=InParallelChild.Main";
  std::array<char*, 3> arguments{program, filter, nullptr};
  setenv("HMC_IN_PARALLEL_CHILD", "1", 1);
  pid_t child = -1;
  const int error = posix_spawn(&child, program, nullptr, nullptr, arguments.data(), environ);
  unsetenv("HMC_IN_PARALLEL_CHILD");
  ASSERT_EQ(error, 0);
  EXPECT_EQ(status_of(child), 0);
}

TEST(InParallel, WorksInAChildWhateverTheOtherThreadsDid) {
#ifdef HMC_TEST_SANITIZED
  GTEST_SKIP() << "a sanitizer's allocator may be locked in the child";
#endif
  std::atomic<bool> over{false};
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([&over] {
      while (!over) in_parallel(2, 2, [](std::size_t) {});
    });
  }
  for (int round = 0; round < 50 && !HasFailure(); ++round) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      in_parallel(2, 2, [](std::size_t) {});
      _exit(0);
    }
    EXPECT_EQ(status_of(child), 0);
  }
  over = true;
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace hmc
