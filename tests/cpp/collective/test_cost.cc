// The cost of Schedules: times that can be told by hand, bounds that no Schedule beats, figures that make no sense.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "collective/cost.h"
#include "collective/cost_bound.h"
#include "collective/plan.h"
#include "collective/plan_reduce.h"
#include "collective/plan_spread.h"
#include "collective/schedule_builder.h"

namespace hmc {
namespace {

constexpr double us = 1e-6, gigabyte = 1e9;

Schedule sending(std::uint32_t peer, std::vector<std::uint64_t> sizes) {
  ScheduleBuilder plan;
  for (std::size_t i = 0; i < sizes.size(); ++i) plan.send(peer, static_cast<std::uint8_t>(i), {Area::in, 0}, sizes[i]);
  return plan.finish();
}
Schedule receiving(std::uint32_t peer, std::vector<std::uint64_t> sizes) {
  ScheduleBuilder plan;
  for (std::size_t i = 0; i < sizes.size(); ++i) plan.receive(peer, static_cast<std::uint8_t>(i), {Area::out, 0}, sizes[i]);
  return plan.finish();
}
double seconds(const std::vector<Schedule>& schedules, const CostModel& model) {
  const auto predicted = predict(schedules, model);
  EXPECT_TRUE(predicted.ok()) << predicted.status().str();
  return predicted.ok() ? *predicted : -1;
}

TEST(Cost, MessageTakesLatencyOverheadsAndItsBytes) {
  const CostModel model(2, {.latency = 3 * us, .bandwidth = gigabyte}, {.overhead = 1 * us});
  EXPECT_NEAR(seconds({sending(1, {0}), receiving(0, {0})}, model), 5 * us, 1e-12);
  EXPECT_NEAR(seconds({sending(1, {2000}), receiving(0, {2000})}, model), 6 * us, 1e-12);  // received while it is on the link
}

TEST(Cost, MessagesOfOneLinkFollowEachOther) {
  const CostModel model(2, {.latency = 5 * us, .bandwidth = gigabyte}, {});
  EXPECT_NEAR(seconds({sending(1, {1000, 1000, 1000}), receiving(0, {1000, 1000, 1000})}, model), 8 * us, 1e-12);
}

TEST(Cost, InjectionLimitsSenderAndReceiver) {
  CostModel model(3, {.latency = 0, .bandwidth = 4 * gigabyte}, {.injection = gigabyte});
  ScheduleBuilder root;
  root.send(1, 0, {Area::in, 0}, 4000);
  root.send(2, 0, {Area::in, 0}, 4000);
  const std::vector<Schedule> scatter{root.finish(), receiving(0, {4000}), receiving(0, {4000})};
  EXPECT_NEAR(seconds(scatter, model), 8 * us, 1e-12);
  ScheduleBuilder target;
  target.receive(1, 0, {Area::out, 0}, 4000);
  target.receive(2, 0, {Area::out, 0}, 4000);
  const std::vector<Schedule> gather{target.finish(), sending(0, {4000}), sending(0, {4000})};
  EXPECT_NEAR(seconds(gather, model), 8 * us, 1e-12);
  for (std::uint32_t r = 0; r < 3; ++r) model.rank(r).injection = std::numeric_limits<double>::infinity();
  EXPECT_NEAR(seconds(gather, model), 1 * us, 1e-12);
}

// Every rank sends to every other at once, in each one's own order: nobody waits for a turn that another one has.
TEST(Cost, ExchangeOfEqualRanksFillsTheirInjection) {
  for (const std::uint32_t size : {2U, 3U, 8U, 16U}) {
    const CostModel model(size, {.latency = us, .bandwidth = gigabyte}, {.injection = gigabyte});
    std::vector<Schedule> all;
    for (std::uint32_t r = 0; r < size; ++r) all.push_back(plan_all_to_all(r, size, 1 << 20));
    const double least = lower_bound(CallKind::all_to_all, std::uint64_t{size} << 20, 0, model);
    EXPECT_NEAR(least, us + (size - 1) * static_cast<double>(1 << 20) / gigabyte, 1e-9);
    EXPECT_LE(seconds(all, model), 1.25 * least) << size;
  }
}

TEST(Cost, ReductionAndCopyTakeTheRankTheirTime) {
  CostModel model(2, {.latency = 0, .bandwidth = gigabyte}, {.reduction = 2 * gigabyte});
  ScheduleBuilder plan;
  const std::vector<Slice> sources(2);
  const auto reduced = plan.reduce(0, sources, {Area::out, 0}, 1000);
  plan.order(reduced, plan.copy(0, {Area::out, 0}, {Area::scratch, 0}, 3000));
  const std::vector<Schedule> both{plan.finish(), Schedule()};
  EXPECT_NEAR(seconds(both, model), 1 * us + 3 * us, 1e-12);
}

TEST(Cost, SlowLinkDecidesWhenItIsTheBusiest) {
  CostModel model(4, {.latency = 0, .bandwidth = 8 * gigabyte}, {});
  model.link(2, 3).bandwidth = gigabyte;
  std::vector<Schedule> all;
  for (std::uint32_t r = 0; r < 4; ++r) all.push_back(plan_all_to_all(r, 4, 1 << 20));
  EXPECT_NEAR(seconds(all, model), (1 << 20) / gigabyte, 1e-9);
}

TEST(Cost, TrafficOfEachPairIsCounted) {
  const std::uint32_t size = 5;
  const std::uint64_t bytes = 5 << 20;
  std::vector<Schedule> all;
  for (std::uint32_t r = 0; r < size; ++r) all.push_back(plan_all_reduce(r, size, bytes, 4));
  const auto traffic = traffic_of(all);
  ASSERT_EQ(traffic.size(), size * (size - 1));
  for (const PairTraffic& pair : traffic) EXPECT_EQ(pair.bytes, 2 * bytes / size) << pair.from << " to " << pair.to;
}

struct Named {
  const char* name;
  CallKind kind;
  std::function<Schedule(std::uint32_t rank, std::uint32_t size, std::uint64_t bytes)> plan;
};

std::vector<Named> calls() {
  const auto blocks = [](const auto& make) {
    return [make](std::uint32_t rank, std::uint32_t size, std::uint64_t bytes) {
      std::vector<std::uint64_t> counts(size, bytes / size), displacements(size);
      for (std::uint32_t r = 0; r < size; ++r) displacements[r] = r * (bytes / size);
      return make(rank, size, BlockLayout{counts, displacements});
    };
  };
  return {
      {"all_reduce", CallKind::all_reduce, [](auto r, auto n, auto bytes) { return plan_all_reduce(r, n, bytes, 4); }},
      {"reduce", CallKind::reduce, [](auto r, auto n, auto bytes) { return plan_reduce(r, n, 0, bytes, 4); }},
      {"broadcast", CallKind::broadcast, [](auto r, auto n, auto bytes) { return plan_broadcast(r, n, 0, bytes); }},
      {"barrier", CallKind::barrier, [](auto r, auto n, auto) { return plan_barrier(r, n); }},
      {"all_to_all", CallKind::all_to_all, [](auto r, auto n, auto bytes) { return plan_all_to_all(r, n, bytes / n); }},
      {"reduce_scatter", CallKind::reduce_scatter,
       blocks([](auto r, auto n, const BlockLayout& layout) { return plan_reduce_scatter(r, n, layout, 4); })},
      {"all_gather", CallKind::all_gather,
       blocks([](auto r, auto n, const BlockLayout& layout) { return plan_all_gather_blocks(r, n, layout); })},
      {"gather", CallKind::gather, blocks([](auto r, auto n, const BlockLayout& layout) { return plan_gather(r, n, 0, layout); })},
      {"scatter", CallKind::scatter,
       blocks([](auto r, auto n, const BlockLayout& layout) { return plan_scatter(r, n, 0, layout); })},
  };
}

TEST(Cost, NoScheduleBeatsTheLowerBound) {
  std::vector<CostModel> models;
  for (const std::uint32_t size : {1U, 2U, 3U, 8U, 17U}) {
    models.emplace_back(size, LinkCost{.latency = 2 * us, .bandwidth = 10 * gigabyte}, RankCost{});
    models.emplace_back(size, LinkCost{.latency = us, .bandwidth = gigabyte},
                        RankCost{.injection = 2 * gigabyte, .reduction = 5 * gigabyte, .overhead = us});
    CostModel uneven(size, {.latency = 0, .bandwidth = gigabyte},
                     {.injection = 4 * gigabyte, .reduction = gigabyte, .overhead = us});
    for (std::uint32_t r = 0; r < size; ++r) {
      uneven.rank(r).injection /= 1 + r;
      for (std::uint32_t to = 0; to < size; ++to) uneven.link(r, to) = {(r + 2 * to) * us, (1 + (r * 7 + to) % 5) * gigabyte};
    }
    models.push_back(uneven);
  }
  for (const CostModel& model : models) {
    const std::uint32_t size = model.size();
    for (const Named& call : calls()) {
      for (const std::uint64_t element : {0ULL, 1ULL, 1000ULL, 100'000ULL, 1'000'000ULL}) {
        const std::uint64_t bytes = element * 4 * size;
        std::vector<Schedule> all;
        for (std::uint32_t r = 0; r < size; ++r) all.push_back(call.plan(r, size, bytes));
        const double bound = lower_bound(call.kind, bytes, 0, model), predicted = seconds(all, model);
        EXPECT_GE(predicted, bound * (1 - 1e-9)) << call.name << " of " << bytes << " bytes, " << size << " ranks";
        EXPECT_TRUE(std::isfinite(predicted));
      }
    }
  }
}

TEST(Cost, LargeAllReduceOfEqualRanksIsNearTheLowerBound) {
  for (const std::uint32_t size : {2U, 4U, 8U}) {
    const CostModel model(size, {.latency = us, .bandwidth = 10 * gigabyte}, {.injection = 10 * gigabyte});
    std::vector<Schedule> all;
    for (std::uint32_t r = 0; r < size; ++r) all.push_back(plan_all_reduce(r, size, 256 << 20, 4));
    const double bound = lower_bound(CallKind::all_reduce, 256 << 20, 0, model);
    EXPECT_NEAR(bound, us + 2.0 * (256 << 20) * (size - 1) / size / (10 * gigabyte), 1e-9);
    EXPECT_LE(seconds(all, model), 1.1 * bound) << size;
  }
}

TEST(Cost, LatencyBoundIsThatOfTheBestBroadcast) {
  // Busy for as long as a message travels: log2 n rounds.
  const auto bound = [](std::uint32_t size, double latency, double overhead) {
    return lower_bound(CallKind::barrier, 0, 0, CostModel(size, {.latency = latency, .bandwidth = 1}, {.overhead = overhead}));
  };
  EXPECT_DOUBLE_EQ(bound(2, 4, 0), 4);
  EXPECT_DOUBLE_EQ(bound(1000, 4, 0), 4);  // no time per message: one round is enough
  EXPECT_DOUBLE_EQ(bound(2, 4, 1), 6);
  // A rank sends every 2, what it sends takes 10: the root informs 6 by the time of 20, the first of them one more.
  EXPECT_DOUBLE_EQ(bound(8, 6, 2), 20);
  EXPECT_DOUBLE_EQ(bound(1, 4, 1), 0);
}

TEST(Cost, HugeSizesDoNotOverflow) {
  const std::uint64_t huge = 1ULL << 62;
  const CostModel model(2, {.latency = us, .bandwidth = gigabyte}, {.injection = gigabyte});
  const double predicted = seconds({sending(1, {huge, huge, huge}), receiving(0, {huge, huge, huge})}, model);
  EXPECT_NEAR(predicted, 3 * std::ldexp(1.0, 62) / gigabyte, 1e3);
  EXPECT_TRUE(std::isfinite(lower_bound(CallKind::all_reduce, ~0ULL, 0, model)));
}

TEST(Cost, FiguresWithoutMeaningAreRefused) {
  const double none = std::numeric_limits<double>::quiet_NaN(), unlimited = std::numeric_limits<double>::infinity();
  const std::vector<Schedule> idle(3);
  for (const double bad : {0.0, -1.0, none, -unlimited}) {
    CostModel links(3, {.latency = 0, .bandwidth = 1}, {}), injection = links, reduction = links;
    links.link(1, 2).bandwidth = bad;
    injection.rank(2).injection = bad;
    reduction.rank(0).reduction = bad;
    for (const CostModel& model : {links, injection, reduction})
      EXPECT_EQ(predict(idle, model).status().code(), Code::invalid_argument);
  }
  for (const double bad : {-1.0, none, unlimited}) {
    CostModel latency(3, {.latency = 0, .bandwidth = 1}, {}), overhead = latency;
    latency.link(2, 2).latency = bad;
    overhead.rank(1).overhead = bad;
    for (const CostModel& model : {latency, overhead}) EXPECT_EQ(predict(idle, model).status().code(), Code::invalid_argument);
  }
  EXPECT_EQ(predict({idle.data(), 2}, CostModel(3, {.latency = 0, .bandwidth = 1}, {})).status().code(), Code::invalid_argument);
}

TEST(Cost, SchedulesThatDoNotFitTogetherAreRefused) {
  const CostModel model(2, {.latency = 0, .bandwidth = 1}, {});
  const auto refused = [&](const std::vector<Schedule>& all) {
    return predict(all, model).status().code() == Code::invalid_argument;
  };
  EXPECT_TRUE(refused({sending(1, {5}), receiving(0, {6})}));
  EXPECT_TRUE(refused({sending(1, {5}), Schedule()}));
  EXPECT_TRUE(refused({Schedule(), receiving(0, {5})}));
  EXPECT_TRUE(refused({sending(2, {5}), Schedule()}));
}

}  // namespace
}  // namespace hmc
