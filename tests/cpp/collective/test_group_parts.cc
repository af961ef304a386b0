// The parts of a group that need no other process.
#include <gtest/gtest.h>

#include "collective/early_calls.h"
#include "collective/recent_ids.h"
#include "collective/schedule_builder.h"
#include "collective/schedule_cache.h"
#include "collective/schedule_run.h"

namespace hmc {
namespace {

constexpr std::uint32_t kind(CallKind each) { return static_cast<std::uint32_t>(each); }

TEST(EarlyCalls, AnotherKindIsFoundWhicheverCameFirst) {
  const std::uint32_t barrier = kind(CallKind::barrier), exchange = kind(CallKind::exchange);
  for (const bool other_first : {false, true}) {
    EarlyCalls calls;
    EXPECT_FALSE(calls.other_than(5, barrier));
    calls.note(5, {1, other_first ? exchange : barrier});
    calls.note(5, {2, other_first ? barrier : exchange});
    calls.note(5, {3, exchange});
    const auto other = calls.other_than(5, barrier);
    ASSERT_TRUE(other);
    EXPECT_EQ(other->call, exchange);
    EXPECT_EQ(other->rank, other_first ? 1U : 2U);
    EXPECT_EQ(calls.other_than(5, exchange)->call, barrier);
    EXPECT_FALSE(calls.other_than(4, barrier));
    EXPECT_FALSE(calls.other_than(13, barrier)) << "the entry is that of collective 5";
    calls.note(13, {4, barrier});
    EXPECT_FALSE(calls.other_than(5, barrier));
    EXPECT_FALSE(calls.other_than(13, barrier));
  }
}

TEST(RecentIds, TheLastOnesAreKept) {
  RecentIds ids;
  const auto id = [](std::size_t i) { return 0x9e3779b97f4a7c15ULL * (i + 1); };
  for (std::size_t i = 0; i < RecentIds::most; ++i) ids.add(id(i));
  ids.add(id(RecentIds::most - 1));  // again: no other one goes for it
  EXPECT_TRUE(ids.contains(id(0)));
  ids.add(id(RecentIds::most));
  EXPECT_FALSE(ids.contains(id(0)));
  for (std::size_t i = 1; i <= RecentIds::most; ++i) EXPECT_TRUE(ids.contains(id(i))) << i;
}

TEST(EarlyCalls, BlockSizesDoNotMakeAnotherKind) {
  EarlyCalls calls;
  calls.note(1, {1, encode_call(CallKind::all_to_all, 64)});
  EXPECT_FALSE(calls.other_than(1, encode_call(CallKind::all_to_all, 1 << 20)));
  EXPECT_TRUE(calls.other_than(1, encode_call(CallKind::all_to_all_v)));
}

TEST(ScheduleCache, KeepsTheLastOfEachRank) {
  const std::vector<std::uint32_t> local{2, 5};
  ScheduleCache cache(7, local);
  const auto barrier = cache.barrier(2);
  EXPECT_EQ(barrier, cache.barrier(2));
  EXPECT_NE(barrier, cache.barrier(5));
  EXPECT_EQ(barrier->steps.size(), plan_barrier(2, 7).steps.size());
  AllToAllTuning tuning;
  const auto planned = [&](std::uint32_t rank, std::uint64_t block) {
    return cache.get(rank, {.kind = CallKind::all_to_all, .bytes = block, .more = tuning.inline_copy},
                     [&] { return plan_all_to_all(rank, 7, block, tuning); });
  };
  const auto small = planned(5, 100);
  EXPECT_EQ(small, planned(5, 100));
  tuning.inline_copy = 0;  // its own block goes as a message then
  const auto other = planned(5, 100);
  EXPECT_NE(small, other);
  EXPECT_EQ(other->steps.size(), plan_all_to_all(5, 7, 100, tuning).steps.size());
  EXPECT_NE(other, planned(5, 101));
  EXPECT_NE(planned(2, 100), planned(5, 100));
  EXPECT_EQ(barrier, cache.barrier(2));
}

// A call that was planned before is planned again once new figures are adopted.
TEST(ScheduleCache, MeasuredFiguresDiscardWhatWasPlanned) {
  const std::vector<std::uint32_t> local{0, 1};
  ScheduleCache cache(2, local);
  std::uint64_t made = 0;
  const auto bytes = [&](std::uint32_t rank) {
    const auto call = cache.planned(rank, {.kind = CallKind::all_reduce, .bytes = 24}, [&] {
      return PlannedCall{.schedule = plan_barrier(rank, 2), .way = fused::Way{.bytes = ++made}};
    });
    return call->way->bytes;
  };
  for (const std::uint64_t round : {0U, 1U}) {
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(bytes(0), 2 * round + 1);
      EXPECT_EQ(bytes(1), 2 * round + 2);
    }
    cache.adopt({});
  }
}

// Two receives, a copy that waits for both, a send that waits for the copy, and one that waits for nothing.
std::shared_ptr<const Schedule> diamond() {
  ScheduleBuilder plan;
  const auto first = plan.receive(1, 0, {Area::out, 0}, 8), second = plan.receive(2, 0, {Area::out, 8}, 8);
  const auto copied = plan.copy(0, {Area::out, 0}, {Area::out, 16}, 16);
  const auto sent = plan.send(1, 1, {Area::out, 16}, 16);
  static_cast<void>(plan.send(2, 0, {Area::in, 0}, 8));
  plan.order(first, copied);
  plan.order(second, copied);
  plan.order(copied, sent);
  return std::make_shared<const Schedule>(plan.finish());
}

std::vector<std::uint32_t> take_all(ScheduleRun& run) {
  std::vector<std::uint32_t> taken;
  while (run.has_ready()) taken.push_back(run.take_ready());
  return taken;
}

// Of a call that is carried out otherwise the run never begins.
TEST(ScheduleRun, BeforeItBeginsNothingIsReadyOrDone) {
  ScheduleRun run(diamond());
  EXPECT_FALSE(run.has_ready() || run.in_flight() || run.all_done());
  for (std::uint32_t i = 0; i < run.steps().size(); ++i) {
    EXPECT_FALSE(run.done(i));
    EXPECT_EQ(run.message(i), nullptr);
  }
  run.skip();
  EXPECT_TRUE(run.all_done());
  EXPECT_FALSE(run.has_ready());
}

TEST(ScheduleRun, StepsBecomeReadyInOrder) {
  ScheduleRun run(diamond());
  EXPECT_FALSE(run.has_ready());
  run.begin();
  EXPECT_EQ(take_all(run), (std::vector<std::uint32_t>{0, 1, 4}));
  const auto engine = Engine::create(Progress::manual).value();
  for (const std::uint32_t index : {0U, 1U, 4U}) run.posted(index, completed_work(engine, {}));
  EXPECT_TRUE(run.in_flight());
  for (const std::uint32_t index : {1U, 4U}) {
    EXPECT_NE(run.take_message(index), nullptr);
    EXPECT_EQ(run.message(index), nullptr);
    run.finish(index);
    EXPECT_FALSE(run.has_ready());
  }
  EXPECT_TRUE(run.in_flight());
  static_cast<void>(run.take_message(0));
  run.finish(0);
  EXPECT_FALSE(run.in_flight());
  EXPECT_EQ(take_all(run), (std::vector<std::uint32_t>{2}));
  run.finish(2);
  EXPECT_EQ(take_all(run), (std::vector<std::uint32_t>{3}));
  EXPECT_FALSE(run.all_done());
  EXPECT_FALSE(run.poisoned(3));
  run.finish(3);
  EXPECT_TRUE(run.all_done());
}

TEST(ScheduleRun, PoisonSpreadsToWhatWaits) {
  ScheduleRun run(diamond());
  run.begin();
  static_cast<void>(take_all(run));
  run.poison(1);
  for (const std::uint32_t index : {1U, 0U, 2U}) run.finish(index);
  EXPECT_TRUE(run.poisoned(2));
  EXPECT_TRUE(run.poisoned(3));
  EXPECT_FALSE(run.poisoned(4));
}

TEST(ScheduleRun, WhatWaitsForAStepThatWasGivenUpNeverRuns) {
  ScheduleRun run(diamond());
  run.begin();
  static_cast<void>(take_all(run));
  run.give_up(0);
  EXPECT_TRUE(run.done(0));
  run.finish(1);
  run.finish(4);
  EXPECT_FALSE(run.has_ready());
  EXPECT_FALSE(run.all_done());
}

}  // namespace
}  // namespace hmc
