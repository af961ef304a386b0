#include "progress/watch_pace.h"

#include <gtest/gtest.h>

#include <utility>

namespace hmc {
namespace {

constexpr WatchPace::TimePoint start = WatchPace::TimePoint{} + std::chrono::hours(1);

TEST(WatchPace, NoticesDrivers) {
  WatchPace pace;
  EXPECT_FALSE(pace.drivers_came(0));
  EXPECT_TRUE(pace.drivers_came(1));
  EXPECT_FALSE(pace.stand_aside(1, 0, false));
  EXPECT_FALSE(pace.drivers_came(1));
  pace.go_ahead(2, 0);
  EXPECT_FALSE(pace.drivers_came(2));
}

TEST(WatchPace, IsPutOffByPostsOnceInARow) {
  WatchPace pace;
  EXPECT_FALSE(pace.is_put_off(0));
  EXPECT_TRUE(pace.is_put_off(1));
  EXPECT_FALSE(pace.stand_aside(0, 1, false));
  EXPECT_FALSE(pace.is_put_off(2));
  pace.go_ahead(0, 2);
  EXPECT_FALSE(pace.is_put_off(2));
  EXPECT_TRUE(pace.is_put_off(3));
  EXPECT_FALSE(pace.stand_aside(1, 3, false));  // drivers came, too: they have polled
  EXPECT_TRUE(pace.is_put_off(4));
}

TEST(WatchPace, IsNotPutOffByItsOwnRound) {
  WatchPace pace;
  pace.put_itself_off(3);
  EXPECT_FALSE(pace.is_put_off(3));
  pace.put_itself_off(1);
  EXPECT_TRUE(pace.is_put_off(5));  // another one came before the round
}

TEST(WatchPace, StandsAsideForATickWhereNothingIsUnattended) {
  WatchPace pace;
  EXPECT_EQ(pace.standby_time(start), WatchPace::tick);
  EXPECT_EQ(pace.standby_time(start), WatchPace::tick);
}

TEST(WatchPace, LooksSoonAndThenLessOftenWhereSomethingIsUnattended) {
  WatchPace pace;
  auto now = start;
  const auto standby = [&] {
    pace.saw_unattended(now);
    const auto aside = pace.standby_time(now);
    now += aside;
    return aside;
  };
  EXPECT_EQ(standby(), WatchPace::first_standby);
  EXPECT_EQ(standby(), 2 * WatchPace::first_standby);
  for (int i = 0; i < 20; ++i) EXPECT_LE(standby(), WatchPace::tick);
  EXPECT_EQ(standby(), WatchPace::tick);
  EXPECT_FALSE(pace.stand_aside(0, 1, false));
  pace.go_ahead(0, 1);
  EXPECT_EQ(standby(), WatchPace::tick);  // posts that follow one another go on
  pace.go_ahead(0, 1);
  EXPECT_EQ(standby(), WatchPace::first_standby);
  // Between the end of an operation and the next one that its callback posts.
  const auto seen = now - WatchPace::first_standby;
  EXPECT_LT(pace.standby_time(seen + WatchPace::unattended_time - std::chrono::nanoseconds(1)), WatchPace::tick);
  EXPECT_EQ(pace.standby_time(seen + WatchPace::unattended_time), WatchPace::tick);
}

TEST(WatchPace, StandbyIsCutByADriverThatHasDrivenForLong) {
  WatchPace pace;
  auto now = start;
  std::uint64_t departures = 7;
  WatchPace::Duration aside{};
  const auto cut_after = [&] {  // the beginning of the standby; a minute: never
    pace.saw_unattended(now);
    aside = pace.standby_time(now);
    const auto begun = std::exchange(now, now + aside);
    const auto from = pace.cut_from(begun, aside, departures);
    return from == WatchPace::TimePoint{} ? std::chrono::minutes(1) : from - begun;
  };
  while (2 * aside <= WatchPace::long_wait) EXPECT_EQ(cut_after(), std::chrono::minutes(1));
  EXPECT_EQ(cut_after(), WatchPace::long_wait);
  EXPECT_EQ(cut_after(), WatchPace::Duration());
  ++departures;  // another one, maybe
  EXPECT_EQ(cut_after(), WatchPace::long_wait);
  EXPECT_EQ(cut_after(), WatchPace::Duration());
  EXPECT_EQ(aside, WatchPace::tick);
  now -= WatchPace::first_standby;  // it was cut: whether drivers have left is looked at soon
  EXPECT_EQ(cut_after(), std::chrono::minutes(1));
  EXPECT_EQ(aside, WatchPace::first_standby);
  EXPECT_EQ(cut_after(), WatchPace::long_wait);
  EXPECT_EQ(aside, WatchPace::tick);
  now += WatchPace::unattended_time;  // nothing is unattended
  aside = pace.standby_time(now);
  EXPECT_EQ(aside, WatchPace::tick);
  EXPECT_EQ(pace.cut_from(now, aside, departures), WatchPace::TimePoint());
}

TEST(WatchPace, ClearsAKickThatDriversKeepServing) {
  WatchPace pace;
  for (unsigned i = 0; i < WatchPace::patient_standbys; ++i) EXPECT_FALSE(pace.stand_aside(i, 0, true));
  EXPECT_TRUE(pace.stand_aside(9, 0, true));
  EXPECT_FALSE(pace.stand_aside(10, 0, false));
  EXPECT_FALSE(pace.stand_aside(11, 0, true));
}

TEST(WatchPace, LeavesTheLockToPostsThatFollowOneAnother) {
  WatchPace pace;
  EXPECT_FALSE(pace.leaves_to_posts(0, start));
  EXPECT_TRUE(pace.leaves_to_posts(1, start));
  EXPECT_TRUE(pace.leaves_to_posts(2, start + WatchPace::post_patience));
  EXPECT_TRUE(pace.leaves_to_posts(2, start + 2 * WatchPace::post_patience - std::chrono::nanoseconds(1)));
  EXPECT_FALSE(pace.leaves_to_posts(2, start + 2 * WatchPace::post_patience));
}

TEST(WatchPace, LooksAgainUntilPatienceEnds) {
  WatchPace pace;
  EXPECT_TRUE(pace.looks_again(start));
  EXPECT_FALSE(pace.looks_again(start + WatchPace::lock_patience));
  pace.got_lock();
  EXPECT_TRUE(pace.looks_again(start + WatchPace::lock_patience));
}

TEST(WatchPace, LingersLongerAfterWorkThanAfterEvents) {
  WatchPace pace;
  EXPECT_FALSE(pace.lingers(start));
  pace.polled(start, false, true, true);
  EXPECT_TRUE(pace.lingers(start));
  EXPECT_FALSE(pace.lingers(start + WatchPace::descriptor_linger_time));
  pace.polled(start, true, false, true);
  pace.polled(start, false, true, true);  // shortens nothing
  EXPECT_TRUE(pace.lingers(start + WatchPace::descriptor_linger_time));
  EXPECT_FALSE(pace.lingers(start + WatchPace::sparse_linger_time));
}

TEST(WatchPace, LingersLongerWhereTheLastWorkWasNotLongAgo) {
  WatchPace pace;
  pace.polled(start, true, false, true);
  WatchPace::TimePoint at = start + WatchPace::sparse_linger_time - std::chrono::nanoseconds(1);
  pace.polled(at, true, false, true);  // of the same burst
  EXPECT_FALSE(pace.lingers(at + WatchPace::sparse_linger_time));
  at += WatchPace::dense_time;
  pace.polled(at, true, false, true);
  at += WatchPace::sparse_linger_time / 2;
  pace.polled(at, true, false, true);
  EXPECT_TRUE(pace.lingers(at + WatchPace::linger_time - std::chrono::nanoseconds(1)));
  EXPECT_FALSE(pace.lingers(at + WatchPace::linger_time));
  at += WatchPace::dense_time + std::chrono::nanoseconds(1);
  pace.polled(at, true, false, true);
  EXPECT_FALSE(pace.lingers(at + WatchPace::sparse_linger_time));
}

TEST(WatchPace, LingersNotForAWhileAfterALongYield) {
  WatchPace pace;
  pace.yielded(start, WatchPace::long_yield - std::chrono::nanoseconds(1));
  pace.polled(start, true, false, true);
  EXPECT_TRUE(pace.lingers(start));
  pace.yielded(start, WatchPace::long_yield);
  EXPECT_FALSE(pace.lingers(start));
  const WatchPace::TimePoint over = start + WatchPace::crowded_time;
  pace.polled(over - std::chrono::nanoseconds(1), true, false, true);
  EXPECT_FALSE(pace.lingers(over - std::chrono::nanoseconds(1)));
  EXPECT_TRUE(pace.lingers(over));
}

TEST(WatchPace, BacksOffFromARefusalThatLasts) {
  WatchPace pace;
  pace.polled(start, true, false, true);
  EXPECT_FALSE(pace.refused(start + WatchPace::sparse_linger_time));
  EXPECT_TRUE(pace.lingers(start + WatchPace::linger_time - std::chrono::nanoseconds(1)));
  const WatchPace::TimePoint lingered = start + WatchPace::linger_time;
  EXPECT_FALSE(pace.lingers(lingered));
  for (unsigned i = 0; i < WatchPace::patient_refusals; ++i) EXPECT_FALSE(pace.refused(lingered));
  EXPECT_EQ(pace.refused(lingered), WatchPace::first_backoff);
  EXPECT_EQ(pace.refused(start + std::chrono::milliseconds(32)), std::chrono::microseconds(500));
  EXPECT_EQ(pace.refused(start + std::chrono::seconds(10)), WatchPace::tick);
  pace.armed();
  EXPECT_FALSE(pace.refused(lingered));
}

TEST(WatchPace, SpinsBeforeItYields) {
  WatchPace pace;
  for (unsigned i = 1; i < WatchPace::spin_rounds; ++i) EXPECT_TRUE(pace.spins());
  EXPECT_FALSE(pace.spins());
  pace.polled(start, true, false, true);
  EXPECT_TRUE(pace.spins());
}

}  // namespace
}  // namespace hmc
