// The block kernel's source, compiled for the host: threads of one group are threads here, groups take their turns.
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace {

struct Index {
  unsigned x = 0;
};
thread_local Index threadIdx;
Index blockIdx, blockDim, gridDim;
std::barrier<>* group = nullptr;
void __syncthreads() { group->arrive_and_wait(); }  // NOLINT
struct uint4 {
  std::uint32_t x, y, z, w;
};

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(threads)
#include "device/kernels/copy_blocks.cu"
#pragma GCC diagnostic pop

struct Case {
  std::size_t count;
  std::size_t bytes;
  unsigned width;
  unsigned groups;
  unsigned threads;
};

class BlockKernel : public ::testing::TestWithParam<Case> {};

TEST_P(BlockKernel, CopiesEveryBlockAndNothingElse) {
  const Case& given = GetParam();
  const std::size_t room = (given.bytes + given.width) * given.count + 64;
  std::vector<unsigned char> source(room), target(room, 0xA5);
  std::mt19937_64 random(given.count * 31 + given.bytes);
  for (auto& byte : source) byte = static_cast<unsigned char>(random());
  // Scattered on both sides, each order another, gaps between the blocks.
  std::vector<unsigned long long> to(given.count), from(given.count);
  for (std::size_t i = 0; i < given.count; ++i) to[i] = from[i] = 16 + i * (given.bytes + given.width);
  std::shuffle(to.begin(), to.end(), random);
  std::shuffle(from.begin(), from.end(), random);
  std::vector<unsigned char> expected = target;
  for (std::size_t i = 0; i < given.count; ++i) std::memcpy(expected.data() + to[i], source.data() + from[i], given.bytes);

  blockDim.x = given.threads;
  gridDim.x = given.groups;
  std::barrier<> barrier(given.threads);
  group = &barrier;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < given.threads; ++t) {
    threads.emplace_back([&, t] {
      threadIdx.x = t;
      for (unsigned g = 0; g < given.groups; ++g) {
        if (t == 0) blockIdx.x = g;
        barrier.arrive_and_wait();
        hmc_copy_blocks(reinterpret_cast<char*>(target.data()), reinterpret_cast<const char*>(source.data()), to.data(),
                        from.data(), given.count, given.bytes, given.width);
        barrier.arrive_and_wait();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(target == expected);
}

INSTANTIATE_TEST_SUITE_P(Shapes, BlockKernel,
                         ::testing::Values(Case{1, 1, 1, 1, 4}, Case{1, 16, 16, 3, 4}, Case{7, 16, 16, 2, 4},  // one word each
                                           Case{5, 48, 16, 1, 4},                                              // not a power of two
                                           Case{3, 4096, 16, 2, 4}, Case{2, 20'000, 16, 5, 8},                 // longer than a tile
                                           Case{100, 64, 16, 3, 4}, Case{33, 4100, 4, 2, 8},  // tiles end in blocks
                                           Case{64, 24, 8, 2, 4}, Case{41, 17, 1, 4, 8}, Case{300, 1, 1, 2, 8},  // narrow
                                           Case{17, 256, 16, 1, 2}, Case{5, 2048, 1, 3, 16}, Case{12, 1024, 16, 64, 4}));

}  // namespace
