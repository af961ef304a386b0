// Which kernels are loaded when.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "device/kernel_api.h"

namespace hmc::kernel {
namespace {

// A table's look at one kernel, which each load gives the next number.
struct Looks {
  TypedKernels table;
  int loads = 0;
  std::size_t of(int device, DataType type, bool tried) {
    return table
        .find(device, type,
              [&](Loaded& kernel) {
                kernel.tried = tried;
                kernel.processors = static_cast<std::size_t>(++loads);
              })
        .processors;
  }
};

TEST(KernelTable, WhatHasBeenTriedIsNotLoadedAgain) {
  Looks looks;
  EXPECT_FALSE(looks.table.found(1, DataType::f32));
  EXPECT_EQ(looks.of(1, DataType::f32, true), 1U);
  EXPECT_TRUE(looks.table.found(1, DataType::f32));
  EXPECT_EQ(looks.of(1, DataType::f32, true), 1U);
  EXPECT_EQ(looks.of(1, DataType::f32, false), 1U);
}

// It is being compiled, or the device had no memory for it.
TEST(KernelTable, WhatHasNotBeenTriedIsLoadedAtTheNextLook) {
  Looks looks;
  EXPECT_EQ(looks.of(0, DataType::u8, false), 1U);
  EXPECT_FALSE(looks.table.found(0, DataType::u8));
  EXPECT_EQ(looks.of(0, DataType::u8, false), 2U);
  EXPECT_EQ(looks.of(0, DataType::u8, true), 3U);
  EXPECT_TRUE(looks.table.found(0, DataType::u8));
  EXPECT_EQ(looks.of(0, DataType::u8, true), 3U);
}

TEST(KernelTable, EachDeviceAndTypeHasItsOwn) {
  Looks looks;
  std::size_t next = 0;
  for (const int device : {3, 0, 1, 70'000}) {
    for (std::size_t type = 0; type < data_types; ++type) EXPECT_EQ(looks.of(device, static_cast<DataType>(type), true), ++next);
  }
  next = 0;
  for (const int device : {3, 0, 1, 70'000}) {
    for (std::size_t type = 0; type < data_types; ++type) EXPECT_EQ(looks.of(device, static_cast<DataType>(type), true), ++next);
  }
}

TEST(KernelTable, ThreadsThatLookAtOnceLoadEachKernelOnce) {
  constexpr int devices = 20;
  TypedKernels table;
  std::vector<std::atomic<int>> loads(devices);
  std::atomic<int> waiting{0};
  const auto look = [&] {
    waiting.fetch_add(1);
    while (waiting.load() < 4) std::this_thread::yield();
    for (int device = 0; device < devices; ++device) {
      const Loaded kernel = table.find(device, DataType::bf16, [&](Loaded& loaded) {
        if (loaded.tried) return;
        loaded.tried = true;
        loads[static_cast<std::size_t>(device)].fetch_add(1);
        loaded.processors = static_cast<std::size_t>(device) + 1;
      });
      EXPECT_TRUE(kernel.tried);
      EXPECT_EQ(kernel.processors, static_cast<std::size_t>(device) + 1);
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) threads.emplace_back(look);
  }
  for (const std::atomic<int>& each : loads) EXPECT_EQ(each.load(), 1);
}

}  // namespace
}  // namespace hmc::kernel
