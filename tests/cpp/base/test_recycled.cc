// Recycled: blocks that one thread frees and another allocated, more than a thread keeps, and after the thread's other variables.
#include "base/recycled.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace hmc {
namespace {

struct alignas(64) Block {
  explicit Block(std::uint64_t v) : value(v) {}
  std::uint64_t value;
  std::uint64_t more[20] = {};
};

std::shared_ptr<Block> make(std::uint64_t value) { return std::allocate_shared<Block>(Recycled<Block>(), value); }

TEST(Recycled, BlocksThatAreInUseAreDistinct) {
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<Block>> all;  // more than are kept
    for (std::uint64_t i = 0; i < 200; ++i) all.push_back(make(i));
    for (std::uint64_t i = 0; i < 200; ++i) {
      EXPECT_EQ(all[i]->value, i);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(all[i].get()) % alignof(Block), 0U);
    }
  }
}

TEST(Recycled, OneThreadMayFreeWhatAnotherAllocated) {
  for (int round = 0; round < 20; ++round) {
    std::vector<std::shared_ptr<Block>> all(100);
    std::thread([&] {
      for (std::uint64_t i = 0; i < 100; ++i) all[i] = make(i);
    }).join();
    for (std::uint64_t i = 0; i < 100; ++i) EXPECT_EQ(all[i]->value, i);
    std::thread([&] { all.clear(); }).join();
  }
}

TEST(Recycled, AnObjectMayOutliveTheListOfItsThread) {
  std::thread([] {
    static thread_local std::shared_ptr<Block> last;  // made before the list, so it ends after it
    last = nullptr;
    last = make(7);
    EXPECT_EQ(last->value, 7U);
  }).join();
}

}  // namespace
}  // namespace hmc
