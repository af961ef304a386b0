// CollectivePlan::schedule: the steps are those of the planners; what has none says so.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "collective/choose.h"
#include "collective/planning.h"
#include "hmc/plan.h"

namespace hmc {
namespace {

constexpr std::uint64_t mebibyte = 1 << 20;

void expect_steps_of(const std::vector<PlannedStep>& found, const Schedule& planned) {
  const std::vector<std::string> kinds{"send", "receive", "copy", "reduce"}, areas{"in", "out", "scratch"};
  const auto same = [&](const PlannedSlice& slice, const Slice& want) {
    return slice.buffer == areas[static_cast<std::size_t>(want.area)] && slice.offset == want.offset;
  };
  ASSERT_EQ(found.size(), planned.steps.size());
  std::size_t edges = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const Step& step = planned.steps[i];
    EXPECT_EQ(found[i].kind, kinds[static_cast<std::size_t>(step.kind)]);
    EXPECT_EQ(found[i].peer, static_cast<int>(step.peer));
    EXPECT_EQ(found[i].tag, step.round);
    EXPECT_EQ(found[i].bytes, step.bytes);
    EXPECT_EQ(found[i].after.size(), step.waits);
    EXPECT_EQ(found[i].target.has_value(), step.kind != StepKind::send);
    if (found[i].target) {
      EXPECT_TRUE(same(*found[i].target, step.to));
    }
    if (step.kind == StepKind::send || step.kind == StepKind::copy) {
      ASSERT_EQ(found[i].sources.size(), 1U);
      EXPECT_TRUE(same(found[i].sources[0], step.from));
    } else {
      ASSERT_EQ(found[i].sources.size(), step.source_count);
      for (std::size_t s = 0; s < found[i].sources.size(); ++s)
        EXPECT_TRUE(same(found[i].sources[s], planned.sources[step.first_source + s]));
    }
    for (std::uint32_t n = 0; n < step.next_count; ++n, ++edges)
      EXPECT_EQ(std::ranges::count(found[planned.next[step.first_next + n]].after, i), 1);
  }
  EXPECT_EQ(edges, planned.next.size());
}

TEST(PlanSteps, AreThoseOfThePlanners) {
  for (const char* name : {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier"}) {
    constexpr std::uint32_t ranks = 5;
    const std::uint64_t bytes = name == std::string("barrier") ? 0 : 15 * mebibyte;
    const auto plan = plan_collective(name, bytes, {.ranks = ranks});
    ASSERT_TRUE(plan.ok()) << plan.status().str();
    const auto schedule = plan->schedule();
    ASSERT_TRUE(schedule.ok()) << schedule.status().str();
    ASSERT_EQ(schedule->size(), ranks);
    const EqualCall call = *equal_call(name, bytes, {}, ranks);
    for (std::uint32_t r = 0; r < ranks; ++r) expect_steps_of((*schedule)[r], schedule_of(call, r, tuning_for(true, false)));
  }
}

TEST(PlanSteps, SharedMemoryHasNone) {
  const EqualCall call = *equal_call("all_reduce", mebibyte, {}, 2);
  const PlannedGroup group{.cost = CostModel(2, {1e-6, 1e9}, {}), .on_host = {true, true}, .may_fuse = true};
  const auto shared = plan_of(call, group)->schedule();
  ASSERT_FALSE(shared.ok());
  EXPECT_EQ(shared.status().code(), Code::unsupported);
  EXPECT_NE(shared.status().str().find("\"whole inputs to every rank\", \"reduce-scatter + all-gather\""), std::string::npos);
  EXPECT_TRUE(plan_of(call, group, "reduce-scatter + all-gather")->schedule().ok());
}

TEST(PlanSteps, MergedChunksAreNotShown) {
  const auto many = plan_collective("all_reduce", 1024 * mebibyte, {.ranks = 64})->schedule();
  ASSERT_FALSE(many.ok());
  EXPECT_EQ(many.status().code(), Code::unsupported);
  EXPECT_TRUE(plan_collective("all_reduce", 8 * mebibyte, {.ranks = 64})->schedule().ok());
  EXPECT_FALSE(CollectivePlan().schedule().ok());
}

}  // namespace
}  // namespace hmc
