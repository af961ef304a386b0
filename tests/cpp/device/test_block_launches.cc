// How many multiprocessors copy scattered blocks.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "device/block_kernel.h"

namespace hmc {
namespace {

constexpr std::size_t kib = 1024;
int processors = 0;
std::vector<unsigned> launched;  // groups of each launch

kernel::Api fake_api() {
  static std::vector<std::vector<std::uint64_t>> pinned;
  kernel::Api api;
  api.load_module = [](kernel::Module* module, const void*) { return *module = nullptr, 0; };
  api.get_function = [](kernel::Function* function, kernel::Module, const char*) { return *function = nullptr, 0; };
  api.launch = [](kernel::Function, unsigned groups, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, VendorStream,
                  void**, void**) { return launched.push_back(groups), 0; };
  api.attribute = [](int* value, int, int) { return *value = processors, 0; };
  api.allocate_host = [](void** data, std::size_t bytes, unsigned) {
    *data = pinned.emplace_back(bytes / sizeof(std::uint64_t)).data();
    return 0;
  };
  api.event_create = [](VendorEvent* event, unsigned) { return *event = nullptr, 0; };
  api.event_record = [](VendorEvent, VendorStream) { return 0; };
  api.event_query = [](VendorEvent) { return 0; };
  return api;
}

// The groups of a copy of 1000 blocks of so many bytes, on a device of so many multiprocessors.
unsigned groups_of(int of, BlockWay way, std::size_t bytes = 64 * kib) {
  processors = of;
  launched.clear();
  const kernel::Api api = fake_api();
  BlockKernel kernel(api,
                     {.unsupported = -1, .out_of_memory = -2, .multiprocessor_count = 0, .clear = [](int code) { return code; }},
                     [](int) { return kernel::Image{.data = "image"}; });
  std::vector<std::uint64_t> offsets(1000);
  for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = i * bytes;
  std::size_t issued = 0;
  EXPECT_EQ(kernel.copy(0, {nullptr, nullptr, offsets.data(), offsets.data(), offsets.size(), bytes, way}, nullptr, issued), 0);
  EXPECT_EQ(issued, offsets.size());
  return launched.size() == 1 ? launched[0] : 0;
}

class BlockLaunches : public testing::Test {
 protected:
  void SetUp() override { unsetenv("HMC_BLOCK_PROCESSORS"); }
  void TearDown() override { unsetenv("HMC_BLOCK_PROCESSORS"); }
};

TEST_F(BlockLaunches, WithinADeviceAllCopy) { EXPECT_EQ(groups_of(132, BlockWay::on_device), 132U); }

TEST_F(BlockLaunches, BetweenDevicesSomeAreLeftToOthers) {
  EXPECT_EQ(groups_of(132, BlockWay::between_devices), 32U);
  EXPECT_EQ(groups_of(20, BlockWay::between_devices), 20U);
}

TEST_F(BlockLaunches, ShortBlocksBetweenDevicesTakeAll) {
  EXPECT_EQ(groups_of(132, BlockWay::between_devices, 64 * kib - 16), 132U);
}

TEST_F(BlockLaunches, OverPcieFewSuffice) { EXPECT_EQ(groups_of(132, BlockWay::over_bus), 16U); }

TEST_F(BlockLaunches, SmallCopiesTakeNoMoreThanTheyHaveTiles) {
  EXPECT_EQ(groups_of(132, BlockWay::on_device, 64), 1U);
  EXPECT_EQ(groups_of(132, BlockWay::between_devices, 64), 1U);
}

TEST_F(BlockLaunches, TheEnvironmentSaysHowMany) {
  setenv("HMC_BLOCK_PROCESSORS", "50", 1);
  EXPECT_EQ(groups_of(132, BlockWay::on_device), 50U);
  EXPECT_EQ(groups_of(132, BlockWay::between_devices), 50U);
  EXPECT_EQ(groups_of(132, BlockWay::over_bus), 16U);
  setenv("HMC_BLOCK_PROCESSORS", "8", 1);
  EXPECT_EQ(groups_of(132, BlockWay::over_bus), 8U);
}

}  // namespace
}  // namespace hmc
