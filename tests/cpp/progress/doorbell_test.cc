#include "progress/doorbell.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <future>
#include <thread>
#include <vector>

#include "engine_testing.h"
#include "progress/descriptors.h"

namespace hmc {
namespace {

using namespace testing;

std::future<void> sleeper(Doorbell& bell, const Descriptors* descriptors = nullptr) {
  return std::async(std::launch::async, [&bell, descriptors] { bell.sleep(descriptors, Deadline::after_seconds(60).when()); });
}

bool over(const std::future<void>& sleep) { return sleep.wait_for(std::chrono::seconds(30)) == std::future_status::ready; }

TEST(Doorbell, RingEndsThePresentOrTheNextSleep) {
  Doorbell bell;
  ASSERT_TRUE(bell.open().ok());
  for (const bool closed : {false, true}) {
    SCOPED_TRACE(closed);
    if (closed) bell.close();
    bell.ring();
    bell.ring();
    EXPECT_TRUE(over(sleeper(bell)));
    for (int i = 0; i < 50; ++i) {
      const auto sleep = sleeper(bell);
      if (i % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      bell.ring();
      ASSERT_TRUE(over(sleep));
    }
    const auto before = Deadline::Clock::now();
    bell.sleep(nullptr, before + std::chrono::milliseconds(5));
    EXPECT_GE(Deadline::Clock::now() - before, std::chrono::milliseconds(5));
  }
}

TEST(Doorbell, CloseEndsASleepBeforeTheDescriptorsGo) {
  for (int i = 0; i < 20; ++i) {
    Doorbell bell;
    Descriptors descriptors;
    ASSERT_TRUE(bell.open().ok() && descriptors.open().ok());
    const auto sleep = sleeper(bell, &descriptors);
    std::this_thread::sleep_for(std::chrono::microseconds(i * 100));
    std::vector<std::jthread> ringers;
    for (int t = 0; t < 3; ++t) ringers.emplace_back([&bell] { bell.ring(); });
    bell.close();
    descriptors.close();
    EXPECT_TRUE(over(sleep));
  }
}

TEST(Doorbell, RingAfterCloseLeavesAReusedNumberAlone) {
  Doorbell bell;
  ASSERT_TRUE(bell.open().ok());
  const UniqueFd gap = make_event();
  bell.close();
  std::vector<UniqueFd> reused;
  for (int i = 0; i < 8; ++i) reused.push_back(make_event());
  bell.ring();
  bell.sleep(nullptr, Deadline::Clock::now());
  bell.ring();
  for (const UniqueFd& fd : reused) {
    std::uint64_t value = 0;
    EXPECT_LT(read(fd.get(), &value, sizeof value), 0);
  }
}

class StoppedEngine : public EngineModes {};
INSTANTIATE_TEST_SUITE_P(Modes, StoppedEngine, ::testing::Values(Progress::background, Progress::manual), mode_name);

TEST_P(StoppedEngine, WaitersAreStillWokenAndTimersStillRun) {
  std::atomic<std::uint32_t> early{0};
  auto before = std::async(std::launch::async, [&] { return engine_->drive_flag(Deadline::after_seconds(60), early); });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));  // asleep
  engine_->stop();
  std::atomic<std::uint32_t> late{0};
  auto after = std::async(std::launch::async, [&] { return engine_->drive_flag(Deadline::after_seconds(60), late); });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  for (auto* flag : {&early, &late}) {
    const auto lock = engine_->lock();
    engine_->at(Deadline::after_seconds(0.01), [this, flag] {
      flag->store(1);
      engine_->wake_waiters();
    });
  }
  engine_->wake();
  EXPECT_TRUE(before.get());
  EXPECT_TRUE(after.get());
}

TEST_P(StoppedEngine, WatchesNoDescriptor) {
  const UniqueFd event = make_event();
  const UniqueFd other = make_event(1);
  Handler handler([](std::uint32_t) { ADD_FAILURE() << "called for a descriptor"; });
  {
    const auto lock = engine_->lock();
    ASSERT_TRUE(engine_->watch(event.get(), EPOLLIN, handler).ok());
  }
  engine_->stop();
  raise_event(event.get());
  const auto lock = engine_->lock();
  EXPECT_EQ(engine_->watch(other.get(), EPOLLIN, handler).code(), Code::closed);
  engine_->poll_once();
  engine_->modify(event.get(), EPOLLIN);
  engine_->unwatch(event.get());
}

}  // namespace
}  // namespace hmc
