// Schedules of broadcast, gather, scatter and all_gather, carried out in random order by a simulated network.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "collective/plan_simulator.h"
#include "collective/plan_spread.h"
#include "testing.h"

namespace hmc {
namespace {

using testing::pattern_byte;
using testing::PlanSimulator;
using testing::SimulatedRank;

std::vector<std::byte> made(std::uint64_t bytes, std::uint64_t seed) {
  std::vector<std::byte> result(bytes);
  for (std::uint64_t i = 0; i < bytes; ++i) result[i] = pattern_byte(i, seed);
  return result;
}

// Uneven, one of them empty; `gap` bytes in front of each.
struct Blocks {
  std::vector<std::uint64_t> counts, displacements;
  std::uint64_t total = 0;
  Blocks(std::uint32_t size, std::uint64_t each, std::uint64_t gap) {
    for (std::uint32_t r = 0; r < size; ++r) {
      displacements.push_back(total + gap);
      counts.push_back(r == 1 ? 0 : each + r);
      total = displacements.back() + counts.back();
    }
  }
  [[nodiscard]] BlockLayout layout() const { return {counts, displacements}; }
};

constexpr std::uint32_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 13};

TEST(PlanSpread, BroadcastReachesEveryRank) {
  for (const std::uint32_t size : sizes) {
    for (const std::uint64_t bytes : {0ULL, 1ULL, 100ULL, 5000ULL, testing::slow() ? 9001ULL : 70'001ULL}) {
      for (const std::uint64_t tree : {0ULL, 1ULL << 20}) {
        for (std::uint32_t root = 0; root < size; root += 2) {
          std::vector<SimulatedRank> ranks;
          for (std::uint32_t r = 0; r < size; ++r) {
            SimulatedRank rank;
            rank.out = r == root ? made(bytes, 5) : std::vector<std::byte>(bytes, std::byte{0xAA});
            rank.schedule = plan_broadcast(r, size, root, bytes, {.tree = tree, .chunk = 64});
            ranks.push_back(std::move(rank));
          }
          PlanSimulator network(std::move(ranks), root);
          ASSERT_EQ(network.run(), "") << size << " ranks, " << bytes << " bytes";
          for (std::uint32_t r = 0; r < size; ++r) ASSERT_EQ(network.rank(r).out, made(bytes, 5)) << size << " ranks, rank " << r;
        }
      }
    }
  }
}

TEST(PlanSpread, AllGatherPutsEveryBlockInPlace) {
  for (const std::uint32_t size : sizes) {
    for (const std::uint64_t gap : {0ULL, 3ULL}) {
      for (const SpreadTuning& tuning : {SpreadTuning{}, SpreadTuning{.tree = 0}, SpreadTuning{.tree = 0, .inline_copy = 0}}) {
        const Blocks blocks(size, 50, gap);
        std::vector<SimulatedRank> ranks;
        for (std::uint32_t r = 0; r < size; ++r) {
          SimulatedRank rank;
          rank.in = made(blocks.counts[r], r);
          rank.out.assign(blocks.total, std::byte{0xAA});
          rank.schedule = plan_all_gather_blocks(r, size, blocks.layout(), tuning);
          ranks.push_back(std::move(rank));
        }
        PlanSimulator network(std::move(ranks), size);
        ASSERT_EQ(network.run(), "") << size << " ranks";
        for (std::uint32_t r = 0; r < size; ++r) {
          for (std::uint32_t from = 0; from < size; ++from) {
            for (std::uint64_t i = 0; i < blocks.counts[from]; ++i)
              ASSERT_EQ(network.rank(r).out[blocks.displacements[from] + i], pattern_byte(i, from)) << size << " ranks, rank " << r;
          }
        }
      }
    }
  }
}

TEST(PlanSpread, GatherAndScatterMoveEveryBlock) {
  for (const std::uint32_t size : sizes) {
    for (const std::uint64_t copied : {0ULL, 1ULL << 20}) {
      const std::uint32_t root = size / 2;
      const Blocks blocks(size, 20, 2);
      std::vector<SimulatedRank> gathering, scattering;
      for (std::uint32_t r = 0; r < size; ++r) {
        SimulatedRank one, other;
        one.in = made(blocks.counts[r], r);
        if (r == root) one.out.assign(blocks.total, std::byte{0xAA});
        one.schedule = plan_gather(r, size, root, blocks.layout(), {.inline_copy = copied});
        gathering.push_back(std::move(one));
        if (r == root) other.in = made(blocks.total, 77);
        other.out.assign(blocks.counts[r], std::byte{0xAA});
        other.schedule = plan_scatter(r, size, root, blocks.layout(), {.inline_copy = copied});
        scattering.push_back(std::move(other));
      }
      PlanSimulator gathered(std::move(gathering), 1), scattered(std::move(scattering), 2);
      ASSERT_EQ(gathered.run(), "") << size;
      ASSERT_EQ(scattered.run(), "") << size;
      for (std::uint32_t r = 0; r < size; ++r) {
        for (std::uint64_t i = 0; i < blocks.counts[r]; ++i) {
          ASSERT_EQ(gathered.rank(root).out[blocks.displacements[r] + i], pattern_byte(i, r)) << size;
          ASSERT_EQ(scattered.rank(r).out[i], pattern_byte(blocks.displacements[r] + i, 77)) << size;
        }
      }
    }
  }
}

}  // namespace
}  // namespace hmc
