#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "hmc/completion_queue.h"
#include "progress/engine_impl.h"
#include "progress/engine_testing.h"
#include "progress/work_state.h"

namespace hmc {
namespace {

using testing::eventually;
using testing::Poller;

class WorkTest : public ::testing::TestWithParam<Progress> {
 protected:
  void SetUp() override { engine_ = Engine::create(GetParam()).value(); }
  void TearDown() override {
    if (engine_) engine_->stop();
  }
  std::shared_ptr<WorkState> pending() {
    auto state = std::make_shared<WorkState>(engine_);
    const auto lock = engine_->lock();
    state->accepted();
    return state;
  }
  void complete(WorkState& state, Status status = {}) {
    const auto lock = engine_->lock();
    state.complete(std::move(status));
  }
  // Completes after `seconds`, in an engine round.
  void complete_later(const std::shared_ptr<WorkState>& state, double seconds, Status status = {}) {
    const auto lock = engine_->lock();
    engine_->at(Deadline::after_seconds(seconds), [state, status] { state->complete(status); });
  }
  std::shared_ptr<Engine> engine_;
};

INSTANTIATE_TEST_SUITE_P(Modes, WorkTest, ::testing::Values(Progress::background, Progress::manual),
                         [](const auto& mode) { return mode.param == Progress::manual ? "manual" : "background"; });

TEST_P(WorkTest, WaitTimesOutAndMayBeRepeated) {
  auto state = pending();
  const Work work(state);
  EXPECT_FALSE(work.done());
  EXPECT_EQ(work.status().code(), Code::would_block);
  EXPECT_EQ(work.wait(Deadline::after_seconds(0)).code(), Code::timeout);
  EXPECT_EQ(work.wait(Deadline::after_seconds(0.01)).code(), Code::timeout);
  EXPECT_FALSE(work.done());
  complete_later(state, 0.01, {Code::device, "seven", 7});
  const Status status = work.wait(Deadline::after_seconds(10));
  EXPECT_EQ(status.code(), Code::device);
  EXPECT_EQ(status.native(), 7);
  EXPECT_EQ(work.status().code(), Code::device);
  EXPECT_EQ(work.wait(Deadline::after_seconds(0)).code(), Code::device);
}

TEST_P(WorkTest, CompletesOnceAndKeepsTheFirstOutcome) {
  auto state = pending();
  int hooks = 0;
  std::atomic<int> callbacks{0};
  {
    const auto lock = engine_->lock();
    state->on_complete_locked([&](const Status&) { ++hooks; });
  }
  state->then([&](const Status&) { ++callbacks; });
  complete(*state);
  complete(*state, {Code::peer_lost, "late"});
  EXPECT_TRUE(state->status().ok());
  EXPECT_TRUE(eventually([&] { return callbacks.load() == 1; }));
  EXPECT_EQ(hooks, 1);
  engine_->stop();
  EXPECT_EQ(callbacks.load(), 1);
}

struct Tracked final : WorkState {
  Tracked(std::shared_ptr<Engine> engine, std::atomic<int>& ends, std::vector<int>& order)
      : WorkState(std::move(engine)), ends_(ends), order_(order) {}
  ~Tracked() override { ++ends_; }
  void released() noexcept override { order_.push_back(2); }
  Status cancel_locked() override {
    complete({Code::cancelled, "nothing was written"});
    return {};
  }
  std::atomic<int>& ends_;
  std::vector<int>& order_;
};

TEST_P(WorkTest, LivesUntilCompletionWithoutAnyHandle) {
  std::atomic<int> ends{0};
  std::vector<int> order;
  WorkState* raw = nullptr;
  {
    auto state = std::make_shared<Tracked>(engine_, ends, order);
    const auto lock = engine_->lock();
    state->accepted();
    state->on_complete_locked([&](const Status&) { order.push_back(1); });
    raw = state.get();
  }
  EXPECT_EQ(ends.load(), 0);
  complete(*raw);
  EXPECT_EQ(ends.load(), 1);
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST_P(WorkTest, CancelAndItsThreeAnswers) {
  std::atomic<int> ends{0};
  std::vector<int> order;
  const Work stubborn(pending());
  EXPECT_EQ(stubborn.cancel().code(), Code::unsupported);
  EXPECT_FALSE(stubborn.done());
  complete(*stubborn.state());
  EXPECT_EQ(stubborn.cancel().code(), Code::invalid_argument);
  const Work work(std::make_shared<Tracked>(engine_, ends, order));
  {
    const auto lock = engine_->lock();
    work.state()->accepted();
  }
  EXPECT_TRUE(work.cancel().ok());
  EXPECT_EQ(work.status().code(), Code::cancelled);
  EXPECT_EQ(work.cancel().code(), Code::invalid_argument);
}

TEST_P(WorkTest, EmptyHandlesAreErrorsNotCrashes) {
  const Work none;
  EXPECT_FALSE(none.valid());
  EXPECT_FALSE(none.done());
  EXPECT_EQ(none.wait(Deadline::after_seconds(0)).code(), Code::invalid_argument);
  EXPECT_EQ(none.status().code(), Code::invalid_argument);
  EXPECT_EQ(none.cancel().code(), Code::invalid_argument);
  none.then([](const Status&) { FAIL(); });
  EXPECT_EQ(wait_any({}).status().code(), Code::invalid_argument);
  EXPECT_TRUE(wait_all({}).ok());
  const std::vector<Work> works{none};
  EXPECT_EQ(wait_any(works).status().code(), Code::invalid_argument);
  EXPECT_EQ(wait_all(works).code(), Code::invalid_argument);
}

TEST_P(WorkTest, CallbacksRunInOrderOnOneOtherThreadAndNeverInsideTheCall) {
  std::mutex mutex;
  std::vector<int> order;
  std::set<std::thread::id> threads;
  const auto note = [&](int i) {
    return [&, i](const Status&) {
      const std::scoped_lock lock(mutex);
      order.push_back(i);
      threads.insert(std::this_thread::get_id());
    };
  };
  std::vector<Work> works;
  for (int i = 0; i < 100; ++i) {
    works.emplace_back(pending());
    works.back().then(note(2 * i));
    works.back().then(note(2 * i + 1));
  }
  for (const Work& work : works) complete(*work.state());
  works.front().then(note(200));  // complete already
  engine_->stop();
  ASSERT_EQ(order.size(), 201U);
  for (int i = 0; i <= 200; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(threads.size(), 1U);
  EXPECT_FALSE(threads.contains(std::this_thread::get_id()));
}

TEST_P(WorkTest, CallbacksMayUseTheEngineAndEndIt) {
  // The last reference to the engine goes inside a callback: neither thread waits for itself.
  std::promise<void> ran;
  {
    auto state = pending();
    auto second = pending();
    Work(state).then([&ran, state, second, engine = std::move(engine_)](const Status&) mutable {
      {
        const auto lock = engine->lock();
        second->complete({});
      }
      EXPECT_TRUE(second->wait(Deadline::after_seconds(10)).ok());
      second.reset();
      ran.set_value();
    });
    const auto lock = state->engine()->lock();
    state->complete({});
  }
  EXPECT_EQ(ran.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

TEST_P(WorkTest, ThenAfterStopStillRunsOnce) {
  const Work work(pending());
  complete(*work.state());
  engine_->stop();
  std::atomic<int> calls{0};
  for (int i = 0; i < 10; ++i) work.then([&](const Status&) { ++calls; });
  EXPECT_TRUE(eventually([&] { return calls.load() == 10; }));
}

TEST_P(WorkTest, WaitAnyAndWaitAll) {
  std::vector<std::shared_ptr<WorkState>> states;
  std::vector<Work> works;
  for (int i = 0; i < 5; ++i) {
    states.push_back(pending());
    works.emplace_back(states.back());
  }
  EXPECT_EQ(wait_any(works, Deadline::after_seconds(0.01)).status().code(), Code::timeout);
  EXPECT_EQ(wait_all(works, Deadline::after_seconds(0.01)).code(), Code::timeout);
  complete_later(states[3], 0.01, {Code::device, "three"});
  EXPECT_EQ(wait_any(works, Deadline::after_seconds(10)).value(), 3U);
  complete(*states[1], {Code::transport, "one"});
  EXPECT_EQ(wait_any(works).value(), 1U);
  for (const int i : {0, 2, 4}) complete_later(states[static_cast<std::size_t>(i)], 0.005 * i);
  EXPECT_EQ(wait_all(works, Deadline::after_seconds(10)).code(), Code::transport);  // the first by index
  auto other = Engine::create(GetParam()).value();
  works.emplace_back(completed_work(other));
  EXPECT_EQ(wait_any(works).status().code(), Code::invalid_argument);
  EXPECT_EQ(wait_all(works).code(), Code::transport);
}

TEST_P(WorkTest, NoWakeupIsLostBetweenManyWaitersAndCompleters) {
  // Completers complete inline (outside any round) after random pauses around the waiters' spin, yield and sleep times.
  constexpr int waiters = 6;
  constexpr int rounds = 60;
  std::vector<std::vector<std::shared_ptr<WorkState>>> states(waiters);
  for (auto& row : states) {
    for (int r = 0; r < rounds; ++r) row.push_back(pending());
  }
  std::atomic<int> callbacks{0};
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int w = 0; w < waiters; ++w) {
    threads.emplace_back([&, w] {
      auto& row = states[static_cast<std::size_t>(w)];
      for (auto& state : row) state->then([&](const Status&) { ++callbacks; });
      for (std::size_t r = 0; r < row.size(); ++r) {
        if (r % 3 == 0) {
          const std::vector<Work> rest{Work(row[r])};
          if (!wait_any(rest, Deadline::after_seconds(50)).ok()) ++failures;
        } else if (!row[r]->wait(Deadline::after_seconds(50)).ok()) {
          ++failures;
        }
      }
    });
  }
  for (int c = 0; c < 2; ++c) {
    threads.emplace_back([&, c] {
      std::mt19937 random(static_cast<unsigned>(c));
      for (int r = 0; r < rounds; ++r) {
        for (std::size_t w = static_cast<std::size_t>(c); w < states.size(); w += 2) {
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 2 == 0 ? random() % 50 : random() % 3000));
          complete(*states[w][static_cast<std::size_t>(r)]);
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  engine_->stop();
  EXPECT_EQ(failures.load(), 0);
  EXPECT_EQ(callbacks.load(), waiters * rounds);
  EXPECT_EQ(dynamic_cast<EngineImpl&>(*engine_).late_wakeups(), 0U);
}

TEST_P(WorkTest, RetiredOwnersEndWithoutTheLock) {
  struct Owner {
    explicit Owner(Engine& e, std::atomic<int>& n) : engine(e), ends(n) {}
    ~Owner() {
      const auto lock = engine.lock();  // would deadlock under the lock
      ++ends;
    }
    Engine& engine;
    std::atomic<int>& ends;
  };
  std::atomic<int> ends{0};
  {
    const auto lock = engine_->lock();
    engine_->retire(std::make_shared<Owner>(*engine_, ends));
  }
  if (GetParam() == Progress::manual) engine_->drop_retired();
  EXPECT_TRUE(eventually([&] { return ends.load() == 1; }));
  auto state = pending();
  {
    const auto lock = engine_->lock();
    engine_->retire(std::make_shared<Owner>(*engine_, ends));
  }
  complete_later(state, 0.005);
  EXPECT_TRUE(state->wait(Deadline::after_seconds(10)).ok());
  EXPECT_TRUE(eventually([&] { return ends.load() == 2; }));
  {
    const auto lock = engine_->lock();
    engine_->retire(std::make_shared<Owner>(*engine_, ends));
  }
  engine_->stop();
  EXPECT_EQ(ends.load(), 3);
}

TEST_P(WorkTest, CompletionQueueFeedsAnEventLoop) {
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
    ASSERT_EQ(epoll_wait(epoll, &event, 1, 10'000), 1);
    for (const std::uint64_t token : queue.drain()) {
      ++seen.at(token);
      ++total;
    }
  }
  for (auto& thread : threads) thread.join();
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

TEST_P(WorkTest, QueueMayEndBeforeTheWorksItWatches) {
  auto state = pending();
  {
    auto queue = CompletionQueue::create().value();
    queue.watch(Work(state), 1);
  }
  complete(*state);
}

TEST_P(WorkTest, ForkedChildIsRefusedAndEndsQuietly) {
  auto state = pending();
  auto queue = CompletionQueue::create().value();
  state->then([](const Status&) {});
  // Threads at every stage: one asleep as waiter, the background and the dispatcher thread.
  auto waiter = std::async(std::launch::async, [&] { return state->wait(Deadline::after_seconds(30)); });
  completed_work(engine_)->then([](const Status&) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
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
    // A fresh engine works in the child.
    auto fresh = Engine::create(GetParam()).value();
    auto mine = std::make_shared<WorkState>(fresh);
    {
      const auto lock = fresh->lock();
      mine->accepted();
      fresh->at(Deadline::after_seconds(0.01), [mine] { mine->complete({}); });
    }
    if (!mine->wait(Deadline::after_seconds(5)).ok()) failed |= 64;
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

TEST(Dispatcher, RunsWhatCallbacksDispatchAndStopRunsOut) {
  auto engine = Engine::create(Progress::manual).value();
  std::vector<int> order;
  std::atomic<bool> go{false};
  engine->dispatch([&] {
    while (!go.load()) std::this_thread::yield();
    order.push_back(0);
    engine->dispatch([&] { order.push_back(3); });
  });
  engine->dispatch([&] { order.push_back(1); });
  {
    const auto lock = engine->lock();
    engine->dispatch([&] { order.push_back(2); });
  }
  go.store(true);
  engine->stop();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3}));
  engine->stop();
}

TEST(Engine, LastReferenceMayGoAnywhere) {
  for (int i = 0; i < 200; ++i) {
    auto engine = Engine::create(Progress::background).value();
    auto state = std::make_shared<WorkState>(engine);
    {
      const auto lock = engine->lock();
      state->accepted();
      // Completed on the background thread, which then may hold the last reference.
      engine->defer([raw = state.get()] { raw->complete({}); });
    }
    if (i % 2 == 0) state->then([](const Status&) {});
    if (i % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(i * 10));
    state.reset();
    engine.reset();
  }
}

}  // namespace
}  // namespace hmc
