// Algorithms that the caller names: each carries out the call, or says why it cannot, and ranks that name different ones are told.
#include <algorithm>
#include <array>

#include "collective/algorithm.h"
#include "collective/choose.h"
#include "collective/job.h"
#include "device/reduce.h"

namespace hmc {
namespace {

using testing::Bytes;
using testing::Process;
using testing::run_job;
using testing::soon;

constexpr std::array kinds{CallKind::all_reduce, CallKind::reduce_scatter, CallKind::reduce,
                           CallKind::all_gather, CallKind::broadcast,      CallKind::all_to_all};

// Every name that a plan of any size and number of ranks prints, and every one that it lists, is taken.
TEST(AlgorithmNames, WhatPlansPrintIsTaken) {
  for (const CallKind kind : kinds) {
    for (const int ranks : {1, 2, 3, 17}) {
      for (const std::uint64_t block : {0U, 8U, 4096U, 1U << 21}) {
        const std::uint64_t bytes = block * static_cast<std::uint64_t>(ranks);
        const std::string call(name_of(kind));
        SCOPED_TRACE(call + " of " + std::to_string(bytes) + " among " + std::to_string(ranks));
        const auto plan = plan_collective(call, bytes, {.ranks = ranks});
        ASSERT_TRUE(plan.ok()) << plan.status().str();
        std::vector<std::string> names = plan->algorithms;
        ASSERT_FALSE(names.empty());
        names.push_back(plan->algorithm);
        if (plan->runner_up) names.push_back(plan->runner_up->algorithm);
        names.push_back("by messages: " + plan->algorithm);
        for (const std::string& name : names) {
          const auto named = plan_collective(call, bytes, {.ranks = ranks}, {.algorithm = name});
          ASSERT_TRUE(named.ok()) << named.status().str();
          EXPECT_EQ(named->algorithms, plan->algorithms);
          EXPECT_TRUE(named->algorithm == plan->algorithm || named->reason.starts_with("It was named.")) << named->reason;
          EXPECT_GE(named->seconds, named->lower_bound * (1 - 1e-9));
        }
        for (const std::string& name : plan->algorithms) {
          const auto named = plan_collective(call, bytes, {.ranks = ranks}, {.algorithm = name});
          EXPECT_TRUE(named->algorithm.starts_with(name)) << named->algorithm << " for " << name;
        }
      }
    }
  }
}

TEST(AlgorithmNames, OneThatWasNamedIsComparedWithTheChoice) {
  const auto plan = plan_collective("all_reduce", 1 << 20, {.ranks = 4}, {.algorithm = "whole inputs to every rank"});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->algorithm, "whole inputs to every rank");
  ASSERT_TRUE(plan->runner_up);
  EXPECT_TRUE(plan->runner_up->algorithm.starts_with("reduce-scatter + all-gather"));
  EXPECT_NE(plan->reason.find("HMC chooses \"reduce-scatter + all-gather"), std::string::npos) << plan->reason;
  std::uint64_t sent = 0;
  for (const PlannedLink& link : plan->links) sent += link.bytes;
  EXPECT_EQ(sent, 12ULL << 20);  // each rank its input to three others
  EXPECT_NE(plan->str().find("algorithms"), std::string::npos);
}

TEST(AlgorithmNames, OneThatCannotIsRefusedWithThoseThatCan) {
  struct Refused {
    const char* call;
    std::uint64_t bytes;
    int ranks;
    const char* name;
    std::vector<const char*> words;
  };
  const std::vector<Refused> all{
      {"all_reduce", 4096, 4, "ring", {"\"ring\"", "no such", "\"whole inputs to every rank\"", "\"reduce-scatter + all-gather\""}},
      {"all_reduce", 4096, 4, "doubling", {"no such", "all_reduce of 4 KiB among 4 ranks"}},
      {"all_reduce", 4096, 4, "one pass over shared memory", {"one host", "HMC_FUSED", "\"whole inputs to every rank\""}},
      {"all_reduce", 4096, 1, "reduce-scatter + all-gather", {"one rank", "\"local\""}},
      {"all_gather", 4096, 2, "doubling", {"3 ranks", "\"direct\""}},
      {"broadcast", 4096, 2, "binomial tree", {"one receiver", "\"direct\""}},
      {"broadcast", 4096, 3, "direct", {"several receivers", "\"binomial tree\" and \"scatter + all-gather\""}},
      {"all_to_all", 4096, 2, "relayed", {"3 ranks", "\"direct\""}},
      {"gather", 4096, 2, "doubling", {"no such", "\"direct\""}},
      {"barrier", 0, 2, "direct", {"no such", "\"dissemination\""}},
      {"all_reduce", 4096, 4, " whole inputs to every rank", {"no such"}},
      {"all_reduce", 4096, 4, ", chunks of 4 KiB", {"no such"}},
  };
  for (const Refused& each : all) {
    const auto plan = plan_collective(each.call, each.bytes, {.ranks = each.ranks}, {.algorithm = each.name});
    ASSERT_EQ(plan.status().code(), Code::invalid_argument) << each.call << " " << each.name;
    for (const char* word : each.words) EXPECT_NE(plan.status().message().find(word), std::string::npos) << plan.status().str();
  }
  EXPECT_EQ(plan_collective("broadcast", 8, {.ranks = 3}, {.exact = true}).status().code(), Code::invalid_argument);
}

TEST(AlgorithmNames, ShotsThatAreTooLargeSayHowLargeTheyMayBe) {
  const EqualCall call{.kind = CallKind::all_reduce, .size = 3, .bytes = 32769};
  const auto named = named_algorithm(call, "whole inputs through shared memory", {.cpu = true});
  ASSERT_EQ(named.status().code(), Code::invalid_argument);
  EXPECT_NE(named.status().message().find("32 KiB"), std::string::npos) << named.status().str();
  EXPECT_NE(named.status().message().find("\"one pass over shared memory\""), std::string::npos);
}

// Small numbers of either sign: sums of f32 that depend on the order.
Bytes floats(std::size_t count, std::size_t rank) {
  Bytes made = testing::pattern(count * 4, rank * 31 + 7);
  for (std::size_t i = 0; i < count; ++i) made[4 * i + 3] = (made[4 * i + 3] & std::byte{0x81}) | std::byte{0x3e};
  return made;
}

Bytes reduced(std::size_t count, std::size_t ranks) {
  std::vector<Bytes> inputs;
  std::vector<const void*> sources;
  for (std::size_t r = 0; r < ranks; ++r) inputs.push_back(floats(count, r));
  for (const Bytes& each : inputs) sources.push_back(each.data());
  Bytes result(count * 4);
  reduce_on_cpu(result.data(), sources, count, {});
  return result;
}

// A buffer off any alignment, with bytes around it that nothing may touch.
struct Guarded {
  explicit Guarded(const Bytes& content) : bytes(content.size() + 16, std::byte{0x5c}) {
    std::copy(content.begin(), content.end(), bytes.begin() + 3);
  }
  [[nodiscard]] MemoryView view() { return {bytes.data() + 3, bytes.size() - 16}; }
  [[nodiscard]] bool is(const Bytes& content) const { return bytes == Guarded(content).bytes; }
  Bytes bytes;
};

Bytes part(const Bytes& all, std::size_t index, std::size_t parts) {
  const std::size_t each = all.size() / parts;
  const auto at = all.begin() + static_cast<std::ptrdiff_t>(index * each);
  return {at, at + static_cast<std::ptrdiff_t>(each)};
}

// `count` elements of f32 for each rank. The status of the call, whose result is right if it is ok.
Status carry_out(const Member& me, CallKind kind, std::size_t count, const std::string& algorithm) {
  const auto ranks = static_cast<std::size_t>(me.size()), rank = static_cast<std::size_t>(me.rank());
  const int root = me.size() - 1;
  const auto expect = [&](const Status& status, const Guarded& out, const Bytes& wanted) {
    if (status.ok()) {
      EXPECT_TRUE(out.is(wanted)) << name_of(kind) << " of " << count << " by " << algorithm;
    }
    return status;
  };
  const std::size_t all = count * ranks;
  if (kind == CallKind::all_reduce) {
    Guarded in(floats(count, rank)), out(Bytes(4 * count));
    return expect(me.all_reduce(out.view(), in.view(), {}, soon(), algorithm), out, reduced(count, ranks));
  }
  if (kind == CallKind::reduce) {
    Guarded in(floats(count, rank)), out(Bytes(4 * count));
    const Status status = me.reduce(out.view(), in.view(), root, {}, soon(), algorithm);
    return expect(status, out, me.rank() == root ? reduced(count, ranks) : Bytes(4 * count));
  }
  if (kind == CallKind::reduce_scatter) {
    Guarded in(floats(all, rank)), out(Bytes(4 * count));
    return expect(me.reduce_scatter(out.view(), in.view(), {}, soon(), algorithm), out, part(reduced(all, ranks), rank, ranks));
  }
  if (kind == CallKind::broadcast) {
    Guarded out(me.rank() == root ? floats(count, 9) : Bytes(4 * count));
    return expect(me.broadcast(out.view(), root, soon(), algorithm), out, floats(count, 9));
  }
  Bytes wanted;
  for (std::size_t r = 0; r < ranks; ++r) {
    const Bytes block = kind == CallKind::all_gather ? floats(count, r) : part(floats(all, r), rank, ranks);
    wanted.insert(wanted.end(), block.begin(), block.end());
  }
  Guarded in(floats(kind == CallKind::all_gather ? count : all, rank)), out(Bytes(4 * all));
  if (kind == CallKind::all_gather) return expect(me.all_gather(out.view(), in.view(), soon(), algorithm), out, wanted);
  return expect(me.all_to_all(out.view(), in.view(), soon(), algorithm), out, wanted);
}

std::uint64_t planned_bytes(CallKind kind, std::size_t count, int ranks) {
  const bool blocks = kind == CallKind::reduce_scatter || kind == CallKind::all_gather || kind == CallKind::all_to_all;
  return 4 * count * (blocks ? static_cast<std::size_t>(ranks) : 1);
}

TEST(Algorithms, EachCarriesOutEverySize) {
  for (const int ranks : testing::swept({1, 2, 3, 5}, {1, 2, 3})) {
    run_job(ranks, [](const Process& process) {
      const Communicator world = process.init();
      const Member me = *world.self();
      for (const CallKind kind : kinds) {
        for (const std::size_t count : testing::swept<std::size_t>({0, 1, 7, 1023, 150'001}, {0, 7, 40'001})) {
          const auto plan = me.plan(name_of(kind), planned_bytes(kind, count, me.size()));
          ASSERT_TRUE(plan.ok()) << plan.status().str();
          for (const std::string& name : plan->algorithms) HMC_ASSERT_OK(carry_out(me, kind, count, name));
          HMC_ASSERT_OK(carry_out(me, kind, count, plan->algorithm));
        }
      }
      HMC_EXPECT_OK(world.barrier(soon()));
    });
  }
}

// What was named is what carries it out.
TEST(Algorithms, SharedMemoryIsUsedWhereItIsNamedOnly) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    const auto fused = [&] {
      const auto counters = world.context().counters();
      const auto found = counters.find("fused.count");
      return found == counters.end() ? 0 : found->second;
    };
    for (const std::size_t count : {5U, 100'000U}) {
      for (const CallKind kind : {CallKind::all_reduce, CallKind::reduce_scatter, CallKind::reduce}) {
        const auto plan = me.plan(name_of(kind), planned_bytes(kind, count, 2));
        for (const std::string& name : plan->algorithms) {
          const auto before = fused();
          HMC_ASSERT_OK(carry_out(me, kind, count, name));
          EXPECT_EQ(fused() - before, name.find("shared memory") != std::string::npos ? 1U : 0U) << name;
        }
      }
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(Algorithms, BadNamesAreRefusedAndDoNoHarm) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    for (const CallKind kind : kinds) {
      const Status status = carry_out(me, kind, 100'000, "whole inputs through shared memory");
      EXPECT_EQ(status.code(), Code::invalid_argument) << status.str();
      HMC_ASSERT_OK(carry_out(me, kind, 100'000, ""));
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

// Where the blocks lie in the output is each rank's own affair.
TEST(Algorithms, BlocksWithGapsOnOneRankAreGatheredByEachOfThem) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    const auto rank = static_cast<std::size_t>(me.rank());
    const std::vector<std::uint64_t> counts{40, 80, 4}, packed{0, 40, 120}, apart{90, 1, 132};
    for (const char* name : {"", "doubling", "direct"}) {
      for (const bool in_place : {false, true}) {
        const auto& at = rank == 1 ? apart : packed;
        Bytes in = testing::pattern(counts[rank], rank), out(140, std::byte{0x5c}), wanted = out;
        for (std::size_t r = 0; r < 3; ++r)
          std::ranges::copy(testing::pattern(counts[r], r), wanted.begin() + static_cast<std::ptrdiff_t>(at[r]));
        MemoryView from{in.data(), in.size()};
        if (in_place) {
          from.data = out.data() + at[rank];
          std::ranges::copy(in, out.begin() + static_cast<std::ptrdiff_t>(at[rank]));
        }
        HMC_ASSERT_OK(me.all_gather_v({out.data(), out.size()}, {counts, at}, from, soon(), name));
        EXPECT_EQ(out, wanted) << name;
      }
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

struct Case {
  CallKind kind;
  std::size_t count;
  const char* first;  // of rank 0, or of the last rank
  const char* rest;
};

TEST(Algorithms, RanksThatNameDifferentOnesAreToldBoth) {
  const std::vector<Case> cases{
      {CallKind::all_reduce, 10, "whole inputs to every rank", "reduce-scatter + all-gather"},
      {CallKind::all_reduce, 10, "whole inputs through shared memory", "one pass over shared memory"},
      {CallKind::all_reduce, 10, "one pass over shared memory", "reduce-scatter + all-gather"},
      {CallKind::all_reduce, 10, "", "whole inputs to every rank"},
      {CallKind::all_reduce, 10, "", "whole inputs through shared memory"},
      {CallKind::all_reduce, 200'000, "", "one pass over shared memory"},
      {CallKind::reduce_scatter, 10, "direct", "one pass over shared memory"},
      {CallKind::reduce, 10, "whole inputs to the root", "one pass over shared memory"},
      {CallKind::all_gather, 10, "doubling", "direct"},
      {CallKind::all_gather, 10, "doubling", ""},
      {CallKind::broadcast, 10, "binomial tree", "scatter + all-gather"},
      {CallKind::all_to_all, 10, "relayed", "direct"},
      {CallKind::all_to_all, 10, "", "direct"},
  };
  run_job(
      3,
      [&](const Process& process) {
        const Communicator world = process.init();
        for (const Case& one : cases) {
          for (const int odd : {0, 2}) {
            const auto group = world.split(std::vector{0}, std::vector{process.rank}, soon());
            ASSERT_TRUE(group.ok()) << group.status().str();
            const Status status = carry_out(*group->self(), one.kind, one.count, process.rank == odd ? one.first : one.rest);
            SCOPED_TRACE(std::string(one.first) + " on rank " + std::to_string(odd) + ", else " + one.rest + ": " + status.str());
            // A rank that only sends may have ended before it is told.
            const bool only_sends =
                one.kind == CallKind::reduce ? process.rank != 2 : one.kind == CallKind::broadcast && process.rank == 2;
            if (only_sends && status.ok()) {
              HMC_ASSERT_OK(world.barrier(soon()));
              continue;
            }
            EXPECT_EQ(status.code(), Code::invalid_argument);
            for (const std::string name : {one.first, one.rest}) {
              const std::string word = name.empty() ? "by HMC's choice" : "by \"" + name + "\"";
              EXPECT_NE(status.message().find(word), std::string::npos) << word;
            }
            EXPECT_NE(status.message().find("rank " + std::to_string(odd) + " ("), std::string::npos);
            HMC_ASSERT_OK(world.barrier(soon()));
            ASSERT_FALSE(::testing::Test::HasFailure());
          }
        }
      },
      {.limit = 100});
}

// Where a rank's memory is out of reach, those that were told to use shared memory end alike, and the Communicator goes on.
TEST(Algorithms, DeviceMemoryEndsSharedMemoryThatWasNamedOnEveryRank) {
  run_job(3, [](const Process& process) {
    setenv("HMC_CUDA_LIBRARY", HMC_SIM_CUDA, 1);
    InitOptions options = process.options();
    options.devices = {process.rank == 1 ? *Device::parse("cuda:0") : Device::cpu()};
    const Communicator world = process.init(options);
    const Member me = *world.self();
    for (const char* name : {"whole inputs through shared memory", "one pass over shared memory"}) {
      const Bytes mine = floats(99, static_cast<std::size_t>(me.rank()));
      auto memory = Memory::allocate(mine.size(), me.device());
      ASSERT_TRUE(memory.ok());
      HMC_ASSERT_OK(memory->copy_from_host(mine.data(), mine.size()));
      const Status status = me.all_reduce(*memory, *memory, {}, soon(), name);
      EXPECT_EQ(status.code(), Code::unsupported) << status.str();
      for (const char* word : {"all_reduce", name, "device memory"})
        EXPECT_NE(status.message().find(word), std::string::npos) << status.str();
      Bytes now(mine.size());
      HMC_ASSERT_OK(memory->copy_to_host(now.data(), now.size()));
      EXPECT_EQ(now, mine);
      HMC_ASSERT_OK(me.all_reduce(*memory, *memory, {}, soon()));
      HMC_ASSERT_OK(memory->copy_to_host(now.data(), now.size()));
      EXPECT_EQ(now, reduced(99, 3));
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

// A rank dies in the middle of a long call.
TEST(Algorithms, ADeathEndsEachOfThem) {
  for (const char* name : {"whole inputs to every rank", "reduce-scatter + all-gather", "one pass over shared memory"}) {
    run_job(3,
            [name](const Process& process) {
              const Communicator world = process.init();
              const Member me = *world.self();
              Bytes data(testing::lengthy(64 << 20));
              HMC_ASSERT_OK(world.barrier(soon()));
              auto work = me.iall_reduce({data.data(), data.size()}, {data.data(), data.size()}, {}, name);
              ASSERT_TRUE(work.ok()) << work.status().str();
              process.board[0].fetch_add(1);
              EXPECT_TRUE(process.board.wait(0, 3));
              if (me.rank() == 1) testing::die();
              Status status = work->wait(soon());
              if (status.ok()) status = me.barrier(soon());  // it was over before
              EXPECT_EQ(status.code(), Code::peer_lost) << status.str();
            },
            {.killed = {1}});
  }
}

TEST(Algorithms, ALateRankIsNamedAtTheDeadline) {
  for (const char* name : {"whole inputs to every rank", "whole inputs through shared memory", "one pass over shared memory"}) {
    run_job(2, [name](const Process& process) {
      const Communicator world = process.init();
      const Member me = *world.self();
      Bytes data = floats(9, 0);
      if (me.rank() == 0) {
        const Status status =
            me.all_reduce({data.data(), data.size()}, {data.data(), data.size()}, {}, Deadline::after_seconds(0.2), name);
        EXPECT_EQ(status.code(), Code::timeout) << status.str();
        EXPECT_NE(status.message().find("rank 1 ("), std::string::npos) << status.str();
        EXPECT_EQ(data, floats(9, 0));
      }
      process.board[0].fetch_add(1);
      EXPECT_TRUE(process.board.wait(0, 2));
    });
  }
}

}  // namespace
}  // namespace hmc
