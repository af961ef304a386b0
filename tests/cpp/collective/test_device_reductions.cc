// all_reduce, reduce_scatter and reduce of device memory, on simulated devices: every type and operation, the same bits as the
// CPU's reduction in rank order, and reduced by the device that can.
#include <dlfcn.h>

#include <algorithm>
#include <cstring>

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
using testing::view;
using testing::wait_until_ready;

std::uint64_t launches(const char* library) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return 0;
  const auto count = reinterpret_cast<std::uint64_t (*)()>(dlsym(handle, "hmcsim_launches"));
  return count == nullptr ? 0 : count();
}

const std::vector<Devices> mixes{{"cuda:0", "cuda:1"}, {"rocm:1", "rocm:0"}, {"cuda:0", "rocm:1", "mlu:0"}, {"cuda:1", "cpu"}};

TEST(DeviceReductions, EveryTypeAndOperation) {
  for (const Devices& devices : mixes) {
    on_devices(devices, [](const Member& me, const Communicator&) {
      for (std::size_t type = 0; type < data_types; type += testing::slow() ? 4 : 1) {
        wait_until_ready(me.device(), static_cast<DataType>(type), static_cast<std::size_t>(me.size()));
        for (std::size_t op = 0; op < reduce_ops; ++op) {
          const Reduction reduction{static_cast<DataType>(type), static_cast<ReduceOp>(op), 0.5};
          if (check_reduction(reduction).ok()) check_all_reduce(me, reduction, 257, op % 2 == 0, 16);
        }
      }
    });
  }
}

