// A kernel for which a device has no memory at first is loaded later.
#include <dlfcn.h>

#include <chrono>
#include <thread>

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

INSTANTIATE_TEST_SUITE_P(Runtimes, FullDevices, ::testing::ValuesIn(device_runtimes().begin(), device_runtimes().end()),
                         [](const auto& info) { return std::string(info.param->vendor); });

}  // namespace
}  // namespace hmc
