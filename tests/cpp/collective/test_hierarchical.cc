// Hierarchical collectives between simulated devices of several vendors: inputs are scaled and results divided once, every rank has
// the same bits, and ranks that are lost end it.
#include <algorithm>

#include "collective/on_devices.h"

namespace hmc {
namespace {

using testing::Bytes;
using testing::Devices;
using testing::input;
using testing::on_devices;
using testing::OnDevice;
using testing::soon;
using testing::wait_until_ready;

constexpr const char* hierarchical = "hierarchical";

Bytes reduced(const std::vector<Bytes>& inputs, const ReduceStep& step) {
  std::vector<const void*> sources;
  for (const Bytes& each : inputs) sources.push_back(each.data());
  Bytes result(inputs[0].size());
  reduce_on_cpu(result.data(), sources, result.size() / size_of(step.type), step);
  return result;
}

// In rank order within each island, then in the order of the islands.
Bytes expected(const Communicator& world, const Reduction& reduction, std::size_t count) {
  const auto islands = world.islands();
  EXPECT_TRUE(islands.ok());
  ReduceStep first{.type = reduction.type, .op = reduction.op}, last = first;
  if (reduction.op == ReduceOp::premul_sum) first.scale = reduction.factor;
  if (reduction.op == ReduceOp::avg) last.divisor = static_cast<std::uint32_t>(world.size());
  std::vector<Bytes> sums;
  for (const std::vector<int>& island : *islands) {
    std::vector<Bytes> inputs;
    for (const int rank : island) inputs.push_back(input(reduction.type, count, static_cast<std::size_t>(rank)));
    sums.push_back(reduced(inputs, first));
  }
  return reduced(sums, last);
}

void check(const Member& me, const Communicator& world, const Reduction& reduction, std::size_t count, bool in_place,
           std::size_t offset, const char* algorithm = hierarchical) {
  SCOPED_TRACE(std::string(name_of(reduction.op)) + " of " + std::to_string(count) + " " + std::string(name_of(reduction.type)));
  const OnDevice in(me.device(), input(reduction.type, count, static_cast<std::size_t>(me.rank())), offset);
  const OnDevice out(me.device(), Bytes(count * size_of(reduction.type), std::byte{0x11}), offset);
  HMC_ASSERT_OK(me.all_reduce(in_place ? in.view() : out.view(), in.view(), reduction, soon(), algorithm));
  ASSERT_TRUE((in_place ? in : out).read() == expected(world, reduction, count));
  ASSERT_TRUE(in.guarded() && out.guarded());
}

const std::vector<Devices> mixes{
    {"cuda:0", "rocm:0", "cuda:1", "rocm:1"}, {"cuda:0", "cuda:1", "mlu:0"}, {"cpu", "cuda:1", "cpu", "mlu:0", "mlu:1"}};

TEST(Hierarchical, EveryTypeAndOperation) {
  for (const Devices& devices : mixes) {
    on_devices(devices, [](const Member& me, const Communicator& world) {
      for (std::size_t type = 0; type < data_types; type += testing::slow() ? 4 : 1) {
        wait_until_ready(me.device(), static_cast<DataType>(type), static_cast<std::size_t>(me.size()));
        for (std::size_t op = 0; op < reduce_ops; ++op) {
          const Reduction reduction{static_cast<DataType>(type), static_cast<ReduceOp>(op), 0.5};
          if (check_reduction(reduction).ok()) check(me, world, reduction, 257, op % 2 == 0, 16);
        }
      }
    });
  }
}

TEST(Hierarchical, EverySizeInPlaceAndNot) {
  for (const char* transports : {"", "tcp,staging"}) {
    for (const Devices& devices : mixes) {
      on_devices(
          devices,
          [](const Member& me, const Communicator& world) {
            for (const DataType type : {DataType::f32, DataType::bf16})
              wait_until_ready(me.device(), type, static_cast<std::size_t>(me.size()));
            for (const int each : testing::swept({1, 2, 3, 7, 1023, 40'001, 700'001}, {3, 40'001})) {
              const auto count = static_cast<std::size_t>(each);
              check(me, world, {DataType::f32, ReduceOp::sum}, count, false, 4);
              check(me, world, {DataType::bf16, ReduceOp::avg}, count, true, 3);
            }
          },
          transports);
    }
  }
}

TEST(Hierarchical, BlocksOfEverySize) {
  for (const Devices& devices : mixes) {
    on_devices(devices, [](const Member& me, const Communicator& world) {
      const auto size = static_cast<std::size_t>(me.size()), rank = static_cast<std::size_t>(me.rank());
      const Reduction reduction{DataType::bf16, ReduceOp::avg};
      wait_until_ready(me.device(), reduction.type, size);
      for (const int each : testing::swept({1, 2, 511, 40'001, 300'000}, {2, 40'001})) {
        const auto count = static_cast<std::size_t>(each), bytes = count * 2;
        const Bytes all = expected(world, reduction, size * count);
        const OnDevice in(me.device(), input(reduction.type, size * count, rank), 2), part(me.device(), Bytes(bytes), 6);
        HMC_ASSERT_OK(me.reduce_scatter(part.view(), in.view(), reduction, soon(), hierarchical));
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * bytes);
        ASSERT_TRUE(part.read() == Bytes(begin, begin + static_cast<std::ptrdiff_t>(bytes))) << count;
        const OnDevice out(me.device(), Bytes(size * bytes), 10);
        HMC_ASSERT_OK(me.all_gather(out.view(), part.view(), soon(), hierarchical));
        ASSERT_TRUE(out.read() == all) << count;
        ASSERT_TRUE(in.guarded() && part.guarded() && out.guarded());
      }
    });
  }
}

TEST(Hierarchical, BroadcastOfEverySizeFromEveryRoot) {
  for (const char* transports : {"", "tcp,staging"}) {
    for (const Devices& devices : mixes) {
      on_devices(
          devices,
          [](const Member& me, const Communicator&) {
            for (const int each : testing::swept({0, 1, 2, 4097, 1 << 20, 2'800'005}, {4097, 1 << 20})) {
              for (int root = 0; root < me.size(); ++root) {
                const auto bytes = static_cast<std::size_t>(each);
                const Bytes sent = input(DataType::u8, bytes, static_cast<std::size_t>(root + each));
                const OnDevice memory(me.device(), me.rank() == root ? sent : Bytes(bytes, std::byte{0x11}), 3);
                // What is chosen is the same from 1 MiB on.
                HMC_ASSERT_OK(me.broadcast(memory.view(), root, soon(), each == 1 << 20 ? "" : hierarchical));
                ASSERT_TRUE(memory.read() == sent && memory.guarded()) << each << " bytes from rank " << root;
              }
            }
          },
          transports);
    }
  }
}

TEST(Hierarchical, ReduceOfEverySizeToEveryRoot) {
  for (const Devices& devices : mixes) {
    on_devices(devices, [](const Member& me, const Communicator& world) {
      const Reduction reduction{DataType::bf16, ReduceOp::avg};
      wait_until_ready(me.device(), reduction.type, static_cast<std::size_t>(me.size()));
      for (const int each : testing::swept({1, 2, 511, 40'001, 524'288, 1'400'003}, {2, 40'001, 524'288})) {
        for (int root = 0; root < me.size(); ++root) {
          const auto count = static_cast<std::size_t>(each);
          const bool in_place = (root + each) % 2 == 0;
          const OnDevice in(me.device(), input(reduction.type, count, static_cast<std::size_t>(me.rank())), 2);
          const OnDevice out(me.device(), Bytes(count * 2, std::byte{0x11}), 6);
          HMC_ASSERT_OK(me.reduce(in_place ? in.view() : out.view(), in.view(), root, reduction, soon(),
                                  each == 524'288 ? "" : hierarchical));
          if (me.rank() == root) {
            ASSERT_TRUE((in_place ? in : out).read() == expected(world, reduction, count)) << each << " to rank " << root;
          } else {
            ASSERT_TRUE(in.read() == input(reduction.type, count, static_cast<std::size_t>(me.rank()))) << each;
          }
          ASSERT_TRUE(in.guarded() && out.guarded());
        }
      }
    });
  }
}

TEST(Hierarchical, PlansOfEveryCallNameTheIslands) {
  on_devices(mixes[0], [](const Member& me, const Communicator&) {
    for (const char* call : {"all_reduce", "reduce_scatter", "reduce", "all_gather", "broadcast"}) {
      const auto plan = me.plan(call, 4 << 20, {.root = 1});
      ASSERT_TRUE(plan.ok()) << plan.status().str();
      EXPECT_TRUE(plan->algorithm.starts_with(hierarchical)) << call << ": " << plan->algorithm;
      EXPECT_NE(plan->reason.find("2 islands"), std::string::npos) << plan->reason;
      EXPECT_GT(plan->seconds, 0);
      EXPECT_GT(plan->lower_bound, 0);
      EXPECT_GE(plan->seconds, plan->lower_bound) << call;
      ASSERT_TRUE(plan->runner_up.has_value()) << call;
      std::uint64_t across = 0;
      for (const PlannedLink& link : plan->links) across += link.source % 2 != link.target % 2 ? link.bytes : 0;
      EXPECT_EQ(across, std::string_view(call) == "all_reduce" ? 8U << 20 : 4U << 20) << call;
    }
  });
}

TEST(Hierarchical, IsChosenFromOneMebibyteOn) {
  on_devices(mixes[0], [](const Member& me, const Communicator& world) {
    for (const DataType type : {DataType::i32, DataType::f32}) wait_until_ready(me.device(), type, 4);
    const auto small = me.plan("all_reduce", (1 << 20) - 4), large = me.plan("all_reduce", 1 << 20);
    ASSERT_TRUE(small.ok() && large.ok());
    EXPECT_FALSE(small->algorithm.starts_with(hierarchical)) << small->algorithm;
    EXPECT_TRUE(large->algorithm.starts_with(hierarchical)) << large->algorithm;
    EXPECT_NE(large->reason.find("2 islands"), std::string::npos) << large->reason;
    std::uint64_t across = 0;
    for (const PlannedLink& link : large->links) {
      if (link.source % 2 != link.target % 2) across += link.bytes;
    }
    EXPECT_EQ(across, 2U << 20);
    check(me, world, {DataType::i32, ReduceOp::sum}, 1 << 18, false, 0, "");
    check(me, world, {DataType::f32, ReduceOp::sum}, 1 << 18, true, 0, "");
  });
}

TEST(Hierarchical, ExactSumsHaveNoHierarchy) {
  on_devices(mixes[0], [](const Member& me, const Communicator&) {
    const auto exact = me.plan("all_reduce", 1 << 20, {.exact = true});
    ASSERT_TRUE(exact.ok());
    EXPECT_EQ(std::ranges::count(exact->algorithms, hierarchical), 0);
    wait_until_ready(me.device(), DataType::f32, 4);
    const OnDevice memory(me.device(), Bytes(64));
    const Reduction reduction{.type = DataType::f32, .op = ReduceOp::sum, .exact = true};
    const Status status = me.all_reduce(memory.view(), memory.view(), reduction, soon(), hierarchical);
    EXPECT_EQ(status.code(), Code::invalid_argument);
    EXPECT_NE(status.message().find("not exact"), std::string::npos) << status.str();
  });
}

TEST(Hierarchical, OneIslandHasNoHierarchy) {
  on_devices({"cuda:0", "cuda:1"}, [](const Member& me, const Communicator&) {
    wait_until_ready(me.device(), DataType::f32, 2);
    const OnDevice memory(me.device(), Bytes(64));
    const Status status = me.all_reduce(memory.view(), memory.view(), {DataType::f32, ReduceOp::sum}, soon(), hierarchical);
    EXPECT_EQ(status.code(), Code::invalid_argument);
    EXPECT_NE(status.message().find("several islands"), std::string::npos) << status.str();
  });
}

TEST(Hierarchical, RanksThatNameAnotherAlgorithmAreTold) {
  on_devices(
      mixes[0],
      [](const Member& me, const Communicator&) {
        wait_until_ready(me.device(), DataType::f32, 4);
        const OnDevice memory(me.device(), Bytes(4096));
        const Status status = me.all_reduce(memory.view(), memory.view(), {DataType::f32, ReduceOp::sum}, soon(),
                                            me.rank() == 3 ? "reduce-scatter + all-gather" : hierarchical);
        EXPECT_EQ(status.code(), Code::invalid_argument) << status.str();
      },
      "", true);
}

TEST(Hierarchical, RanksThatNameAnotherRootAreTold) {
  on_devices(
      mixes[0],
      [](const Member& me, const Communicator& world) {
        const OnDevice memory(me.device(), Bytes(2 << 20));
        Status status = me.broadcast(memory.view(), me.rank() == 3 ? 1 : 0, soon(), hierarchical);
        // The island of root 0 receives nothing from rank 3. Its ranks may have sent everything before rank 3 comes: then their
        // next call fails.
        if (status.ok() && me.rank() % 2 == 0) status = world.barrier(soon());
        EXPECT_EQ(status.code(), Code::invalid_argument) << status.str();
      },
      "", true);
}

TEST(Hierarchical, ADeadRankOfABroadcastOrReduceIsNamed) {
  for (const bool reduces : {false, true}) {
    testing::run_job(4,
                     [reduces](const testing::Process& process) {
                       testing::simulate_vendors();
                       InitOptions options = process.options();
                       options.devices = {*Device::parse(mixes[0][static_cast<std::size_t>(process.rank)])};
                       const Communicator world = process.init(options);
                       ASSERT_TRUE(world.valid());
                       const Member me = *world.self();
                       wait_until_ready(me.device(), DataType::f32, 4);
                       const OnDevice memory(me.device(), input(DataType::f32, 1 << 20, static_cast<std::size_t>(process.rank)));
                       for (int round = 0;; ++round) {
                         if (process.rank == 2 && round == 3) testing::die();
                         const Reduction reduction{DataType::f32, ReduceOp::max};
                         Status status = reduces ? me.reduce(memory.view(), memory.view(), round % 2, reduction, soon())
                                                 : me.broadcast(memory.view(), round % 2, soon());
                         // A rank that has no more to do with the dead one learns of it in the next call.
                         if (status.ok() && round <= 3) continue;
                         if (status.ok()) status = world.barrier(soon());
                         EXPECT_EQ(status.code(), Code::peer_lost) << status.str();
                         EXPECT_NE(status.message().find("rank 2"), std::string::npos) << status.str();
                         return;
                       }
                     },
                     {.killed = {2}});
  }
}

TEST(Hierarchical, ADeadRankIsNamed) {
  testing::run_job(4,
                   [](const testing::Process& process) {
                     testing::simulate_vendors();
                     InitOptions options = process.options();
                     options.devices = {*Device::parse(mixes[0][static_cast<std::size_t>(process.rank)])};
                     const Communicator world = process.init(options);
                     ASSERT_TRUE(world.valid());
                     const Member me = *world.self();
                     wait_until_ready(me.device(), DataType::f32, 4);
                     const OnDevice memory(me.device(), input(DataType::f32, 1 << 20, static_cast<std::size_t>(process.rank)));
                     for (int round = 0;; ++round) {
                       if (process.rank == 2 && round == 3) testing::die();
                       const Status status = me.all_reduce(memory.view(), memory.view(), {DataType::f32, ReduceOp::max}, soon());
                       if (status.ok() && round < 3) continue;
                       EXPECT_EQ(status.code(), Code::peer_lost) << status.str();
                       EXPECT_NE(status.message().find("rank 2"), std::string::npos) << status.str();
                       return;
                     }
                   },
                   {.killed = {2}});
}

}  // namespace
}  // namespace hmc
