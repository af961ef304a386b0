// CollectivePlans of calls without a job: what they say of algorithm, bytes and time is what the planners do.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "collective/choose.h"
#include "collective/cost.h"
#include "collective/planning.h"
#include "hmc/plan.h"

namespace hmc {
namespace {

constexpr std::uint64_t KiB = 1024, MiB = 1024 * KiB;

CollectivePlan planned(const char* call, std::uint64_t bytes, int ranks, const PlanOptions& options = {}) {
  const auto plan = plan_collective(call, bytes, {.ranks = ranks}, options);
  EXPECT_TRUE(plan.ok()) << plan.status().str();
  return plan.ok() ? *plan : CollectivePlan();
}

TEST(PlanChoice, AlgorithmsChangeWhereThePlannersDo) {
  struct Expected {
    const char* call;
    std::uint64_t bytes;
    int ranks;
    const char* algorithm;
    const char* runner_up;
  };
  const std::vector<Expected> all{
      {"all_reduce", 32 * KiB, 4, "whole inputs to every rank", "reduce-scatter + all-gather"},
      {"all_reduce", 32 * KiB + 4, 4, "reduce-scatter + all-gather", "whole inputs to every rank"},
      {"all_reduce", 64 * MiB, 4, "reduce-scatter + all-gather, chunks of 256 KiB", "whole inputs to every rank"},
      {"all_reduce", 0, 4, "whole inputs to every rank", ""},
      {"reduce", 128 * KiB, 4, "whole inputs to the root", "reduce-scatter + gather"},
      {"reduce", 128 * KiB + 4, 4, "reduce-scatter + gather", "whole inputs to the root"},
      {"reduce_scatter", 4 * KiB, 4, "direct", ""},
      {"reduce_scatter", 4 * MiB, 4, "direct, chunks of 256 KiB", ""},
      {"all_gather", 64 * KiB, 4, "doubling", "direct"},
      {"all_gather", 64 * KiB + 4, 4, "direct", "doubling"},
      {"all_gather", 64 * KiB, 2, "direct", ""},
      {"broadcast", 64 * KiB, 4, "binomial tree", "scatter + all-gather"},
      {"broadcast", 64 * KiB + 1, 4, "scatter + all-gather", "binomial tree"},
      {"broadcast", 64 * MiB, 4, "scatter + all-gather, chunks of 256 KiB", "binomial tree"},
      {"broadcast", 64 * MiB, 2, "direct", ""},
      {"gather", 4 * KiB, 4, "direct", ""},
      {"scatter", 4 * KiB, 4, "direct", ""},
      {"all_to_all", 16 * KiB, 16, "relayed", "direct"},
      {"all_to_all", 16 * KiB + 16, 16, "direct", "relayed"},
      {"all_to_all", 15 * KiB, 15, "direct", "relayed"},
      {"all_to_all", 2 * KiB, 2, "direct", ""},
      {"barrier", 0, 4, "dissemination", ""},
      {"all_reduce", 4 * MiB, 1, "local", ""},
  };
  for (const Expected& each : all) {
    const CollectivePlan plan = planned(each.call, each.bytes, each.ranks);
    EXPECT_EQ(plan.algorithm, each.algorithm) << each.call << " of " << each.bytes;
    EXPECT_EQ(plan.runner_up ? plan.runner_up->algorithm : "", each.runner_up) << each.call << " of " << each.bytes;
    EXPECT_TRUE(plan.reason.ends_with(".")) << plan.reason;
    EXPECT_GE(plan.seconds, plan.lower_bound);
    if (plan.runner_up) {
      EXPECT_GE(plan.runner_up->seconds, plan.lower_bound * (1 - 1e-9));
    }
  }
}

TEST(PlanChoice, BytesOfLinksAreThoseOfTheSchedules) {
  for (const auto& [host, staged] : {std::pair(true, false), std::pair(false, true), std::pair(false, false)}) {
    for (const char* name :
         {"all_reduce", "reduce_scatter", "reduce", "all_gather", "broadcast", "gather", "scatter", "all_to_all"}) {
      for (const std::uint64_t bytes : {0 * MiB, 24 * KiB, 600 * KiB, 96 * MiB}) {
        const std::uint32_t size = 6;
        const auto call = equal_call(name, bytes, {.root = 2}, size);
        ASSERT_TRUE(call.ok()) << call.status().str();
        const auto plan = plan_of(*call, {.cost = CostModel(size, {.latency = 1e-6, .bandwidth = 1e9}, {}),
                                          .on_host = std::vector<bool>(size, host),
                                          .staged = std::vector<bool>(size, staged)});
        ASSERT_TRUE(plan.ok()) << plan.status().str();
        std::vector<Schedule> executed;
        for (std::uint32_t r = 0; r < size; ++r) executed.push_back(schedule_of(*call, r, tuning_for(host, staged)));
        const bool names_the_cpu = plan->reason.find("The CPU reduces device memory") != std::string::npos;
        const bool names_devices = plan->reason.find("The devices reduce") != std::string::npos;
        const bool reduction = std::string_view(name).find("reduce") != std::string_view::npos;
        EXPECT_EQ(names_the_cpu, reduction && staged) << plan->reason;
        EXPECT_EQ(names_devices, reduction && !host && !staged) << plan->reason;
        const auto traffic = traffic_of(executed);
        ASSERT_EQ(plan->links.size(), traffic.size());
        for (std::size_t i = 0; i < traffic.size(); ++i) {
          EXPECT_EQ(plan->links[i].source, static_cast<int>(traffic[i].from));
          EXPECT_EQ(plan->links[i].target, static_cast<int>(traffic[i].to));
          EXPECT_EQ(plan->links[i].bytes, traffic[i].bytes) << name << " of " << bytes;
        }
      }
    }
  }
}

// Large groups are simulated with larger chunks.
TEST(PlanChoice, CoarserSchedulesMoveTheSameBytes) {
  for (const char* name : {"all_reduce", "reduce_scatter", "reduce", "broadcast"}) {
    const std::uint32_t size = 24;
    const auto call = equal_call(name, 24 * 16 * MiB, {}, size);
    ASSERT_TRUE(call.ok());
    std::vector<Schedule> fine, coarse;
    std::size_t fine_steps = 0, coarse_steps = 0;
    for (std::uint32_t r = 0; r < size; ++r) {
      fine.push_back(schedule_of(*call, r, tuning_for(true, false)));
      coarse.push_back(schedule_of(*call, r, coarser(*call, tuning_for(true, false), 10'000)));
      fine_steps += fine.back().steps.size();
      coarse_steps += coarse.back().steps.size();
    }
    EXPECT_LT(coarse_steps, 15'000U) << name;
    EXPECT_GT(fine_steps, 2 * coarse_steps) << name;
    const auto a = traffic_of(fine), b = traffic_of(coarse);
    ASSERT_EQ(a.size(), b.size()) << name;
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].bytes, b[i].bytes) << name;
  }
}

// What schedule() gives is what is executed, or it refuses: also where only the chunks over slow borders are larger.
TEST(PlanChoice, SchedulesOfSlowBordersAreTheExecutedOnes) {
  const std::uint32_t size = 64;
  auto islands = std::make_shared<std::vector<Island>>(2);
  for (std::uint32_t r = 0; r < size; ++r) {
    (*islands)[r % 2].ranks.push_back(r);
    (*islands)[r % 2].bandwidths.push_back(1e8);
  }
  bool given = false, refused = false;
  for (const std::uint64_t bytes : {8 * MiB, 64 * MiB}) {
    auto call = equal_call("all_reduce", bytes, {}, size);
    ASSERT_TRUE(call.ok()) << call.status().str();
    call->islands = islands;
    const PlannedGroup group{.cost = CostModel(size, {.latency = 1e-6, .bandwidth = 1e9}, {}),
                             .on_host = std::vector<bool>(size, true)};
    const auto plan = plan_of(*call, group, "hierarchical");
    ASSERT_TRUE(plan.ok()) << plan.status().str();
    const auto schedule = plan->schedule();
    if (!schedule.ok()) {
      EXPECT_EQ(schedule.status().code(), Code::unsupported) << schedule.status().str();
      refused = true;
      continue;
    }
    given = true;
    Tuning tuning = tuning_for(true, false, Algorithm::hierarchical);
    tuning.reduce.islands = islands;
    const Schedule executed = schedule_of(*call, 0, tuning);
    ASSERT_EQ(schedule->front().size(), executed.steps.size()) << bytes;
    for (std::size_t i = 0; i < executed.steps.size(); ++i)
      ASSERT_EQ(schedule->front()[i].bytes, executed.steps[i].bytes) << bytes << ", step " << i;
  }
  EXPECT_TRUE(given && refused);
}

TEST(PlanChoice, LargestGroupIsPlanned) {
  const CollectivePlan plan = planned("all_reduce", 256 * KiB, 256);
  EXPECT_EQ(plan.links.size(), 256U * 255);
  EXPECT_EQ(plan_collective("all_reduce", 0, {.ranks = 257}).status().code(), Code::unsupported);
}

TEST(PlanChoice, BadCallsAreRefused) {
  const auto refused = [](const char* call, std::uint64_t bytes, const UniformLinks& links, const PlanOptions& options = {}) {
    return plan_collective(call, bytes, links, options).status().code() == Code::invalid_argument;
  };
  EXPECT_TRUE(refused("all_reduce", 3, {}));
  EXPECT_TRUE(refused("all_reduce", 12, {}, {.type = DataType::f64}));
  EXPECT_TRUE(refused("reduce_scatter", 12, {.ranks = 4}));
  EXPECT_TRUE(refused("all_gather", 13, {.ranks = 4}));
  EXPECT_TRUE(refused("barrier", 1, {}));
  EXPECT_TRUE(refused("broadcast", 8, {.ranks = 4}, {.root = 4}));
  EXPECT_TRUE(refused("broadcast", 8, {.ranks = 4}, {.root = -1}));
  const Status negative = plan_collective("broadcast", 8, {.ranks = 4}, {.root = -1}).status();
  EXPECT_NE(negative.message().find("root -1 is no rank"), std::string::npos) << negative.str();
  EXPECT_TRUE(refused("all_to_all_v", 8, {}));
  EXPECT_TRUE(refused("", 8, {}));
  EXPECT_TRUE(refused("all_reduce", 8, {.ranks = 0}));
  EXPECT_TRUE(refused("all_reduce", 8, {.ranks = -7}));
  EXPECT_TRUE(refused("all_reduce", 8, {.latency = -1}));
  EXPECT_TRUE(refused("all_reduce", 8, {.bandwidth = 0}));
  EXPECT_TRUE(refused("all_reduce", 8, {.injection = -1}));
  EXPECT_TRUE(refused("all_reduce", ~std::uint64_t{7}, {}));
  EXPECT_TRUE(refused("all_to_all", std::uint64_t{1} << 62, {}));
}

TEST(PlanChoice, HugeCallsDoNotOverflow) {
  for (const char* name :
       {"all_reduce", "reduce_scatter", "reduce", "all_gather", "broadcast", "gather", "scatter", "all_to_all"}) {
    const CollectivePlan plan = planned(name, std::uint64_t{1} << 59, 8);
    EXPECT_GE(plan.seconds, plan.lower_bound * (1 - 1e-9)) << name;
    std::uint64_t sent = 0;
    for (const PlannedLink& link : plan.links) sent += link.bytes;
    EXPECT_GE(sent, (std::uint64_t{1} << 59) / 8 * 7) << name;
  }
}

TEST(PlanChoice, TextFitsEightyColumns) {
  for (const char* name :
       {"all_reduce", "reduce_scatter", "reduce", "all_gather", "broadcast", "gather", "scatter", "all_to_all"}) {
    for (const std::uint64_t bytes : {40 * KiB, 40 * MiB, 40 * KiB * MiB}) {
      const CollectivePlan plan = planned(name, bytes, 40);
      std::istringstream text(plan.str());
      std::size_t lines = 0;
      for (std::string line; std::getline(text, line); ++lines) EXPECT_LE(line.size(), 80U) << line;
      EXPECT_LE(lines, 32U);
      EXPECT_NE(plan.str().find(plan.algorithm.substr(0, 6)), std::string::npos);
    }
  }
  EXPECT_EQ(bytes_text(0), "0 bytes");
  EXPECT_EQ(bytes_text(1), "1 byte");
  EXPECT_EQ(bytes_text(1023), "1023 bytes");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(~std::uint64_t{0}), "16 EiB");
}

}  // namespace
}  // namespace hmc
