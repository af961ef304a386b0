#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "progress/engine_testing.h"
#include "progress/work_state.h"
#include "progress/work_testing.h"

namespace hmc {
namespace {

using testing::eventually;

class WorkTest : public testing::WorkFixture {};
INSTANTIATE_TEST_SUITE_P(Modes, WorkTest, ::testing::Values(Progress::background, Progress::manual), testing::mode_name);

TEST_P(WorkTest, WaitTimesOutAndMayBeRepeated) {
  auto state = pending();
  const Work work(state);
  EXPECT_FALSE(work.done());
  EXPECT_EQ(work.status().code(), Code::would_block);
  EXPECT_EQ(work.wait(Deadline::after_seconds(0)).code(), Code::timeout);
  EXPECT_EQ(work.wait(Deadline::after_seconds(0.01)).code(), Code::timeout);
  EXPECT_FALSE(work.done());
  complete_later(state, 0.01, {Code::device, "seven", 7});
  const Status status = work.wait(Deadline::after_seconds(60));
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
  EXPECT_EQ(engine_->unattended().load(), 0U);
  state->then([&](const Status&) { ++callbacks; });
  EXPECT_EQ(engine_->unattended().load(), 1U);
  complete(*state);
  EXPECT_EQ(engine_->unattended().load(), 0U);
  complete(*state, {Code::peer_lost, "late"});
  EXPECT_EQ(engine_->unattended().load(), 0U);
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
      EXPECT_TRUE(second->wait(Deadline::after_seconds(60)).ok());
      second.reset();
      ran.set_value();
    });
    const auto lock = state->engine()->lock();
    state->complete({});
  }
  EXPECT_EQ(ran.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
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
  EXPECT_EQ(wait_any(works, Deadline::after_seconds(60)).value(), 3U);
  complete(*states[1], {Code::transport, "one"});
  EXPECT_EQ(wait_any(works).value(), 1U);
  for (const int i : {0, 2, 4}) complete_later(states[static_cast<std::size_t>(i)], 0.005 * i);
  EXPECT_EQ(wait_all(works, Deadline::after_seconds(60)).code(), Code::transport);  // the first by index
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
  EXPECT_EQ(engine_->late_wakeups(), 0U);
}

TEST_P(WorkTest, WaitersAsleepOutliveStop) {
  std::vector<std::shared_ptr<WorkState>> states{pending(), pending(), pending()};
  std::vector<std::future<Status>> waits;
  for (auto& state : states) {
    waits.push_back(std::async(std::launch::async, [&state] { return state->wait(Deadline::after_seconds(60)); }));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  engine_->stop();
  // From now on the waiters turn the engine among themselves; whoever finishes passes that on.
  for (std::size_t i = 0; i < states.size(); ++i) complete_later(states[i], 0.02 * static_cast<double>(i + 1));
  for (auto& wait : waits) EXPECT_TRUE(wait.get().ok());
  EXPECT_EQ(engine_->late_wakeups(), 0U);
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
  EXPECT_TRUE(state->wait(Deadline::after_seconds(60)).ok());
  EXPECT_TRUE(eventually([&] { return ends.load() == 2; }));
  {
    const auto lock = engine_->lock();
    engine_->retire(std::make_shared<Owner>(*engine_, ends));
  }
  engine_->stop();
  EXPECT_EQ(ends.load(), 3);
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