TEST(DeviceReductions, EverySizeInPlaceAndNot) {
  for (const char* transports : {"", "tcp,staging"}) {
    for (const Devices& devices : mixes) {
      on_devices(
          devices,
          [](const Member& me, const Communicator&) {
            for (const int each : testing::swept({0, 1, 2, 7, 1023, 4097, 40'000, 300'001}, {0, 7, 40'000})) {
              const auto count = static_cast<std::size_t>(each);
              check_all_reduce(me, {DataType::f32, ReduceOp::sum}, count, false, 4);
              check_all_reduce(me, {DataType::bf16, ReduceOp::avg}, count, true, 3);
            }
          },
          transports);
    }
  }
}

TEST(DeviceReductions, TheDeviceReduces) {
  for (const Devices& devices : {Devices{"cuda:0", "cuda:1"}, Devices{"rocm:0", "cuda:0"}}) {
    on_devices(devices, [](const Member& me, const Communicator& world) {
      const bool cuda = me.device().vendor() == "cuda";
      wait_until_ready(me.device(), DataType::f32, 2);
      HMC_ASSERT_OK(world.barrier(soon()));
      const std::uint64_t before = launches(cuda ? HMC_SIM_CUDA : HMC_SIM_ROCM);
      check_all_reduce(me, {DataType::f32, ReduceOp::sum}, 300'000, false, 0);
      EXPECT_GE(launches(cuda ? HMC_SIM_CUDA : HMC_SIM_ROCM), before + (world.islands()->size() == 1 ? 1 : 2))
          << "reduced by one kernel, or chunk by chunk";
    });
  }
}

TEST(DeviceReductions, PlanSaysWhoReduces) {
  on_devices({"cuda:0", "mlu:0"}, [](const Member& me, const Communicator&) {
    const auto plan = me.plan("all_reduce", 1 << 20);
    ASSERT_TRUE(plan.ok()) << plan.status().str();
    EXPECT_NE(plan->reason.find("CPU reduces"), std::string::npos) << plan->reason;
    EXPECT_EQ(plan->reason.find("1 devices reduce") != std::string::npos, me.rank() == 0) << plan->reason;
  });
}

TEST(DeviceReductions, ScatterAndRoots) {
  on_devices({"cuda:0", "rocm:0", "cuda:1"}, [](const Member& me, const Communicator&) {
    const auto rank = static_cast<std::size_t>(me.rank());
    wait_until_ready(me.device(), DataType::i32, 3);
    const Reduction reduction{DataType::i32, ReduceOp::sum};
    for (const std::size_t block : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{200'000}}) {
      const OnDevice in(me.device(), input(reduction.type, 3 * block, rank));
      const OnDevice out(me.device(), Bytes(block * 4));
      HMC_ASSERT_OK(me.reduce_scatter(out.view(), in.view(), reduction, soon()));
      const Bytes all = expected(reduction, 3 * block, 3);
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * block * 4);
      ASSERT_TRUE(out.read() == Bytes(begin, begin + static_cast<std::ptrdiff_t>(block * 4))) << block;
    }
    for (int root = 0; root < 3; ++root) {
      const std::size_t count = 150'001;
      const OnDevice in(me.device(), input(reduction.type, count, rank));
      const OnDevice out(me.device(), Bytes(count * 4));
      HMC_ASSERT_OK(me.reduce(out.view(), in.view(), root, reduction, soon()));
      if (me.rank() == root) {
        ASSERT_TRUE(out.read() == expected(reduction, count, 3)) << root;
      }
    }
  });
}

TEST(DeviceReductions, ManyAtOnce) {
  on_devices({"cuda:0", "cuda:1"}, [](const Member& me, const Communicator&) {
    const Reduction reduction{DataType::f32, ReduceOp::sum};
    std::vector<OnDevice> in, out;
    std::vector<Work> works;
    constexpr std::size_t calls = 24;
    for (std::size_t i = 0; i < calls; ++i) {
      const std::size_t count = i % 4 == 0 ? 100'000 + i : i;
      in.emplace_back(me.device(), input(reduction.type, count, static_cast<std::size_t>(me.rank())));
      out.emplace_back(me.device(), Bytes(count * 4));
    }
    for (std::size_t i = 0; i < calls; ++i) works.push_back(*me.iall_reduce(out[i].view(), in[i].view(), reduction));
    for (std::size_t i = 0; i < calls; ++i) {
      HMC_ASSERT_OK(works[i].wait(soon()));
      ASSERT_TRUE(out[i].read() == expected(reduction, out[i].view().bytes / 4, 2)) << i;
    }
  });
}

// A device that fails ends the collective with its error on every rank.
TEST(DeviceReductions, AFailedLaunchEndsTheCollective) {
  on_devices(
      {"cuda:0", "cuda:1"},
      [](const Member& me, const Communicator& world) {
        check_all_reduce(me, {DataType::f32, ReduceOp::sum}, 1000, false, 0);
        HMC_ASSERT_OK(world.barrier(soon()));
        if (me.rank() == 0) {
          void* handle = dlopen(HMC_SIM_CUDA, RTLD_NOW | RTLD_NOLOAD);
          ASSERT_NE(handle, nullptr);
          const auto fail = reinterpret_cast<int (*)(const char*, int, int)>(dlsym(handle, "hmcsim_fail"));
          ASSERT_NE(fail, nullptr);
          ASSERT_EQ(fail("cuLaunchKernel", 1, 719), 0);
        }
        // Each rank waits for what the other reduces.
        const std::size_t count = 300'000;
        const OnDevice in(me.device(), input(DataType::f32, count, 0)), out(me.device(), Bytes(count * 4));
        const Status status = me.all_reduce(out.view(), in.view(), {DataType::f32, ReduceOp::sum}, soon());
        EXPECT_EQ(status.code(), Code::device) << status.str();
        EXPECT_NE(status.message().find("719"), std::string::npos) << status.str();
      },
      "", true);
}

// What a stream of the caller still writes is reduced, also where nothing of it is sent: the device's kernel comes after it.
TEST(DeviceReductions, FollowTheCallersStream) {
  for (const Devices& devices : {Devices{"rocm:0"}, Devices{"rocm:0", "rocm:1"}}) {
    on_devices(devices, [](const Member& me, const Communicator&) {
      const auto ranks = static_cast<std::size_t>(me.size());
      wait_until_ready(me.device(), DataType::f32, ranks);
      const auto call = [](const char* name) {
        void* const found = dlsym(dlopen(HMC_SIM_ROCM, RTLD_NOW | RTLD_NOLOAD), name);
        EXPECT_NE(found, nullptr) << name;
        return found;
      };
      void* stream = nullptr;
      ASSERT_EQ(reinterpret_cast<int (*)(int)>(call("hipSetDevice"))(me.device().index()), 0);
      ASSERT_EQ(reinterpret_cast<int (*)(void**, unsigned)>(call("hipStreamCreateWithFlags"))(&stream, 1), 0);
      for (const int each : {1000, 300'000}) {
        const auto count = static_cast<std::size_t>(each);
        const Bytes mine = input(DataType::f32, count, static_cast<std::size_t>(me.rank()));
        const OnDevice in(me.device(), Bytes(count * 4, std::byte{0x11})), out(me.device(), Bytes(count * 4));
        const auto pause = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(100)); };
        ASSERT_EQ(reinterpret_cast<int (*)(void*, void (*)(void*), void*)>(call("hipLaunchHostFunc"))(stream, pause, nullptr), 0);
        ASSERT_EQ(reinterpret_cast<int (*)(void*, const void*, std::size_t, int, void*)>(call("hipMemcpyAsync"))(
                      in.view().data, mine.data(), mine.size(), 1, stream),
                  0);
        MemoryView source = in.view();
        source.stream = reinterpret_cast<StreamHandle>(stream);
        HMC_ASSERT_OK(me.all_reduce(out.view(), source, {DataType::f32, ReduceOp::sum}, soon()));
        ASSERT_TRUE(out.read() == expected({DataType::f32, ReduceOp::sum}, count, ranks)) << count;
      }
    });
  }
}

}  // namespace
}  // namespace hmc
