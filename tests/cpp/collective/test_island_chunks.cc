// How arrays are divided among islands and cut into chunks.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "collective/island_chunks.h"
#include "collective/plan_reduce.h"

namespace hmc {
namespace {

TEST(IslandChunks, DelegatesHavePartsInProportionToTheirBandwidth) {
  const std::vector<Island> islands{{{0, 1, 2}, {1, 2, 4}}, {{3, 4, 5}, {4, 1, 2}}};
  std::map<std::uint32_t, std::uint64_t> bytes;
  std::map<std::uint32_t, std::set<std::uint32_t>> partners;
  for (const IslandPiece& piece : island_pieces(islands, 7 << 20, 4)) {
    for (const std::uint32_t delegate : piece.delegates) bytes[delegate] += piece.part.bytes;
    partners[piece.delegates[0]].insert(piece.delegates[1]);
  }
  for (const Island& island : islands) {
    for (std::size_t i = 0; i < island.ranks.size(); ++i)
      EXPECT_NEAR(static_cast<double>(bytes[island.ranks[i]]), island.bandwidths[i] * (1 << 20), 8);
  }
  // Fast links face fast ones.
  EXPECT_EQ(partners[2], std::set<std::uint32_t>{3});
  EXPECT_EQ(partners[1], std::set<std::uint32_t>{5});
  EXPECT_EQ(partners[0], std::set<std::uint32_t>{4});
}

TEST(IslandChunks, SlowLinksHaveAsManyChunksAsFastOnes) {
  const std::vector<Island> islands{{{0, 1, 2}, {3e6, 6e6, 12e6}}, {{3, 4, 5}, {3e6, 6e6, 12e6}}};
  for (const std::uint64_t bytes : {24ULL << 20, 1ULL << 30}) {
    const auto pieces = island_pieces(islands, bytes, 4);
    std::map<std::uint32_t, std::uint64_t> counts;
    for (const IslandChunk& chunk : chunks_of(pieces, islands, {256 << 10, 32 << 10}, 4)) ++counts[chunk.piece->delegates[0]];
    EXPECT_EQ(counts.size(), 3U);
    for (const auto& [delegate, count] : counts) EXPECT_NEAR(static_cast<double>(count), 115, 8) << delegate;
  }
}

// Of any size of array and element: without gaps, and told apart by rounds that are less than result_rounds.
TEST(IslandChunks, AreTheWholePiece) {
  for (const double bandwidth : {1.0, 1e9, assumed_border}) {
    const std::vector<Island> islands{
        {{0, 4, 5}, {bandwidth, bandwidth, 3 * bandwidth}}, {{1, 2}, {bandwidth, bandwidth}}, {{3}, {1}}};
    for (const std::uint64_t element : {1U, 2U, 8U}) {
      for (const std::uint64_t elements : {1ULL, 5ULL, 4099ULL, 1'000'003ULL, 1ULL << 27}) {
        const auto pieces = island_pieces(islands, elements * element, element);
        std::map<std::uint64_t, std::uint64_t> ends;  // of chunks, by their begins
        std::set<std::pair<std::uint32_t, std::uint32_t>> rounds;
        for (const IslandChunk& chunk : chunks_of(pieces, islands, {256 << 10, 32 << 10}, element)) {
          ASSERT_GT(chunk.part.bytes, 0U);
          ASSERT_EQ(chunk.part.offset % element, 0U);
          ASSERT_TRUE(ends.emplace(chunk.part.offset, chunk.part.offset + chunk.part.bytes).second);
          for (std::size_t i = 0; i < islands.size(); ++i) {
            ASSERT_LT(chunk.rounds[i], result_rounds);
            ASSERT_TRUE(rounds.emplace(chunk.piece->delegates[i], chunk.rounds[i]).second);
          }
        }
        std::uint64_t at = 0;
        for (const auto& [begin, end] : ends) {
          ASSERT_EQ(begin, at);
          at = end;
        }
        ASSERT_EQ(at, elements * element);
      }
    }
  }
}

TEST(IslandChunks, ChunksOverFastAndUnknownLinksAreLarge) {
  const ChunkLimits limits{256 << 10, 32 << 10};
  EXPECT_EQ(limits.least_over(assumed_border), limits.fast);
  EXPECT_EQ(limits.least_over(1), limits.slow);
  EXPECT_EQ(limits.least_over(2e9), 80'000U);
  const std::vector<Island> islands{{{0, 1}, {assumed_border, assumed_border}}, {{2, 3}, {assumed_border, assumed_border}}};
  const auto pieces = island_pieces(islands, 4 << 20, 4);
  for (const IslandChunk& chunk : chunks_of(pieces, islands, limits, 4)) EXPECT_EQ(chunk.part.bytes, 256U << 10);
}

}  // namespace
}  // namespace hmc
