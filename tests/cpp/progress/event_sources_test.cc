#include "progress/event_sources.h"

#include <gtest/gtest.h>

#include <sys/epoll.h>

#include "progress/engine_testing.h"

namespace hmc::testing {
namespace {

unsigned rounds_to_look(EventSources& sources) {
  unsigned rounds = 1;
  while (!sources.count_round()) ++rounds;
  return rounds;
}

TEST(EventSources, LooksMoreOftenWhileDescriptorsAreReady) {
  EventSources sources;
  ASSERT_TRUE(sources.descriptors().open().ok());
  const UniqueFd event = make_event(1);
  int calls = 0;
  Handler handler([&calls](std::uint32_t) { ++calls; });
  ASSERT_TRUE(sources.descriptors().watch(event.get(), EPOLLIN, handler).ok());
  EXPECT_EQ(rounds_to_look(sources), 1U);
  EXPECT_TRUE(sources.look().descriptors);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(rounds_to_look(sources), EventSources::busy_interval);
  sources.descriptors().unwatch(event.get());
  EXPECT_FALSE(sources.look().descriptors);
  EXPECT_EQ(rounds_to_look(sources), EventSources::quiet_interval);
}

TEST(EventSources, LookRunsDueTimers) {
  EventSources sources;
  ASSERT_TRUE(sources.descriptors().open().ok());
  int calls = 0;
  sources.timers().add(EventSources::TimePoint{}, [&calls] { ++calls; });
  sources.timers().add(EventSources::TimePoint::max(), [&calls] { ++calls; });
  EXPECT_TRUE(sources.look().timers);
  EXPECT_FALSE(sources.look().timers);
  EXPECT_EQ(calls, 1);
}

TEST(EventSources, IsStaleAfterTheInterval) {
  EventSources sources;
  ASSERT_TRUE(sources.descriptors().open().ok());
  EXPECT_TRUE(sources.stale(Deadline::Clock::now()));
  const auto before = Deadline::Clock::now();
  sources.look();
  EXPECT_FALSE(sources.stale(before));
  EXPECT_TRUE(sources.stale(Deadline::Clock::now() + EventSources::outside_interval));
}

}  // namespace
}  // namespace hmc::testing
