// What a connection's completions say of its rate.
#include <gtest/gtest.h>

#include "transport/verbs/rate.h"

namespace hmc::verbs {
namespace {

constexpr std::size_t piece = 256 << 10;
RateEstimate::Clock::time_point now{};
void pass(double microseconds) {
  now += std::chrono::duration_cast<RateEstimate::Clock::duration>(std::chrono::duration<double, std::micro>(microseconds));
}
RateEstimate starting_at(double rate) {
  now = RateEstimate::Clock::time_point(std::chrono::hours(1));
  return RateEstimate(rate, [] { return now; });
}
// Keeps `window` pieces in flight; they complete `together` at a time.
void stream(RateEstimate& estimate, double rate, unsigned pieces, unsigned window, unsigned together) {
  unsigned posted = 0;
  for (; posted < window; ++posted) estimate.posted(piece);
  for (unsigned done = 0; done < pieces; done += together) {
    pass(1e6 * together * piece / rate);
    for (unsigned i = 0; i < together; ++i) {
      estimate.completed(piece);
      pass(0.1);
    }
    for (unsigned i = 0; i < together && posted < pieces; ++i, ++posted) estimate.posted(piece);
  }
  EXPECT_EQ(estimate.in_flight(), 0U);
}

TEST(VerbsRate, FollowsWhatIsCarried) {
  RateEstimate estimate = starting_at(1e9);
  stream(estimate, 1e10, 200, 8, 1);
  EXPECT_NEAR(estimate.rate(), 1e10, 5e8);
  stream(estimate, 1e8, 200, 8, 1);
  EXPECT_NEAR(estimate.rate(), 1e8, 5e6);
  stream(estimate, 1e10, 200, 8, 1);
  EXPECT_NEAR(estimate.rate(), 1e10, 5e8);
}

// A poll finds several at once, moments apart.
TEST(VerbsRate, CompletionsInBurstsDoNotRaiseIt) {
  for (const unsigned together : {2U, 4U, 5U, 8U}) {
    RateEstimate estimate = starting_at(1e9);
    stream(estimate, 1e9, 400, 8, together);
    EXPECT_NEAR(estimate.rate(), 1e9, 1.5e8) << together;
  }
}

// One piece at a time, with the way there and a pause between them.
TEST(VerbsRate, SinglePiecesRaiseItUnlessTheyTakeLong) {
  RateEstimate estimate = starting_at(1e6);
  const auto single = [&](double microseconds) {
    estimate.posted(piece);
    pass(microseconds);
    estimate.completed(piece);
    pass(1e6);
  };
  for (int i = 0; i < 3; ++i) single(100);
  EXPECT_NEAR(estimate.rate(), 2.6e9, 1e8);
  single(900);
  EXPECT_NEAR(estimate.rate(), 2.6e9, 1e8);
  for (int i = 0; i < 200; ++i) single(100'000);
  EXPECT_NEAR(estimate.rate(), 2.6e6, 2e5);
}

// A window's worth, less than a full sample.
TEST(VerbsRate, ShortBusyPeriodsCount) {
  RateEstimate estimate = starting_at(1e9);
  for (int i = 0; i < 50; ++i) {
    stream(estimate, 1e7, 4, 4, 1);
    pass(1e6);
  }
  EXPECT_LT(estimate.rate(), 2e7);
}

TEST(VerbsRate, WhatCameBackCountsForNothing) {
  RateEstimate estimate = starting_at(1e9);
  for (int i = 0; i < 100; ++i) estimate.posted(piece);
  pass(1000);
  for (int i = 0; i < 100; ++i) estimate.discarded(piece);
  EXPECT_EQ(estimate.rate(), 1e9);
  EXPECT_EQ(estimate.in_flight(), 0U);
  for (int i = 0; i < 100; ++i) estimate.posted(8);
  for (int i = 0; i < 100; ++i) estimate.completed(8);
  EXPECT_EQ(estimate.rate(), 1e9);
}

}  // namespace
}  // namespace hmc::verbs
