// A kernel for which a device has no memory at first is loaded later.
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "device/runtime.h"
#include "testing.h"

namespace hmc {
namespace {

class FullDevices : public ::testing::TestWithParam<const DeviceRuntimeFactory*> {};

TEST_P(FullDevices, LoadTheirKernelsOnceThereIsRoom) {
  DeviceRuntime& runtime = GetParam()->instance();
  const RuntimeInfo info = runtime.enumerate();
  if (!info.available || info.devices.size() < 2) GTEST_SKIP() << info.reason;
  if (info.devices[0].provenance != "simulated") GTEST_SKIP() << "only a simulated device is full on demand";
  const char* const load = info.vendor == "cuda" ? "cuModuleLoadData" : info.vendor == "rocm" ? "hipModuleLoadData" : nullptr;
  if (load == nullptr) GTEST_SKIP() << "loads nothing";
  void* const library = dlopen(info.reason.substr(0, info.reason.find(" (")).c_str(), RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr) << info.reason;
  const auto fail = reinterpret_cast<int (*)(const char*, int, int)>(dlsym(library, "hmcsim_fail"));
  ASSERT_NE(fail, nullptr);
  constexpr int out_of_memory = 2;
  ASSERT_EQ(fail(load, 1, out_of_memory), 0);
  const auto begin = std::chrono::steady_clock::now();
  // Of the second device, for which no other test has loaded it.
  Status status = runtime.compute().prepare_reduction(1, DataType::i16, 2);
  EXPECT_EQ(status.code(), Code::unsupported) << status.str();
  while (!status.ok() && std::chrono::steady_clock::now() - begin < std::chrono::seconds(20)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    status = runtime.compute().prepare_reduction(1, DataType::i16, 2);
  }
  HMC_EXPECT_OK(status);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(900)) << "it is not tried at every call";
}

class CopyEnd final : public Completion {
 public:
  void complete(Status status) noexcept override {
    outcome_ = std::move(status);
    done_.store(true);
  }
  Status wait(DeviceRuntime& runtime) {
    while (!done_.load()) {
      if (!runtime.poll()) std::this_thread::yield();
    }
    return outcome_;
  }

 private:
  Status outcome_;
  std::atomic<bool> done_{false};
};

// Blocks between two devices go by a kernel once peer access was had.
TEST_P(FullDevices, ReachEachOtherOnceThereIsRoom) {
  DeviceRuntime& runtime = GetParam()->instance();
  const RuntimeInfo info = runtime.enumerate();
  if (!info.available || info.devices.size() < 2) GTEST_SKIP() << info.reason;
  if (info.devices[0].provenance != "simulated") GTEST_SKIP() << "only a simulated device is full on demand";
  const char* const enable = info.vendor == "cuda"   ? "cuCtxEnablePeerAccess"
                             : info.vendor == "rocm" ? "hipDeviceEnablePeerAccess"
                                                     : nullptr;
  if (enable == nullptr) GTEST_SKIP() << "enables nothing, or runs no kernel that could be counted";
  void* const library = dlopen(info.reason.substr(0, info.reason.find(" (")).c_str(), RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr) << info.reason;
  const auto fail = reinterpret_cast<int (*)(const char*, int, int)>(dlsym(library, "hmcsim_fail"));
  const auto launches = reinterpret_cast<std::uint64_t (*)()>(dlsym(library, "hmcsim_launches"));
  ASSERT_TRUE(fail != nullptr && launches != nullptr);
  const auto here = runtime.allocate(1, 4096, {}), near = runtime.allocate(1, 4096, {}), far = runtime.allocate(0, 4096, {});
  ASSERT_TRUE(here.ok() && near.ok() && far.ok());
  const std::vector<std::uint64_t> offsets{0, 1024, 3072};
  // Whether a kernel copied the blocks.
  const auto copy_to = [&](const DeviceSpan& target) {
    const std::uint64_t before = launches();
    CopyEnd end;
    CopyOp op{.target = target, .source = (*here)->span()};
    op.target_offsets = op.source_offsets = offsets.data();
    op.blocks = offsets.size();
    op.block_bytes = 512;
    HMC_EXPECT_OK(runtime.copy(op, &end));
    HMC_EXPECT_OK(end.wait(runtime));
    return launches() != before;
  };
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto in_time = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return std::chrono::steady_clock::now() < until;
  };
  while (!copy_to((*near)->span())) ASSERT_TRUE(in_time()) << "no kernel was launched";
  constexpr int out_of_memory = 2;
  ASSERT_EQ(fail(enable, 1, out_of_memory), 0);
  ASSERT_FALSE(copy_to((*far)->span())) << "another test has enabled it";
  while (!copy_to((*far)->span())) ASSERT_TRUE(in_time()) << "peer access stays refused";
}

INSTANTIATE_TEST_SUITE_P(Runtimes, FullDevices, ::testing::ValuesIn(device_runtimes().begin(), device_runtimes().end()),
                         [](const auto& info) { return std::string(info.param->vendor); });

}  // namespace
}  // namespace hmc
