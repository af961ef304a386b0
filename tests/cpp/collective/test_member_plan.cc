// plan() and islands() of real jobs: what is said is what is executed, whoever asks.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "collective/communicator_state.h"
#include "collective/job.h"
#include "hmc/hmc.h"

namespace hmc {
namespace {

using testing::Process;
using testing::run_job;
using testing::soon;

// Bytes that this rank's Schedule of a call that was executed sends to each other rank; empty: there is no such Schedule.
std::map<int, std::uint64_t> executed(const Communicator& comm, const ScheduleCache::Key& key) {
  const Group& group = *comm.state()->group;
  const std::uint32_t rank = group.local().front();
  bool there = true;
  const auto schedule = comm.state()->group->schedules().get(rank, key, [&] {
    there = false;
    return Schedule();
  });
  std::map<int, std::uint64_t> sent;
  for (const Step& step : schedule->steps) {
    if (step.kind == StepKind::send && step.peer != rank) sent[static_cast<int>(step.peer)] += step.bytes;
  }
  EXPECT_TRUE(there) << "the call was carried out by another Schedule";
  return sent;
}

std::map<int, std::uint64_t> planned(const CollectivePlan& plan, int rank) {
  std::map<int, std::uint64_t> sent;
  for (const PlannedLink& link : plan.links) {
    if (link.source == rank) sent[link.target] = link.bytes;
  }
  return sent;
}

// As the execution tells Schedules apart.
std::uint64_t detail(DataType type, std::uint64_t root = 0) { return root << 16 | size_of(type) << 1; }

TEST(MemberPlan, BytesPerLinkAreThoseOfTheExecution) {
  run_job(3, [](const Process& process) {
    setenv("HMC_FUSED", "0", 1);
    const Communicator comm = process.init();
    const Member me = *comm.self();
    for (const std::size_t bytes : {std::size_t{24}, std::size_t{48} << 10, std::size_t{3} << 20}) {
      std::vector<std::byte> in(bytes), out(bytes);
      const PlanOptions options{.type = DataType::f64, .root = 1};
      const auto all = me.plan("all_reduce", bytes, options), reduced = me.plan("reduce", bytes, options);
      const auto sent = me.plan("broadcast", bytes, options), exchanged = me.plan("all_to_all", bytes);
      ASSERT_TRUE(all.ok() && reduced.ok() && sent.ok() && exchanged.ok()) << all.status().str();
      const Reduction sum{.type = DataType::f64};
      const MemoryView to(out.data(), bytes), from(in.data(), bytes);
      ASSERT_TRUE(me.all_reduce(to, from, sum, soon()).ok());
      ASSERT_TRUE(me.reduce(to, from, 1, sum, soon()).ok());
      ASSERT_TRUE(me.broadcast(to, 1, soon()).ok());
      ASSERT_TRUE(me.all_to_all(to, from, soon()).ok());
      EXPECT_EQ(planned(*all, me.rank()), executed(comm, {CallKind::all_reduce, bytes, detail(DataType::f64)}));
      EXPECT_EQ(planned(*reduced, me.rank()), executed(comm, {CallKind::reduce, bytes, detail(DataType::f64, 1)}));
      EXPECT_EQ(planned(*sent, me.rank()), executed(comm, {CallKind::broadcast, bytes, 1}));
      EXPECT_EQ(planned(*exchanged, me.rank()), executed(comm, {CallKind::all_to_all, bytes / 3, AllToAllTuning().inline_copy}));
    }
    ASSERT_TRUE(comm.barrier(soon()).ok());
  });
}

TEST(MemberPlan, BytesOfFusedCallsAreThoseOfTheExecution) {
  run_job(3, [](const Process& process) {
    const Communicator comm = process.init();
    const Member me = *comm.self();
    std::uint64_t counted = 0;
    constexpr const char* calls[] = {"all_reduce", "reduce", "all_to_all", "all_gather", "broadcast"};
    for (const std::size_t bytes : {std::size_t{12'000}, std::size_t{600} << 10}) {
      std::vector<std::byte> in(bytes), out(bytes);
      const Reduction sum{.type = DataType::f64};
      const MemoryView to(out.data(), bytes), from(in.data(), bytes);
      for (const std::string call : calls) {
        const auto plan = me.plan(call, bytes, {.type = DataType::f64, .root = 1});
        ASSERT_TRUE(plan.ok()) << plan.status().str();
        EXPECT_TRUE(
            plan->algorithm.starts_with(bytes == 12'000 ? "whole inputs through shared memory" : "one pass over shared memory"))
            << call << ": " << plan->algorithm;
        ASSERT_TRUE(plan->runner_up && plan->runner_up->algorithm.starts_with("by messages: ")) << call;
        if (call == "all_reduce") {
          ASSERT_TRUE(me.all_reduce(to, from, sum, soon()).ok());
        }
        if (call == "reduce") {
          ASSERT_TRUE(me.reduce(to, from, 1, sum, soon()).ok());
        }
        if (call == "all_to_all") {
          ASSERT_TRUE(me.all_to_all(to, from, soon()).ok());
        }
        if (call == "all_gather") {
          ASSERT_TRUE(me.all_gather(to, {in.data(), bytes / 3}, soon()).ok());
        }
        if (call == "broadcast") {
          ASSERT_TRUE(me.broadcast(to, 1, soon()).ok());
        }
        for (const PlannedLink& link : plan->links) counted += link.target == me.rank() ? link.bytes : 0;
        EXPECT_EQ(comm.context().counters().at("fused.bytes"), counted) << call << " of " << bytes;
      }
    }
    EXPECT_EQ(comm.context().counters().at("fused.count"), 10U);
    for (const char* call : {"all_to_all", "all_gather", "broadcast"}) {
      const auto plan = me.plan(call, 12 << 20);
      ASSERT_TRUE(plan.ok()) << plan.status().str();
      EXPECT_EQ(plan->algorithm.find("shared memory"), std::string::npos) << call << ": " << plan->algorithm;
    }
    ASSERT_TRUE(comm.barrier(soon()).ok());
  });
}

TEST(MemberPlan, AsksNobodyAndSaysWhatItRestsOn) {
  run_job(3, [](const Process& process) {
    const Communicator comm = process.init();
    // Only rank 1 asks: the others need not take part.
    if (process.rank == 1) {
      for (int dst = 0; dst < 3; ++dst) ASSERT_TRUE(comm.self()->path(dst, soon()).ok());
      const auto plan = comm.plan("all_reduce", 1 << 20);
      ASSERT_TRUE(plan.ok()) << plan.status().str();
      EXPECT_EQ(plan->ranks, 3);
      EXPECT_GE(plan->seconds, plan->lower_bound);
      EXPECT_GT(plan->lower_bound, 0);
      for (const PlannedLink& link : plan->links) {
        const bool own = link.source == 1 || link.target == 1;
        EXPECT_EQ(link.basis, own ? "path" : "alike") << link.source << " to " << link.target;
        const auto path = comm.self()->path(link.source == 1 ? link.target : 0, soon());
        ASSERT_TRUE(path.ok());
        EXPECT_NEAR(link.latency_us, path->latency_us, 1e-6);
        EXPECT_DOUBLE_EQ(link.bandwidth, path->bandwidth);
      }
      EXPECT_NE(plan->figures.find("estimated, not measured; links: 4 path, 2 alike"), std::string::npos) << plan->figures;
      EXPECT_EQ(comm.plan("all_reduce", 3).status().code(), Code::invalid_argument);
      EXPECT_EQ(comm.plan("nothing", 4).status().code(), Code::invalid_argument);
    }
    ASSERT_TRUE(comm.barrier(soon()).ok());
    const auto islands = comm.islands();
    ASSERT_TRUE(islands.ok());
    EXPECT_EQ(*islands, (std::vector<std::vector<int>>{{0, 1, 2}}));
    ASSERT_TRUE(comm.barrier(soon()).ok());
  });
}

// Two hosts that were written down, with two Members in each process.
TEST(MemberPlan, WrittenTopologyGivesIslandsAndRates) {
  run_job(2, [](const Process& process) {
    Topology written;
    written.hosts = {"a", "b"};
    for (int p = 0; p < 2; ++p) {
      for (const char* name : {"first", "second"}) {
        TopologyCard card;
        card.host = written.hosts[static_cast<std::size_t>(p)];
        card.name = card.host + "/" + name;
        card.process = p;
        written.cards.push_back(card);
      }
      written.nics.push_back({"nic", written.hosts[static_cast<std::size_t>(p)], "ethernet", "", -1, p == 0 ? 50e9 : 1e9});
    }
    written.links.push_back({"a/first", "a/second", "peer", 7e9});
    InitOptions options = process.options();
    options.topology = written;
    const Communicator comm = process.init(options);
    ASSERT_EQ(comm.size(), 4);
    const auto islands = comm.islands();
    ASSERT_TRUE(islands.ok());
    EXPECT_EQ(*islands, (std::vector<std::vector<int>>{{0, 1}, {2, 3}}));
    const auto plan = comm.plan("all_to_all", 4 << 20);
    ASSERT_TRUE(plan.ok()) << plan.status().str();
    for (const PlannedLink& link : plan->links) {
      const bool between = link.source / 2 != link.target / 2, linked = link.source < 2 && link.target < 2;
      if (between || linked) {
        EXPECT_EQ(link.basis, "topology");
        EXPECT_DOUBLE_EQ(link.bandwidth, between ? 1e9 : 7e9);
      } else {
        EXPECT_NE(link.basis, "topology");
      }
    }
    // The ranks of another group count otherwise.
    const std::vector<int> colors{0, 0}, keys{10 - process.rank, 10 - process.rank};
    const auto turned = comm.split(colors, keys, soon());
    ASSERT_TRUE(turned.ok()) << turned.status().str();
    const auto sent = turned->plan("gather", 4 << 20, {.root = 2});
    ASSERT_TRUE(sent.ok()) << sent.status().str();
    ASSERT_EQ(sent->links.size(), 3U);
    EXPECT_DOUBLE_EQ(sent->links[0].bandwidth, 1e9);
    EXPECT_DOUBLE_EQ(sent->links[2].bandwidth, 7e9) << "from rank 3 to rank 2, which are on host a here";
    ASSERT_TRUE(comm.barrier(soon()).ok());
  });
}

TEST(MemberPlan, ClosedAndEmptyGroupsAreRefused) {
  EXPECT_EQ(Communicator().plan("all_reduce", 4).status().code(), Code::invalid_argument);
  EXPECT_EQ(Communicator().islands().status().code(), Code::invalid_argument);
  EXPECT_EQ(Member().plan("all_reduce", 4).status().code(), Code::invalid_argument);
  run_job(1, [](const Process& process) {
    const Communicator comm = process.init();
    const auto plan = comm.plan("all_reduce", 4);
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(plan->algorithm, "local");
    EXPECT_TRUE(plan->links.empty());
    ASSERT_TRUE(comm.close(soon()).ok());
    EXPECT_EQ(comm.plan("all_reduce", 4).status().code(), Code::closed);
    EXPECT_EQ(comm.islands().status().code(), Code::closed);
  });
}

}  // namespace
}  // namespace hmc
