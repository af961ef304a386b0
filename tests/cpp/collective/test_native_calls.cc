// Collectives by the vendor's library, on simulated devices with a simulated library.
#include "collective/native/calls.h"
#include "collective/with_library.h"
#include "native/library.h"

namespace hmc {
namespace {

using testing::Bytes;
using testing::Devices;
using testing::expected;
using testing::input;
using testing::library_calls;
using testing::OnDevice;
using testing::soon;
using testing::sum_of_f32;
using testing::vendors_library;
using testing::with_library;

class NativeCalls : public testing::WithLibrary {};

const std::array several{Devices{"cuda:1", "cuda:0"}, Devices{"rocm:2", "rocm:0", "rocm:3"}, Devices{"mlu:3", "mlu:0"}};

std::vector<Reduction> library_reductions(std::string_view vendor) {
  const native::Api& api = native::library_of(vendor)->api();
  std::vector<Reduction> all;
  for (std::size_t type = 0; type < data_types; ++type) {
    for (std::size_t op = 0; op < reduce_ops; ++op) {
      const Reduction each{static_cast<DataType>(type), static_cast<ReduceOp>(op)};
      if (check_reduction(each).ok() && api.reduces(each.type, each.op)) all.push_back(each);
    }
  }
  return all;
}

Bytes part(const Bytes& all, std::size_t at, std::size_t bytes) {
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(at);
  return {begin, begin + static_cast<std::ptrdiff_t>(bytes)};
}

void check_reductions(const Member& me, const Reduction& reduction, std::size_t count) {
  SCOPED_TRACE(std::string(name_of(reduction.op)) + " of " + std::to_string(count) + " " + std::string(name_of(reduction.type)));
  const auto rank = static_cast<std::size_t>(me.rank()), ranks = static_cast<std::size_t>(me.size());
  const std::size_t element = size_of(reduction.type), offset = element * (1 + count % 3);
  const Bytes untouched(count * element, std::byte{0x11});
  {
    const OnDevice in(me.device(), input(reduction.type, count, rank), offset), out(me.device(), untouched, offset);
    HMC_ASSERT_OK(me.all_reduce(out.view(), in.view(), reduction, soon(), vendors_library));
    ASSERT_TRUE(out.read() == expected(reduction, count, ranks));
    ASSERT_TRUE(in.read() == input(reduction.type, count, rank) && in.guarded() && out.guarded());
    HMC_ASSERT_OK(me.all_reduce(in.view(), in.view(), reduction, soon(), vendors_library));
    ASSERT_TRUE(in.read() == expected(reduction, count, ranks) && in.guarded());
  }
  for (int root = 0; root < me.size(); ++root) {
    const OnDevice in(me.device(), input(reduction.type, count, rank), offset), out(me.device(), untouched, offset);
    HMC_ASSERT_OK(me.reduce(out.view(), in.view(), root, reduction, soon(), vendors_library));
    ASSERT_TRUE(out.read() == (me.rank() == root ? expected(reduction, count, ranks) : untouched)) << root;
    ASSERT_TRUE(in.read() == input(reduction.type, count, rank) && in.guarded() && out.guarded());
  }
  {
    const OnDevice in(me.device(), input(reduction.type, count * ranks, rank), offset), out(me.device(), untouched, offset);
    const Bytes mine = part(expected(reduction, count * ranks, ranks), rank * count * element, count * element);
    HMC_ASSERT_OK(me.reduce_scatter(out.view(), in.view(), reduction, soon(), vendors_library));
    ASSERT_TRUE(out.read() == mine && in.guarded() && out.guarded());
    MemoryView block = in.view();
    block.data = static_cast<std::byte*>(block.data) + rank * count * element;
    block.bytes = count * element;
    HMC_ASSERT_OK(me.reduce_scatter(block, in.view(), reduction, soon(), vendors_library));
    ASSERT_TRUE(part(in.read(), rank * count * element, count * element) == mine && in.guarded());
  }
}

void check_spreads(const Member& me, std::size_t bytes) {
  SCOPED_TRACE(std::to_string(bytes) + " bytes");
  const auto rank = static_cast<std::size_t>(me.rank()), ranks = static_cast<std::size_t>(me.size());
  Bytes all;
  for (std::size_t r = 0; r < ranks; ++r) {
    const Bytes each = input(DataType::u8, bytes, r);
    all.insert(all.end(), each.begin(), each.end());
  }
  const OnDevice in(me.device(), input(DataType::u8, bytes, rank), 1), out(me.device(), Bytes(bytes * ranks, std::byte{0x11}), 3);
  HMC_ASSERT_OK(me.all_gather(out.view(), in.view(), soon(), vendors_library));
  ASSERT_TRUE(out.read() == all && out.guarded());
  Bytes only_mine(bytes * ranks, std::byte{0x11});
  std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(rank * bytes), bytes,
              only_mine.begin() + static_cast<std::ptrdiff_t>(rank * bytes));
  const OnDevice both(me.device(), only_mine, 5);
  MemoryView block = both.view();
  block.data = static_cast<std::byte*>(block.data) + rank * bytes;
  block.bytes = bytes;
  HMC_ASSERT_OK(me.all_gather(both.view(), block, soon(), vendors_library));
  ASSERT_TRUE(both.read() == all && both.guarded());
  for (int root = 0; root < me.size(); ++root) {
    const OnDevice view(me.device(), input(DataType::u8, bytes, rank), 7);
    HMC_ASSERT_OK(me.broadcast(view.view(), root, soon(), vendors_library));
    ASSERT_TRUE(view.read() == input(DataType::u8, bytes, static_cast<std::size_t>(root)) && view.guarded()) << root;
  }
}

TEST(NativeVersions, AreThoseOfTheirReleases) {
  EXPECT_EQ(native::version_text(22703), "2.27.3");
  EXPECT_EQ(native::version_text(21000), "2.10.0");
  EXPECT_EQ(native::version_text(20908), "2.9.8");
  EXPECT_EQ(native::version_text(2804), "2.8.4");
  EXPECT_EQ(native::version_text(12500), "1.25.0");
}

TEST_P(NativeCalls, EveryTypeAndOperation) {
  ASSERT_EQ(library_reductions("cuda").size(), 36U);
  ASSERT_EQ(library_reductions("mlu").size(), 38U);
  for (const Devices& devices : several) {
    with_library(devices, [](const Member& me, const Communicator& world) {
      std::uint64_t calls = 0;
      for (const Reduction& reduction : library_reductions(me.device().vendor())) {
        testing::wait_until_ready(me.device(), reduction.type, static_cast<std::size_t>(me.size()));
        for (const std::size_t count : testing::swept<std::size_t>({1, 1003}, {1003})) {
          check_reductions(me, reduction, count);
          calls += 4 + static_cast<std::uint64_t>(me.size());
        }
      }
      EXPECT_EQ(library_calls(world), calls);
    });
  }
}

TEST_P(NativeCalls, EverySize) {
  for (const Devices& devices : several) {
    with_library(devices, [](const Member& me, const Communicator& world) {
      std::uint64_t calls = 0;
      for (const std::size_t count : testing::swept<std::size_t>({0, 1, 4095, 70'001, 1'000'003}, {0, 70'001})) {
        check_reductions(me, sum_of_f32, count);
        check_spreads(me, count);
        calls += 6 + 2 * static_cast<std::uint64_t>(me.size());
      }
      EXPECT_EQ(library_calls(world), calls);
    });
  }
}

// No vendor's library has run these calls on hardware yet.
TEST_P(NativeCalls, NoneGoesByItUnnamed) {
  with_library({"cuda:0", "cuda:1"}, [](const Member& me, const Communicator& world) {
    testing::check_all_reduce(me, sum_of_f32, 100'000, true, 0);
    const OnDevice in(me.device(), Bytes(3001)), out(me.device(), Bytes(6002));
    HMC_ASSERT_OK(me.all_gather(out.view(), in.view(), soon()));
    HMC_ASSERT_OK(me.broadcast(in.view(), 1, soon()));
    EXPECT_EQ(library_calls(world), 0U);
    const MemoryView nothing{out.view().data, 0, me.device()};
    HMC_ASSERT_OK(me.all_gather(nothing, {in.view().data, 0, me.device()}, soon(), vendors_library));
    EXPECT_EQ(library_calls(world), 1U);

    for (const char* call : {"all_reduce", "reduce_scatter", "reduce", "all_gather", "broadcast"}) {
      EXPECT_NE(world.plan(call, 512 << 20)->algorithm, vendors_library) << call;
      const CollectivePlan plan = *world.plan(call, 2000, {.algorithm = vendors_library});
      EXPECT_EQ(plan.algorithm, vendors_library);
      EXPECT_NE(plan.reason.find("NCCL 2.27.3 (simulated) spans all ranks"), std::string::npos) << plan.reason;
    }
    for (const char* other : {"all_to_all", "gather", "scatter"})
      EXPECT_FALSE(world.plan(other, 2000, {.algorithm = vendors_library}).ok()) << other;
    for (const auto& options : {PlanOptions{.type = DataType::i16, .algorithm = vendors_library},
                                PlanOptions{.algorithm = vendors_library, .exact = true}})
      EXPECT_FALSE(world.plan("all_reduce", 512 << 20, options).ok());
  });
}

TEST_P(NativeCalls, OthersDoNotGoByIt) {
  with_library({"cuda:0", "cuda:1"}, [](const Member& me, const Communicator& world) {
    const auto rank = static_cast<std::size_t>(me.rank());
    const OnDevice in(me.device(), input(DataType::f32, 100, rank)), out(me.device(), Bytes(400));
    // min and max of floating types would lose NaNs, exact sums are rounded once.
    for (const Reduction& reduction :
         {Reduction{DataType::f32, ReduceOp::min}, Reduction{DataType::i32, ReduceOp::avg}, Reduction{DataType::i16, ReduceOp::sum},
          Reduction{DataType::f32, ReduceOp::premul_sum, 3}}) {
      const Status status = me.all_reduce(out.view(), in.view(), reduction, soon(), vendors_library);
      EXPECT_EQ(status.code(), Code::unsupported) << status.str();
    }
    const std::vector<std::uint64_t> counts{300, 100}, displacements{0, 300};
    const OnDevice mine(me.device(), input(DataType::u8, counts[rank], rank));
    const Status uneven = me.all_gather_v(out.view(), {counts, displacements}, mine.view(), soon(), vendors_library);
    EXPECT_EQ(uneven.code(), Code::unsupported) << uneven.str();
    HMC_ASSERT_OK(me.all_gather_v(out.view(), {counts, displacements}, mine.view(), soon()));
    Bytes all = input(DataType::u8, 300, 0);
    const Bytes second = input(DataType::u8, 100, 1);
    all.insert(all.end(), second.begin(), second.end());
    EXPECT_TRUE(out.read() == all);
    EXPECT_EQ(library_calls(world), 0U);
  });
}

// ---- in flight together ----

// A root may be done with a call before the others have begun it.
TEST_P(NativeCalls, ManyOfSeveralKinds) {
  with_library({"cuda:2", "cuda:0", "cuda:1"}, [](const Member& me, const Communicator& world) {
    constexpr std::size_t rounds = 40, bytes = 4004;
    const auto rank = static_cast<std::size_t>(me.rank());
    for (const bool at_once : {false, true}) {
      std::vector<OnDevice> spread, summed;
      std::vector<Work> works;
      for (std::size_t i = 0; i < rounds; ++i) {
        spread.emplace_back(me.device(), input(DataType::u8, bytes * (1 + i % 3), rank + 10 * i));
        summed.emplace_back(me.device(), input(DataType::f32, 1000, rank));
      }
      for (std::size_t i = 0; i < rounds; ++i) {
        works.push_back(*me.ibroadcast(spread[i].view(), static_cast<int>(i % 3), vendors_library));
        if (!at_once) HMC_ASSERT_OK(works.back().wait(soon()));
        if (i % 4 != 0) continue;
        works.push_back(*me.iall_reduce(summed[i].view(), summed[i].view(), sum_of_f32));
        if (!at_once) HMC_ASSERT_OK(works.back().wait(soon()));
      }
      HMC_ASSERT_OK(wait_all(works, soon()));
      for (std::size_t i = 0; i < rounds; ++i) {
        ASSERT_TRUE(spread[i].read() == input(DataType::u8, bytes * (1 + i % 3), i % 3 + 10 * i)) << i;
        ASSERT_TRUE(i % 4 != 0 || summed[i].read() == expected(sum_of_f32, 1000, 3)) << i;
      }
    }
    EXPECT_GE(library_calls(world), 2 * rounds);
  });
}

// Two groups of the same devices, whose ranks call them in opposite orders.
TEST_P(NativeCalls, TwoGroupsAtATime) {
  with_library({"cuda:0", "cuda:1"}, [](const Member& me, const Communicator& world) {
    const std::vector<int> colors{0}, keys{1 - me.rank()};
    const auto second = world.split(colors, keys, soon());
    ASSERT_TRUE(second.ok()) << second.status().str();
    const Member other = *second->self();
    ASSERT_EQ(other.rank(), 1 - me.rank());
    for (const std::size_t count : {std::size_t{100}, std::size_t{900'000}}) {
      const OnDevice a(me.device(), input(DataType::f32, count, static_cast<std::size_t>(me.rank())));
      const OnDevice b(me.device(), input(DataType::f32, count, static_cast<std::size_t>(other.rank())));
      std::vector<Work> works;
      const auto one = [&] { works.push_back(*me.iall_reduce(a.view(), a.view(), sum_of_f32, vendors_library)); };
      const auto two = [&] { works.push_back(*other.iall_reduce(b.view(), b.view(), sum_of_f32, vendors_library)); };
      me.rank() == 0 ? one() : two();
      me.rank() == 0 ? two() : one();
      HMC_ASSERT_OK(wait_all(works, soon()));
      ASSERT_TRUE(a.read() == expected(sum_of_f32, count, 2));
      ASSERT_TRUE(b.read() == expected(sum_of_f32, count, 2));
    }
    EXPECT_EQ(library_calls(world), 4U);
    HMC_EXPECT_OK(second->close(soon()));
  });
}

// The library's work comes after what is queued on the caller's stream.
TEST_P(NativeCalls, ComesAfterTheCallersStream) {
  with_library({"rocm:0", "rocm:1"}, [](const Member& me, const Communicator& world) {
    testing::wait_until_mapped(me.device(), {DataType::f32});
    HMC_ASSERT_OK(world.barrier(soon()));
    void* const library = dlopen(HMC_SIM_ROCM, RTLD_NOW | RTLD_NOLOAD);
    const auto call = [&](const char* name) {
      void* const found = dlsym(library, name);
      EXPECT_NE(found, nullptr) << name;
      return found;
    };
    const Bytes mine = input(DataType::f32, 50'000, static_cast<std::size_t>(me.rank()));
    const OnDevice memory(me.device(), Bytes(mine.size(), std::byte{0x11}));
    void* stream = nullptr;
    ASSERT_EQ(reinterpret_cast<int (*)(int)>(call("hipSetDevice"))(me.device().index()), 0);
    ASSERT_EQ(reinterpret_cast<int (*)(void**, unsigned)>(call("hipStreamCreateWithFlags"))(&stream, 1), 0);
    static std::atomic<bool> posted{false};
    const auto pause = [](void*) {
      while (!posted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // work that does not wait for the stream is done by then
    };
    ASSERT_EQ(reinterpret_cast<int (*)(void*, void (*)(void*), void*)>(call("hipLaunchHostFunc"))(stream, pause, nullptr), 0);
    const auto copy = reinterpret_cast<int (*)(void*, const void*, std::size_t, int, void*)>(call("hipMemcpyAsync"));
    ASSERT_EQ(copy(memory.view().data, mine.data(), mine.size(), 1, stream), 0);
    MemoryView view = memory.view();
    view.stream = reinterpret_cast<StreamHandle>(stream);
    const Work work = *me.iall_reduce(view, view, sum_of_f32, vendors_library);
    EXPECT_FALSE(work.done());
    posted = true;
    HMC_ASSERT_OK(work.wait(soon()));
    ASSERT_TRUE(memory.read() == expected(sum_of_f32, 50'000, 2));
    EXPECT_EQ(library_calls(world), 1U);
  });
}

// Three Members of two processes: the library connects those of one process as it does others.
TEST_P(NativeCalls, SeveralMembersOfAProcess) {
  const testing::Environment libraries(testing::simulated_libraries());
  testing::run_job(2, [&](const testing::Process& process) {
    testing::simulate_vendors();
    InitOptions options = process.options();
    options.devices = process.rank == 0 ? std::vector<Device>{*Device::parse("cuda:0"), *Device::parse("cuda:2")}
                                        : std::vector<Device>{*Device::parse("cuda:1")};
    const Communicator world = process.init(options);
    ASSERT_TRUE(world.valid());
    ASSERT_EQ(world.size(), 3);
    for (const std::size_t count : {std::size_t{1}, std::size_t{70'001}}) {
      std::vector<OnDevice> memory;
      std::vector<MemberBuffers> calls;
      memory.reserve(2);
      for (const Member& me : world.local()) {
        memory.emplace_back(me.device(), input(DataType::f32, count, static_cast<std::size_t>(me.rank())));
        calls.push_back({me, memory.back().view(), memory.back().view()});
      }
      HMC_ASSERT_OK(world.all_reduce(calls, sum_of_f32, soon(), vendors_library));
      for (const OnDevice& each : memory) ASSERT_TRUE(each.read() == expected(sum_of_f32, count, 3));
    }
    EXPECT_EQ(library_calls(world), 2 * world.local().size());
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

// ---- agreed by messages ----

TEST(NativeMessages, SevenRanksOfTwoProcesses) {
  auto variables = testing::simulated_libraries();
  variables["HMC_SIM_DEVICES"] = "7";
  variables["HMC_FUSED"] = "0";
  const testing::Environment environment(variables);
  testing::run_job(2, [&](const testing::Process& process) {
    testing::simulate_vendors();
    InitOptions options = process.options();
    for (int i = process.rank; i < 7; i += 2) options.devices.push_back(*Device::parse("cuda:" + std::to_string(i)));
    const Communicator world = process.init(options);
    ASSERT_TRUE(world.valid());
    for (std::size_t round = 0; round < 5; ++round) {
      std::vector<OnDevice> memory;
      std::vector<MemberBuffers> calls;
      memory.reserve(world.local().size());
      for (const Member& me : world.local()) {
        memory.emplace_back(me.device(), input(DataType::f32, 1003 + round, static_cast<std::size_t>(me.rank())));
        calls.push_back({me, memory.back().view(), memory.back().view()});
      }
      HMC_ASSERT_OK(world.all_reduce(calls, sum_of_f32, soon(), vendors_library));
      for (const OnDevice& one : memory) ASSERT_TRUE(one.read() == expected(sum_of_f32, 1003 + round, 7));
    }
    EXPECT_EQ(library_calls(world), 5 * world.local().size());
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

// Those of a subgroup() share memory once they have asked for it.
TEST(NativeMessages, OfASubgroup) {
  with_library({"cuda:0", "cuda:1", "cuda:2"}, [](const Member& me, const Communicator& world) {
    if (me.rank() == 1) return;
    const std::vector<int> ranks{2, 0};
    const Communicator two = *world.subgroup(ranks, 7);
    const Member mine = *two.self();
    ASSERT_EQ(mine.rank(), me.rank() == 2 ? 0 : 1);
    testing::check_sum(mine, 1003, vendors_library);
    testing::check_sum(mine, 70'001, vendors_library);
    EXPECT_EQ(library_calls(world), 2U);
    HMC_EXPECT_OK(two.close(soon()));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, NativeCalls, ::testing::Values("1", "0"), testing::how_they_agree);

}  // namespace
}  // namespace hmc
