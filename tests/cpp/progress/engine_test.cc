#include "progress/engine.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/fd.h"
#include "progress/engine_testing.h"

namespace hmc {
namespace {

using testing::Handler;
using testing::make_event;
using testing::Poller;
using testing::raise_event;

class EngineTest : public testing::EngineModes {};

INSTANTIATE_TEST_SUITE_P(Modes, EngineTest, ::testing::Values(Progress::background, Progress::manual), testing::mode_name);

TEST_P(EngineTest, DescriptorsAreLevelTriggeredAndModifiable) {
  const UniqueFd fd = make_event();
  int calls = 0;
  Handler handler([&](std::uint32_t events) {
    EXPECT_NE(events & EPOLLIN, 0U);
    ++calls;
  });
  {
    const auto lock = engine_->lock();
    ASSERT_TRUE(engine_->watch(fd.get(), EPOLLIN, handler).ok());
    EXPECT_EQ(engine_->watch(fd.get(), EPOLLIN, handler).code(), Code::invalid_argument);
    EXPECT_FALSE(engine_->watch(-1, EPOLLIN, handler).ok());
  }
  EXPECT_FALSE(until([&] { return calls > 0; }, 0.05));
  raise_event(fd.get());
  EXPECT_TRUE(until([&] { return calls >= 3; }));  // not read: ready again and again
  {
    const auto lock = engine_->lock();
    engine_->modify(fd.get(), 0);
    calls = 0;
  }
  EXPECT_FALSE(until([&] { return calls > 0; }, 0.05));
  {
    const auto lock = engine_->lock();
    engine_->modify(fd.get(), EPOLLIN);
  }
  EXPECT_TRUE(until([&] { return calls > 0; }));
  const auto lock = engine_->lock();
  engine_->unwatch(fd.get());
  engine_->unwatch(fd.get());
}

TEST_P(EngineTest, HandlersMayRemoveEachOtherWithinOneBatch) {
  // Both are ready at once; whoever comes first removes the other, whose event is already fetched.
  const UniqueFd a = make_event(1);
  const UniqueFd b = make_event(1);
  int calls = 0;
  Handler on_a([&](std::uint32_t) {
    ++calls;
    engine_->unwatch(a.get());
    engine_->unwatch(b.get());
  });
  Handler on_b = on_a;
  {
    const auto lock = engine_->lock();
    ASSERT_TRUE(engine_->watch(a.get(), EPOLLIN, on_a).ok());
    ASSERT_TRUE(engine_->watch(b.get(), EPOLLIN, on_b).ok());
  }
  ASSERT_TRUE(until([&] { return calls > 0; }));
  EXPECT_FALSE(until([&] { return calls > 1; }, 0.05));
}

TEST_P(EngineTest, EventsOfAnOldWatchNeverReachTheNewHandlerOfTheSameNumber) {
  UniqueFd a = make_event(1);
  UniqueFd b = make_event(1);
  int old_calls = 0;
  int new_calls = 0;
  Handler successor([&](std::uint32_t) { ++new_calls; });
  const auto replace = [&](UniqueFd& other) {
    ++old_calls;
    engine_->unwatch(a.get());
    engine_->unwatch(b.get());
    const UniqueFd idle = make_event(0);
    ASSERT_EQ(dup3(idle.get(), other.get(), O_CLOEXEC), other.get());  // another file under the same number
    ASSERT_TRUE(engine_->watch(other.get(), EPOLLIN, successor).ok());
  };
  Handler on_a([&](std::uint32_t) { replace(b); });
  Handler on_b([&](std::uint32_t) { replace(a); });
  {
    const auto lock = engine_->lock();
    ASSERT_TRUE(engine_->watch(a.get(), EPOLLIN, on_a).ok());
    ASSERT_TRUE(engine_->watch(b.get(), EPOLLIN, on_b).ok());
  }
  ASSERT_TRUE(until([&] { return old_calls > 0; }));
  EXPECT_FALSE(until([&] { return new_calls > 0 || old_calls > 1; }, 0.05));
  const auto lock = engine_->lock();
  engine_->unwatch(a.get());
  engine_->unwatch(b.get());
}

TEST_P(EngineTest, TimersRunOnceInOrderAndCanBeCancelled) {
  std::vector<int> order;
  const auto held = std::make_shared<int>(0);
  const auto now = Deadline::Clock::now();
  const auto after = [now](int milliseconds) { return Deadline::at(now + std::chrono::milliseconds(milliseconds)); };
  {
    const auto lock = engine_->lock();
    engine_->at(after(30), [&] { order.push_back(3); });
    engine_->at(after(10), [&] {
      order.push_back(1);
      engine_->at(Deadline::after_seconds(0), [&] { order.push_back(2); });
    });
    const auto cancelled = engine_->at(after(20), [&, held] { order.push_back(99); });
    EXPECT_EQ(held.use_count(), 2);
    engine_->cancel_timer(cancelled);
    EXPECT_EQ(held.use_count(), 1);
    engine_->cancel_timer(cancelled);
    engine_->cancel_timer(12345);
    engine_->at(Deadline::never(), [&] { order.push_back(100); });
  }
  EXPECT_TRUE(until([&] { return order.size() >= 3; }));
  EXPECT_FALSE(until([&] { return order.size() > 3; }, 0.05));
  ASSERT_EQ(order.size(), 3U);
  EXPECT_EQ(order[0], 1);  // 3 may come before 2 when both are due: what a timer adds waits for the next round
  EXPECT_TRUE(std::is_permutation(order.begin(), order.end(), std::vector<int>{1, 2, 3}.begin()));
}

TEST_P(EngineTest, TimerMayCancelItselfAndOthersDueAtOnce) {
  int ran = 0;
  Engine::TimerId first = 0;
  Engine::TimerId second = 0;
  const auto now = Deadline::after_seconds(0.01);
  {
    const auto lock = engine_->lock();
    const auto callback = [&] {
      ++ran;
      engine_->cancel_timer(first);
      engine_->cancel_timer(second);
    };
    first = engine_->at(now, callback);
    second = engine_->at(now, callback);
  }
  EXPECT_TRUE(until([&] { return ran > 0; }));
  EXPECT_FALSE(until([&] { return ran > 1; }, 0.05));
}

TEST_P(EngineTest, DeferredRunsOutsideTheCallChainAndMayDefer) {
  std::vector<int> order;
  Poller poller;
  bool inside = false;
  bool once = true;
  poller.on_poll = [&] {
    if (!once) return false;
    once = false;
    inside = true;
    engine_->defer([&] {
      EXPECT_FALSE(inside);
      order.push_back(1);
      engine_->defer([&] { order.push_back(2); });
    });
    inside = false;
    return true;
  };
  {
    const auto lock = engine_->lock();
    engine_->add(poller);
  }
  EXPECT_TRUE(until([&] { return order.size() == 2; }));
  const auto lock = engine_->lock();
  engine_->remove(poller);
}

TEST_P(EngineTest, PollablesMayRemoveThemselvesAndOthersAndAdd) {
  Poller a;
  Poller b;
  Poller c;
  int removed_polls = 0;
  bool c_polled = false;
  a.on_poll = [&] {
    engine_->remove(b);
    engine_->remove(a);
    engine_->add(c);
    return true;
  };
  b.on_poll = [&] {
    ++removed_polls;
    return false;
  };
  c.on_poll = [&] { return c_polled = true, false; };
  {
    const auto lock = engine_->lock();
    engine_->add(a);
    engine_->add(b);
    EXPECT_TRUE(engine_->poll_once());
    EXPECT_EQ(removed_polls, 0);
  }
  EXPECT_TRUE(until([&] { return c_polled; }));
  EXPECT_EQ(removed_polls, 0);
  const auto lock = engine_->lock();
  engine_->remove(c);
  engine_->remove(c);
}

}  // namespace
}  // namespace hmc
