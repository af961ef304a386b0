// Worker: tasks run in order; a system that gives no thread is an error, not a task that waits for ever.
#include "progress/worker.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "base/fork.h"
#include "testing.h"

namespace hmc {
namespace {

TEST(Worker, WithoutAThreadNothingIsPromised) {
  Worker worker;
  std::promise<std::vector<int>> all;
  std::vector<int> ran;
  {
    const testing::NoThreads refused;
    EXPECT_EQ(worker.run([&] { ran.push_back(0); }).code(), Code::out_of_memory);
  }
  for (int i = 1; i < 4; ++i) HMC_ASSERT_OK(worker.run([&ran, i] { ran.push_back(i); }));
  {
    const testing::NoThreads refused;  // it has its thread
    HMC_ASSERT_OK(worker.run([&] { all.set_value(ran); }));
  }
  auto result = all.get_future();
  ASSERT_EQ(result.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_EQ(result.get(), (std::vector<int>{1, 2, 3}));
  worker.stop();
  EXPECT_EQ(worker.run([] {}).code(), Code::closed);
}

TEST(Worker, AForkedChildIsRefusedAndEnds) {
  install_fork_handler();
  auto worker = std::make_unique<Worker>();
  std::promise<void> ran;
  HMC_ASSERT_OK(worker->run([&] { ran.set_value(); }));
  ran.get_future().wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // its thread sleeps by now
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    const bool refused = worker->run([] {}).code() == Code::closed;
    worker->stop();
    worker.reset();
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace hmc
