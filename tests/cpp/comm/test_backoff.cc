// When a connection that failed is retried.
#include "comm/connection/backoff.h"

#include "testing.h"

namespace hmc {
namespace {

using namespace std::chrono_literals;

const Backoff::Clock::time_point start{};

TEST(Backoff, PauseDoublesUpToAMinute) {
  Backoff backoff;
  EXPECT_FALSE(backoff.used());
  backoff.ready(start);
  EXPECT_TRUE(backoff.used());
  backoff.failed(true, start + 1s);
  for (const double expected : {1., 2., 4., 8., 16., 32., 60., 60.}) {
    EXPECT_EQ(backoff.next_pause(), expected);
    backoff.failed(false, start + 1s);
  }
}

TEST(Backoff, PauseGoesOnAfterAShortSuccess) {
  Backoff backoff;
  backoff.ready(start);
  backoff.failed(true, start + 1s);
  EXPECT_EQ(backoff.next_pause(), 1);
  backoff.ready(start + 2s);
  backoff.failed(true, start + 61s);
  EXPECT_EQ(backoff.next_pause(), 2);
}

TEST(Backoff, PauseStartsOverAfterASteadyConnection) {
  Backoff backoff;
  backoff.ready(start);
  backoff.failed(true, start + 1s);
  EXPECT_EQ(backoff.next_pause(), 1);
  EXPECT_EQ(backoff.next_pause(), 2);
  backoff.ready(start + 2s);
  backoff.failed(true, start + 62s);
  EXPECT_EQ(backoff.next_pause(), 1);
}

TEST(Backoff, ShortRetriesEnd) {
  Backoff backoff;
  backoff.ready(start);
  backoff.failed(true, start + 1s);
  EXPECT_TRUE(backoff.fresh());
  for (const double expected : {0.04, 0.08, 0.16, 0.32}) {
    backoff.failed(false, start + 1s);
    EXPECT_FALSE(backoff.fresh());
    EXPECT_FALSE(backoff.exhausted());
    EXPECT_DOUBLE_EQ(backoff.short_pause(), expected);
  }
  backoff.failed(false, start + 1s);
  EXPECT_TRUE(backoff.exhausted());
  backoff.ready(start + 2s);
  backoff.failed(true, start + 3s);
  EXPECT_TRUE(backoff.fresh());
  EXPECT_FALSE(backoff.exhausted());
}

}  // namespace
}  // namespace hmc
