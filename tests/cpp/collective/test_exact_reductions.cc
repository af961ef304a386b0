// Exact reductions: the same bits by every algorithm, executor, order of ranks and number of ranks among which the inputs are
// spread.
#include <algorithm>
#include <array>

#include "collective/reduction_data.h"

namespace hmc {
namespace {

using testing::Bytes;
using testing::inexact_input;
using testing::Process;
using testing::run_job;
using testing::soon;

constexpr std::array exact_types{DataType::f32, DataType::bf16, DataType::f16, DataType::f64, DataType::f8_e4m3fn};

Reduction exact(DataType type, ReduceOp op = ReduceOp::sum) { return {type, op, 0.7, true}; }

Bytes reduced(const Reduction& reduction, std::size_t count, const std::vector<std::size_t>& sources) {
  std::vector<Bytes> inputs;
  for (const std::size_t source : sources) inputs.push_back(inexact_input(reduction.type, count, source));
  return testing::reduced(reduction, inputs);
}

std::vector<std::string> names(const Member& me, const char* call, std::size_t bytes, DataType type) {
  const auto plan = me.plan(call, bytes, {.type = type, .exact = true});
  EXPECT_TRUE(plan.ok()) << plan.status().str();
  return plan.ok() ? plan->algorithms : std::vector<std::string>{};
}

std::vector<std::size_t> first_sources(int ranks) {
  std::vector<std::size_t> all;
  for (int r = 0; r < ranks; ++r) all.push_back(static_cast<std::size_t>(r));
  return all;
}

// all_reduce of source `source`, off any alignment, in place or not.
Bytes all_reduced(const Member& me, const Reduction& reduction, std::size_t count, std::size_t source, const std::string& algorithm,
                  bool in_place = false) {
  constexpr std::size_t offset = 1;
  Bytes in(offset), out(offset + count * size_of(reduction.type), std::byte{0x5c});
  const Bytes mine = inexact_input(reduction.type, count, source);
  in.insert(in.end(), mine.begin(), mine.end());
  const MemoryView from{in.data() + offset, mine.size()}, to{(in_place ? in : out).data() + offset, mine.size()};
  HMC_EXPECT_OK(me.all_reduce(to, from, reduction, soon(), algorithm));
  const Bytes& result = in_place ? in : out;
  return {result.begin() + offset, result.end()};
}

TEST(ExactReductions, OrderMattersElse) {
  for (const DataType type : {DataType::f32, DataType::f64}) {
    const Reduction plain{type};
    EXPECT_NE(reduced(plain, 4000, {0, 1, 2}), reduced(plain, 4000, {2, 1, 0}));
    EXPECT_EQ(reduced(exact(type), 4000, {0, 1, 2}), reduced(exact(type), 4000, {2, 1, 0}));
    EXPECT_NE(reduced(exact(type), 4000, {0, 1, 2}), reduced(plain, 4000, {0, 1, 2}));
  }
}

TEST(ExactReductions, EveryAlgorithmAndSizeGivesTheSameBits) {
  for (const char* transports : {"", "tcp", "shm, but not fused"}) {
    for (const int ranks : {1, 2, 3}) {
      run_job(ranks, [transports](const Process& process) mutable {
        InitOptions options = process.options();
        if (std::string_view(transports).starts_with("shm")) {
          setenv("HMC_FUSED", "0", 1);
          transports = "shm";
        }
        options.context.transports = transports;
        const Communicator world = process.init(options);
        const Member me = *world.self();
        const auto sources = first_sources(me.size());
        for (const DataType type : exact_types) {
          for (const std::size_t count : testing::swept<std::size_t>({0, 1, 7, 1023, 60'001}, {7, 20'001})) {
            const Bytes wanted = reduced(exact(type), count, sources);
            for (const std::string& name : names(me, "all_reduce", count * size_of(type), type)) {
              for (const bool in_place : {false, true})
                ASSERT_EQ(all_reduced(me, exact(type), count, static_cast<std::size_t>(me.rank()), name, in_place), wanted)
                    << name << ", " << count << " of " << name_of(type);
            }
          }
          for (const ReduceOp op : {ReduceOp::avg, ReduceOp::premul_sum})
            ASSERT_EQ(all_reduced(me, exact(type, op), 999, static_cast<std::size_t>(me.rank()), ""),
                      reduced(exact(type, op), 999, sources));
        }
        HMC_EXPECT_OK(world.barrier(soon()));
      });
    }
  }
}

TEST(ExactReductions, OtherOrdersAndNumbersOfRanksGiveTheSameBits) {
  run_job(4, [](const Process& process) {
    const Communicator world = process.init();
    constexpr std::size_t count = 5'003;
    const auto source = static_cast<std::size_t>(process.rank);
    for (const DataType type : exact_types) {
      const Bytes wanted = reduced(exact(type), count, {0, 1, 2});
      // Three ranks in each order of theirs.
      for (const auto& keys : {std::array{0, 1, 2}, std::array{1, 2, 0}, std::array{2, 1, 0}}) {
        const int color = process.rank < 3 ? 0 : -1;
        const auto group = world.split(std::vector{color}, std::vector{color < 0 ? 0 : keys[source]}, soon());
        ASSERT_TRUE(group.ok()) << group.status().str();
        if (!group->valid()) continue;
        const Member me = *group->self();
        for (const std::string& name : names(me, "all_reduce", count * size_of(type), type))
          ASSERT_EQ(all_reduced(me, exact(type), count, source, name), wanted) << name << " of " << name_of(type);
      }
      // And a fourth one that adds zeros.
      Bytes in = process.rank < 3 ? inexact_input(type, count, source) : Bytes(count * size_of(type)), out(in.size());
      HMC_ASSERT_OK(world.self()->all_reduce({out.data(), out.size()}, {in.data(), in.size()}, exact(type), soon()));
      ASSERT_EQ(out, wanted) << name_of(type);
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(ExactReductions, ScatteredAndRootedOnesAreTheSame) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    const auto rank = static_cast<std::size_t>(me.rank());
    for (const DataType type : exact_types) {
      const std::size_t count = 3 * 4'001, each = size_of(type) * 4'001;
      const Bytes wanted = reduced(exact(type), count, {0, 1, 2});
      Bytes in = inexact_input(type, count, rank), out(count * size_of(type));
      for (const std::string& name : names(me, "reduce_scatter", in.size(), type)) {
        HMC_ASSERT_OK(me.reduce_scatter({out.data(), each}, {in.data(), in.size()}, exact(type), soon(), name));
        ASSERT_TRUE(std::equal(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(each),
                               wanted.begin() + static_cast<std::ptrdiff_t>(rank * each)))
            << name << " of " << name_of(type);
      }
      for (const std::string& name : names(me, "reduce", in.size(), type)) {
        HMC_ASSERT_OK(me.reduce({out.data(), out.size()}, {in.data(), in.size()}, 1, exact(type), soon(), name));
        if (rank == 1) {
          ASSERT_EQ(out, wanted) << name << " of " << name_of(type);
        }
      }
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

// The CPU reduces for all of them. Several Members in a process, too.
TEST(ExactReductions, DeviceMemoryGivesTheSameBits) {
  run_job(2, [](const Process& process) {
    setenv("HMC_CUDA_LIBRARY", HMC_SIM_CUDA, 1);
    setenv("HMC_ROCM_LIBRARY", HMC_SIM_ROCM, 1);
    setenv("HMC_MLU_LIBRARY", HMC_SIM_MLU, 1);
    InitOptions options = process.options();
    for (const char* name : process.rank == 0 ? std::array{"cuda:0", "mlu:0"} : std::array{"rocm:0", "cpu"})
      options.devices.push_back(*Device::parse(name));
    const Communicator world = process.init(options);
    for (const DataType type : exact_types) {
      for (const std::size_t count : {1U, 999U, 60'001U}) {
        const std::size_t bytes = count * size_of(type);
        const auto plan = world.plan("all_reduce", bytes, {.type = type, .exact = true});
        ASSERT_TRUE(plan.ok()) << plan.status().str();
        EXPECT_NE(plan->reason.find("The CPU reduces device memory"), std::string::npos) << plan->reason;
        for (const std::string& name : plan->algorithms) {
          std::vector<Memory> memories;
          std::vector<MemberBuffers> buffers;
          for (const Member& member : world.local()) {
            memories.push_back(*Memory::allocate(bytes, member.device()));
            const Bytes mine = inexact_input(type, count, static_cast<std::size_t>(member.rank()));
            HMC_ASSERT_OK(memories.back().copy_from_host(mine.data(), bytes));
          }
          for (std::size_t i = 0; i < memories.size(); ++i) buffers.push_back({world.local()[i], memories[i], memories[i]});
          HMC_ASSERT_OK(world.all_reduce(buffers, exact(type), soon(), name));
          const Bytes wanted = reduced(exact(type), count, {0, 1, 2, 3});
          for (const Memory& memory : memories) {
            Bytes now(bytes);
            HMC_ASSERT_OK(memory.copy_to_host(now.data(), bytes));
            ASSERT_EQ(now, wanted) << name << ", " << count << " of " << name_of(type);
          }
        }
      }
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(ExactReductions, RanksThatDoNotAgreeAreToldBoth) {
  for (const std::size_t count : {9U, 100'000U}) {
    run_job(2, [count](const Process& process) {
      const Communicator world = process.init();
      const Member me = *world.self();
      Bytes data(count * 4);
      Reduction reduction = exact(DataType::f32);
      reduction.exact = me.rank() == 0;
      const Status status = me.all_reduce({data.data(), data.size()}, {data.data(), data.size()}, reduction, soon());
      EXPECT_EQ(status.code(), Code::invalid_argument) << status.str();
      for (const char* words : {"all_reduce of f32, exact sum", "all_reduce of f32, sum"})
        EXPECT_NE(status.message().find(words), std::string::npos) << status.str();
      process.board[0].fetch_add(1);
      EXPECT_TRUE(process.board.wait(0, 2));
    });
  }
}

TEST(ExactReductions, PlansSayWhatTheyCost) {
  const UniformLinks links{.ranks = 3};
  const auto plain = plan_collective("all_reduce", 3 << 20, links),
             exactly = plan_collective("all_reduce", 3 << 20, links, {.exact = true});
  ASSERT_TRUE(plain.ok() && exactly.ok());
  EXPECT_GT(exactly->seconds, plain->seconds);
  EXPECT_NE(exactly->reason.find("Exact: each sum is rounded once"), std::string::npos) << exactly->reason;
  const auto integers = plan_collective("all_reduce", 3 << 20, links, {.type = DataType::i32, .exact = true});
  ASSERT_TRUE(integers.ok());
  EXPECT_EQ(integers->seconds, plain->seconds);
}

}  // namespace
}  // namespace hmc
