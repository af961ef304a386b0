// Reductions by one kernel over mapped device memory, on simulated devices.
#include <dlfcn.h>

#include "collective/mapped/calls.h"
#include "collective/on_devices.h"

namespace hmc {
namespace {

using testing::Bytes;
using testing::check_all_reduce;
using testing::Devices;
using testing::expected;
using testing::input;
using testing::on_devices;
using testing::OnDevice;
using testing::soon;
using testing::wait_until_ready;

const Reduction sum_of_f32{DataType::f32, ReduceOp::sum};
const Reduction sum_of_i32{DataType::i32, ReduceOp::sum};

std::uint64_t mapped_calls(const Communicator& world) { return world.context().counters()["mapped.count"]; }

void on_four_devices(const Devices& devices, const std::function<void(const Member&, const Communicator&)>& body,
                     bool breaks = false) {
  setenv("HMC_SIM_DEVICES", "4", 1);
  on_devices(devices, body, "", breaks);
}

// A call that takes part of its input to each rank, each element once.
TEST(MappedCalls, PartsCoverTheInputOnce) {
  for (const std::uint32_t ranks : {2U, 3U, 8U}) {
    for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{2}, std::uint64_t{1} << 20, (std::uint64_t{16} << 20) + 6}) {
      std::uint64_t reduced = 0, end = 0;
      for (std::uint32_t r = 0; r < ranks; ++r) {
        const auto plan = fused::plan_all_reduce(r, ranks, bytes, 2);
        const ExchangeCall call = mapped::reduction(r, ranks, *plan);
        EXPECT_EQ(call.reduced.own.offset, call.reduced.kept_at);
        EXPECT_EQ(call.gives[r].bytes, call.reduced.own.bytes);
        EXPECT_TRUE(call.reduced.keeps);
        EXPECT_LE(call.shape.chunk, exchange_segment(ranks).slot);
        if (call.reduced.collectors == 0) {
          EXPECT_EQ(call.reduced.own.bytes, bytes);
          continue;
        }
        EXPECT_EQ(call.reduced.own.offset, end);
        EXPECT_EQ(call.reduced.own.offset % 16, 0U);
        EXPECT_GE(call.shape.steps * call.shape.blocks * call.shape.chunk, call.reduced.own.bytes);
        end += call.reduced.own.bytes;
        reduced += call.reduced.own.bytes;
      }
      EXPECT_TRUE(reduced == bytes || bytes <= mapped::most_whole_bytes(ranks)) << bytes;
    }
  }
}

TEST(MappedCalls, EveryPathOfAllReduce) {
  const Devices two{"cuda:0", "cuda:1"}, three{"rocm:2", "rocm:0", "rocm:3"};
  for (const Devices& devices : testing::swept({two, three}, {three})) {
    on_four_devices(devices, [](const Member& me, const Communicator& world) {
      for (const DataType type : {DataType::f32, DataType::bf16, DataType::u8})
        wait_until_ready(me.device(), type, static_cast<std::size_t>(me.size()));
      testing::wait_until_mapped(me.device(), {DataType::f32, DataType::bf16, DataType::u8});
      HMC_ASSERT_OK(world.barrier(soon()));
      const std::uint64_t before = mapped_calls(world);
      std::uint64_t calls = 0;
      // Through cells, whole inputs through slots, parts in one step, parts in several.
      for (const int each :
           testing::swept({0, 1, 3, 5'000, 16'385, 33'000, 200'001, 700'003, 3'000'001}, {1, 5'000, 33'000, 700'003})) {
        const auto count = static_cast<std::size_t>(each);
        check_all_reduce(me, sum_of_f32, count, each % 2 == 0, 0);
        check_all_reduce(me, {DataType::bf16, ReduceOp::avg}, count, true, 2);
        check_all_reduce(me, {DataType::u8, ReduceOp::max}, count, false, 1);
        calls += 3;
      }
      check_all_reduce(me, {DataType::u8, ReduceOp::sum}, testing::slow() ? 8'000'003 : 26'000'003, true, 0);
      ++calls;
      EXPECT_EQ(mapped_calls(world), before + calls);
    });
  }
}

