// A child of fork() calls nothing of a vendor, whose runtime does not survive it.
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "device/runtime.h"
#include "testing.h"

namespace hmc {
namespace {

class ForkedDevices : public ::testing::TestWithParam<const DeviceRuntimeFactory*> {};

TEST_P(ForkedDevices, AreRefusedAndEndQuietly) {
  DeviceRuntime& runtime = GetParam()->instance();
  const RuntimeInfo info = runtime.enumerate();
  if (!info.available || info.vendor == "cpu") GTEST_SKIP() << info.reason;
  const Device device = info.devices.at(0).device;
  auto memory = runtime.allocate(device.index(), 4096, {}).value();
  std::optional<StreamMark> mark = StreamMark::of(device, default_stream).value();
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    int failed = 0;
    if (mark->reached().status().code() != Code::closed) failed |= 1;
    if (StreamMark::of(device, default_stream).status().code() != Code::closed) failed |= 2;
    if (classify_pointer(memory->span().data, 1).status().code() != Code::closed) failed |= 4;
    if (!classify_pointer(&failed, 1).ok()) failed |= 4;
    if (runtime.compute().fill(memory->span(), 1).code() != Code::closed) failed |= 8;
    mark.reset();
    memory.reset();
    _exit(failed);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(mark->reached().ok());
  EXPECT_TRUE(runtime.classify(memory->span().data, 1).value());
}

INSTANTIATE_TEST_SUITE_P(Runtimes, ForkedDevices, ::testing::ValuesIn(device_runtimes().begin(), device_runtimes().end()),
                         [](const auto& info) { return std::string(info.param->vendor); });

}  // namespace
}  // namespace hmc
