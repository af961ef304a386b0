// Signals that are kept until the peer has them.
#include "comm/connection/outbox.h"

#include <deque>
#include <random>

#include "testing.h"

namespace hmc {
namespace {

using testing::pattern;

TEST(Outbox, GoesThroughWhatWasNotReceived) {
  Outbox outbox;
  EXPECT_TRUE(outbox.at_end());
  for (std::uint64_t i = 0; i < 5; ++i) outbox.keep(pattern(3, i), pattern(i * 100, i + 10));
  EXPECT_TRUE(outbox.at_end()) << "they were sent";
  EXPECT_TRUE(outbox.received(2));
  outbox.rewind();
  for (std::uint64_t i = 2; i < 5; ++i) {
    ASSERT_FALSE(outbox.at_end());
    const ByteSpan signal = outbox.current();
    ASSERT_EQ(signal.size(), 3 + i * 100);
    EXPECT_EQ(testing::first_mismatch(signal.first(3), i), -1);
    EXPECT_EQ(testing::first_mismatch(signal.subspan(3), i + 10), -1);
    outbox.advance();
  }
  EXPECT_TRUE(outbox.at_end());
}

TEST(Outbox, CountsThatCannotBeAreRefused) {
  Outbox outbox;
  outbox.keep(pattern(8, 1), {});
  EXPECT_FALSE(outbox.received(2));
  EXPECT_TRUE(outbox.received(1));
  EXPECT_TRUE(outbox.received(1));
}

TEST(Outbox, ACountThatCameLateChangesNothing) {
  Outbox outbox;
  for (std::uint64_t i = 0; i < 3; ++i) outbox.keep(pattern(8, i), {});
  EXPECT_TRUE(outbox.received(2));
  EXPECT_TRUE(outbox.received(1));
  EXPECT_EQ(outbox.unacknowledged(), 1U);
  outbox.rewind();
  EXPECT_EQ(testing::first_mismatch(outbox.current(), 2), -1);
}

// Against a plain queue: kept, acknowledged in part, gone through again, interrupted.
TEST(Outbox, BehavesAsAQueue) {
  std::minstd_rand random(7);
  Outbox outbox;
  std::deque<std::uint64_t> model;  // seeds of what is kept
  std::uint64_t next = 0, received = 0;
  for (int step = 0; step < 20'000; ++step) {
    const auto pick = random() % 10;
    if (pick < 6) {
      outbox.keep(pattern(next % 50, next), pattern(next % 7, next + 1));
      model.push_back(next++);
    } else if (pick < 8) {
      const std::uint64_t some = model.empty() ? 0 : random() % (model.size() + 1);
      received += some;
      model.erase(model.begin(), model.begin() + static_cast<std::ptrdiff_t>(some));
      ASSERT_TRUE(outbox.received(received));
    } else {
      outbox.rewind();
      const std::size_t stop = random() % (model.size() + 1);
      for (std::size_t i = 0; i < stop; ++i, outbox.advance()) {
        const std::uint64_t seed = model[i];
        ASSERT_FALSE(outbox.at_end());
        ASSERT_EQ(outbox.current().size(), seed % 50 + seed % 7);
        ASSERT_EQ(testing::first_mismatch(outbox.current().first(seed % 50), seed), -1);
      }
      ASSERT_EQ(outbox.at_end(), stop == model.size());
      while (!outbox.at_end()) outbox.advance();
    }
  }
  EXPECT_EQ(outbox.kept(), next);
}

TEST(Outbox, IsFullBeforeItTakesAllMemory) {
  Outbox outbox;
  std::uint64_t count = 0;
  for (; !outbox.full(); ++count) outbox.keep(pattern(1000, count), {});
  EXPECT_LT(count, 20'000U);
  EXPECT_TRUE(outbox.received(count));
  EXPECT_FALSE(outbox.full());
}

}  // namespace
}  // namespace hmc