TEST(MappedCalls, ScatterAndRoots) {
  on_four_devices({"cuda:0", "cuda:2", "cuda:1"}, [](const Member& me, const Communicator& world) {
    const auto rank = static_cast<std::size_t>(me.rank());
    std::uint64_t calls = 0;
    for (const std::size_t block : testing::swept<std::size_t>({0, 1, 1000, 200'000, 900'001}, {0, 1000, 200'000})) {
      const OnDevice in(me.device(), input(DataType::i32, 3 * block, rank));
      const OnDevice out(me.device(), Bytes(block * 4));
      HMC_ASSERT_OK(me.reduce_scatter(out.view(), in.view(), sum_of_i32, soon()));
      const Bytes all = expected(sum_of_i32, 3 * block, 3);
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * block * 4);
      ASSERT_TRUE(out.read() == Bytes(begin, begin + static_cast<std::ptrdiff_t>(block * 4))) << block;
      ASSERT_TRUE(in.guarded() && out.guarded());
      ++calls;
    }
    for (const std::size_t count : testing::swept<std::size_t>({1, 150'001, 2'000'003}, {150'001})) {
      for (int root = 0; root < 3; ++root, ++calls) {
        const OnDevice in(me.device(), input(DataType::i32, count, rank));
        const OnDevice out(me.device(), Bytes(count * 4, std::byte{0x11}));
        HMC_ASSERT_OK(me.reduce(out.view(), in.view(), root, sum_of_i32, soon()));
        ASSERT_TRUE(out.read() == (me.rank() == root ? expected(sum_of_i32, count, 3) : Bytes(count * 4, std::byte{0x11}))) << root;
        ASSERT_TRUE(in.read() == input(DataType::i32, count, rank)) << root;
      }
    }
    EXPECT_EQ(mapped_calls(world), calls);
  });
}

// Blocks of different sizes, one of them empty, in the order of their displacements.
TEST(MappedCalls, UnevenBlocksInPlace) {
  on_four_devices({"cuda:0", "cuda:2", "cuda:1"}, [](const Member& me, const Communicator&) {
    const std::vector<std::uint64_t> counts{4 * 70'001, 0, 4 * 13}, displacements{4 * 13, 0, 0};
    const auto rank = static_cast<std::size_t>(me.rank());
    const std::size_t count = 70'014;
    const OnDevice in(me.device(), input(DataType::i32, count, rank));
    MemoryView out = in.view();
    out.data = static_cast<std::byte*>(out.data) + displacements[rank];
    out.bytes = counts[rank];
    HMC_ASSERT_OK(me.reduce_scatter_v(out, in.view(), {counts, displacements}, sum_of_i32, soon()));
    const Bytes all = expected(sum_of_i32, count, 3), found = in.read();
    const auto at = static_cast<std::ptrdiff_t>(displacements[rank]), end = at + static_cast<std::ptrdiff_t>(counts[rank]);
    ASSERT_TRUE(std::equal(found.begin() + at, found.begin() + end, all.begin() + at));
    ASSERT_TRUE(in.guarded());
  });
}

TEST(MappedCalls, OneRankWithCpuMemoryMakesAllUseMessages) {
  on_devices({"cuda:0", "cuda:1"}, [](const Member& me, const Communicator& world) {
    for (const std::size_t count : {std::size_t{10}, std::size_t{300'000}}) {
      Bytes mine = input(DataType::f32, count, static_cast<std::size_t>(me.rank()));
      const OnDevice in(me.device(), mine), out(me.device(), Bytes(mine.size()));
      Bytes host(mine.size());
      if (me.rank() == 0) {
        HMC_ASSERT_OK(me.all_reduce(testing::view(host), testing::view(mine), sum_of_f32, soon()));
      } else {
        HMC_ASSERT_OK(me.all_reduce(out.view(), in.view(), sum_of_f32, soon()));
        host = out.read();
      }
      ASSERT_TRUE(host == expected(sum_of_f32, count, 2)) << count;
      EXPECT_EQ(mapped_calls(world), count == 10 ? 0U : 1U);
      check_all_reduce(me, sum_of_f32, count, false, 0);
    }
  });
}

TEST(MappedCalls, WithoutPeerAccessAllUseMessages) {
  setenv("HMC_SIM_PEERS", "0", 1);
  on_devices({"cuda:0", "cuda:1"}, [](const Member& me, const Communicator& world) {
    for (const std::size_t count : {std::size_t{10}, std::size_t{300'000}, std::size_t{5}})
      check_all_reduce(me, sum_of_f32, count, true, 0);
    EXPECT_EQ(mapped_calls(world), 0U);
  });
  unsetenv("HMC_SIM_PEERS");
}

// Two groups of the same devices, whose ranks call them in opposite orders.
TEST(MappedCalls, TwoGroupsAtATime) {
  on_devices({"cuda:0", "cuda:1"}, [](const Member& me, const Communicator& world) {
    // No kernel is loaded while that of the other group runs: a call that finds it running for long goes by messages.
    testing::wait_until_mapped(me.device(), {DataType::f32, DataType::i32});
    const std::vector<int> colors{0}, keys{me.rank()};
    const auto second = world.split(colors, keys, soon());
    ASSERT_TRUE(second.ok()) << second.status().str();
    const auto rank = static_cast<std::size_t>(me.rank());
    for (const std::size_t count : {std::size_t{100}, std::size_t{900'000}}) {
      const OnDevice a(me.device(), input(DataType::f32, count, rank)), b(me.device(), input(DataType::i32, count, rank));
      const Member other = *second->self();
      std::vector<Work> works;
      const auto one = [&] { works.push_back(*me.iall_reduce(a.view(), a.view(), sum_of_f32)); };
      const auto two = [&] { works.push_back(*other.iall_reduce(b.view(), b.view(), sum_of_i32)); };
      me.rank() == 0 ? one() : two();
      me.rank() == 0 ? two() : one();
      HMC_ASSERT_OK(wait_all(works, soon()));
      ASSERT_TRUE(a.read() == expected(sum_of_f32, count, 2));
      ASSERT_TRUE(b.read() == expected(sum_of_i32, count, 2));
    }
    EXPECT_EQ(mapped_calls(world), 4U);
  });
}

// ---- failures ----

TEST(MappedCalls, AnotherCallIsNamedOnBothSides) {
  on_devices(
      {"cuda:0", "cuda:1"},
      [](const Member& me, const Communicator&) {
        check_all_reduce(me, sum_of_f32, 1000, false, 0);
        const OnDevice memory(me.device(), Bytes(400'000));
        const ReduceOp op = me.rank() == 0 ? ReduceOp::sum : ReduceOp::max;
        const Status status = me.all_reduce(memory.view(), memory.view(), {DataType::f32, op}, soon());
        EXPECT_EQ(status.code(), Code::invalid_argument) << status.str();
        EXPECT_NE(status.message().find("max"), std::string_view::npos) << status.str();
        EXPECT_NE(status.message().find("sum"), std::string_view::npos) << status.str();
      },
      "", true);
}

// The post of rank 0 finds the call of rank 1 announced, so it ends before it returns.
TEST(MappedCalls, APostThatFindsAnotherCallEndsIt) {
  on_devices({"cuda:0", "cuda:1"}, [](const Member& me, const Communicator& world) {
    testing::wait_until_mapped(me.device(), {DataType::f32});
    const std::vector<int> colors{0}, keys{me.rank()};
    const OnDevice memory(me.device(), Bytes(4000));
    const Reduction reduction{DataType::f32, me.rank() == 0 ? ReduceOp::sum : ReduceOp::max};
    for (int i = 0; i < 5; ++i) {
      const auto group = world.split(colors, keys, soon());
      ASSERT_TRUE(group.ok()) << group.status().str();
      const Member member = *group->self();
      check_all_reduce(member, sum_of_f32, 1000, false, 0);
      Result<Work> work = Status(Code::would_block, "");
      if (me.rank() == 1) work = member.iall_reduce(memory.view(), memory.view(), reduction);
      HMC_ASSERT_OK(world.barrier(soon()));
      if (me.rank() == 0) work = member.iall_reduce(memory.view(), memory.view(), reduction);
      const Status status = work.ok() ? work->wait(soon()) : work.status();
      EXPECT_EQ(status.code(), Code::invalid_argument) << status.str();
      EXPECT_NE(status.message().find("max"), std::string_view::npos) << status.str();
      EXPECT_NE(status.message().find("sum"), std::string_view::npos) << status.str();
    }
  });
}

void* hip_call(const char* name) {
  void* const found = dlsym(dlopen(HMC_SIM_ROCM, RTLD_NOW | RTLD_NOLOAD), name);
  EXPECT_NE(found, nullptr) << name;
  return found;
}

// A stream of a simulated HIP's device that is busy until `released` is set.
StreamHandle held_stream(const Device& device, std::atomic<long>& released) {
  void* stream = nullptr;
  EXPECT_EQ(reinterpret_cast<int (*)(int)>(hip_call("hipSetDevice"))(device.index()), 0);
  EXPECT_EQ(reinterpret_cast<int (*)(void**, unsigned)>(hip_call("hipStreamCreateWithFlags"))(&stream, 1), 0);
  const auto hold = [](void* word) {
    while (static_cast<std::atomic<long>*>(word)->load() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  EXPECT_EQ(reinterpret_cast<int (*)(void*, void (*)(void*), void*)>(hip_call("hipLaunchHostFunc"))(stream, hold, &released), 0);
  return reinterpret_cast<StreamHandle>(stream);
}

// The kernel of rank 1 does not start before rank 0 has returned from `body`, so that of rank 0 waits for it.
void while_a_kernel_waits(const std::function<void(const Member&, const Communicator&, const MemoryView&)>& body, int killed = -1) {
  testing::JobOptions options;
  if (killed >= 0) options.killed = {killed};
  testing::run_job(
      2,
      [&](const testing::Process& process) {
        testing::simulate_vendors();
        InitOptions init = process.options();
        init.devices = {*Device::parse(process.rank == 0 ? "rocm:0" : "rocm:1")};
        const Communicator world = process.init(init);
        ASSERT_TRUE(world.valid());
        const Member me = *world.self();
        wait_until_ready(me.device(), DataType::f32, 2);
        testing::wait_until_mapped(me.device(), {DataType::f32});
        HMC_ASSERT_OK(world.barrier(soon()));
        check_all_reduce(me, sum_of_f32, 1000, false, 0);
        EXPECT_EQ(mapped_calls(world), 1U);
        process.board[20].fetch_add(1);
        EXPECT_TRUE(process.board.wait(20, 2));  // the other rank may still be in that call
        const OnDevice memory(me.device(), Bytes(4'000'000));
        MemoryView view = memory.view();
        std::atomic<long>& returned = process.board[21];
        if (process.rank == 1) view.stream = held_stream(me.device(), returned);
        body(me, world, view);
        if (process.rank == 0) returned.store(1);
        if (killed >= 0) return;
        process.board[0].fetch_add(1);
        EXPECT_TRUE(process.board.wait(0, 2));
      },
      options);
}

TEST(MappedCalls, AKilledRankIsNamed) {
  while_a_kernel_waits(
      [](const Member& me, const Communicator&, const MemoryView& memory) {
        if (me.rank() == 1) {
          std::thread([] {
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
            testing::die();
          }).detach();
        }
        const auto start = std::chrono::steady_clock::now();
        const Status status = me.all_reduce(memory, memory, sum_of_f32, soon());
        EXPECT_EQ(status.code(), Code::peer_lost) << status.str();
        EXPECT_NE(status.message().find("rank 1"), std::string_view::npos) << status.str();
        EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
      },
      1);
}

TEST(MappedCalls, TheDeadlineEndsTheKernel) {
  while_a_kernel_waits([](const Member& me, const Communicator&, const MemoryView& memory) {
    const Deadline deadline = me.rank() == 0 ? Deadline::after(std::chrono::milliseconds(100)) : soon();
    const Status status = me.all_reduce(memory, memory, sum_of_f32, deadline);
    EXPECT_FALSE(status.ok());
    if (me.rank() == 0) {
      EXPECT_EQ(status.code(), Code::timeout) << status.str();
    }
    EXPECT_NE(status.message().find(me.rank() == 0 ? "rank 1" : "rank 0"), std::string_view::npos) << status.str();
  });
}

// Where nothing says when the kernel is over, it does not go on behind the error.
TEST(MappedCalls, AFailureBehindTheLaunchEndsTheKernel) {
  while_a_kernel_waits([](const Member& me, const Communicator&, const MemoryView& memory) {
    // The kernel of rank 0 runs, and that of rank 1 never starts.
    const char* const fails = me.rank() == 0 ? "hipEventRecord" : "hipModuleLaunchKernel";
    ASSERT_EQ(reinterpret_cast<int (*)(const char*, int, int)>(hip_call("hmcsim_fail"))(fails, 1, 719), 0);
    const Status status = me.all_reduce(memory, memory, sum_of_f32, soon());
    EXPECT_EQ(status.code(), Code::device) << status.str();
    EXPECT_NE(status.message().find("719"), std::string_view::npos) << status.str();
    EXPECT_EQ(reinterpret_cast<int (*)(int)>(hip_call("hipSetDevice"))(me.device().index()), 0);
    EXPECT_EQ(reinterpret_cast<int (*)()>(hip_call("hipDeviceSynchronize"))(), 0);  // the limit of the job, if it goes on
  });
}

TEST(MappedCalls, CancelAndAbortEndTheKernel) {
  for (const bool aborts : {false, true}) {
    while_a_kernel_waits([&](const Member& me, const Communicator& world, const MemoryView& memory) {
      const Result<Work> work = me.iall_reduce(memory, memory, sum_of_f32);  // refused at one that comes too late
      if (me.rank() == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        if (aborts) {
          HMC_EXPECT_OK(world.abort("enough"));
        } else {
          static_cast<void>(work->cancel());
        }
      }
      const Status status = work.ok() ? work->wait(soon()) : work.status();
      EXPECT_TRUE(status.code() == Code::cancelled) << status.str();
      if (aborts) {
        EXPECT_NE(status.message().find("enough"), std::string_view::npos) << status.str();
      }
    });
  }
}

}  // namespace
}  // namespace hmc
