// After fork() the child's copy is dead: every call is refused at once, nothing blocks, and a fresh engine works there.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "hmc/completion_queue.h"
#include "progress/work_testing.h"

namespace hmc {
namespace {

class ForkTest : public testing::WorkFixture {};
INSTANTIATE_TEST_SUITE_P(Modes, ForkTest, ::testing::Values(Progress::background, Progress::manual), testing::mode_name);

TEST_P(ForkTest, ChildIsRefusedAndEndsQuietly) {
  auto state = pending();
  auto queue = CompletionQueue::create().value();
  state->then([](const Status&) {});
  // Threads at every stage: one asleep as waiter, the background and the dispatcher thread.
  auto waiter = std::async(std::launch::async, [&] { return state->wait(Deadline::after_seconds(150)); });
  completed_work(engine_)->then([](const Status&) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const pid_t child = fork();
  if (child == 0) {
    alarm(120);
    int failed = 0;
    const Work work(state);
    if (!engine_->forked()) failed |= 1;
    if (work.wait(Deadline::never()).code() != Code::closed) failed |= 2;
    if (work.cancel().code() != Code::closed) failed |= 4;
    work.then([](const Status&) {});
    queue.watch(work, 1);
    if (!queue.drain().empty()) failed |= 8;
    if (engine_->drive(Deadline::never(), [] { return false; })) failed |= 16;
    engine_->dispatch([] {});
    const std::vector<Work> works{work};
    if (wait_any(works).status().code() != Code::closed || wait_all(works).code() != Code::closed) failed |= 32;
    engine_->stop();
    // A fresh engine works in the child (ThreadSanitizer allows no new thread there).
#ifdef __SANITIZE_THREAD__
    auto fresh = Engine::create(Progress::manual).value();
#else
    auto fresh = Engine::create(GetParam()).value();
#endif
    auto mine = std::make_shared<WorkState>(fresh);
    {
      const auto lock = fresh->lock();
      mine->accepted();
      fresh->at(Deadline::after_seconds(0.01), [mine] { mine->complete({}); });
    }
    if (!mine->wait(Deadline::after_seconds(60)).ok()) failed |= 64;
    mine.reset();
    fresh.reset();
    state.reset();
    engine_.reset();
    _exit(failed);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
  complete(*state);
  EXPECT_TRUE(waiter.get().ok());
}

TEST_P(ForkTest, ChildIsRefusedWhateverTheLock) {
  auto state = pending();
  const Work work(state);
  pid_t child = -1;
  {
    const auto held = engine_->lock();
    child = fork();
    if (child == 0) {
      alarm(60);
      const bool refused = work.join(Device::cpu(), default_stream).code() == Code::closed &&
                           work.cancel().code() == Code::closed && work.withdraw().code() == Code::closed &&
                           work.wait().code() == Code::closed;
      work.then([](const Status&) {});
      _exit(refused ? 0 : 1);
    }
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  complete(*state);
}

}  // namespace
}  // namespace hmc
