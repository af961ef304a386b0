#include "hmc/completion_queue.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "progress/work_testing.h"

namespace hmc {
namespace {

class CompletionQueueTest : public testing::WorkFixture {};
INSTANTIATE_TEST_SUITE_P(Modes, CompletionQueueTest, ::testing::Values(Progress::background, Progress::manual), testing::mode_name);

TEST_P(CompletionQueueTest, FeedsAnEventLoop) {
  auto queue = CompletionQueue::create().value();
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(epoll_ctl(epoll, EPOLL_CTL_ADD, queue.fd(), &event), 0);
  EXPECT_EQ(epoll_wait(epoll, &event, 1, 0), 0);
  constexpr std::size_t count = 2000;
  std::vector<std::shared_ptr<WorkState>> states;
  for (std::size_t i = 0; i < count; ++i) states.push_back(pending());
  for (std::size_t i = 0; i < count; ++i) queue.watch(Work(states[i]), i);
  states[0]->then([](const Status&) {});  // counts once
  EXPECT_EQ(engine_->unattended().load(), count);
  EXPECT_EQ(epoll_wait(epoll, &event, 1, 0), 0);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = t; i < count; i += 2) complete(*states[i]);
    });
  }
  std::vector<int> seen(count);
  std::size_t total = 0;
  while (total < count) {
    ASSERT_EQ(epoll_wait(epoll, &event, 1, 60'000), 1);
    for (const std::uint64_t token : queue.drain()) {
      ++seen.at(token);
      ++total;
    }
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(engine_->unattended().load(), 0U);
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<std::ptrdiff_t>(count));
  EXPECT_EQ(epoll_wait(epoll, &event, 1, 0), 0);
  EXPECT_TRUE(queue.drain().empty());
  queue.watch(Work(states[0]), 77);  // complete already
  EXPECT_EQ(epoll_wait(epoll, &event, 1, 0), 1);
  EXPECT_EQ(queue.drain(), std::vector<std::uint64_t>{77});
  CompletionQueue none;
  EXPECT_EQ(none.fd(), -1);
  none.watch(Work(states[0]), 1);
  EXPECT_TRUE(none.drain().empty());
  queue.watch(Work(), 1);
  EXPECT_TRUE(queue.drain().empty());
  close(epoll);
}

TEST_P(CompletionQueueTest, MayEndBeforeTheWorksItWatches) {
  auto state = pending();
  {
    auto queue = CompletionQueue::create().value();
    queue.watch(Work(state), 1);
  }
  complete(*state);
}

}  // namespace
}  // namespace hmc
