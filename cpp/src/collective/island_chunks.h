// How arrays are divided among islands, and cut into chunks, for the hierarchical plans. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "collective/border_split.h"
#include "collective/island.h"
#include "collective/parts.h"
#include "collective/plan.h"

namespace hmc {

// A part of the array, which goes through one delegate of each island. The delegate of `owner` reduces it for all islands; where
// there is none, each delegate does for its own.
struct IslandPiece {
  Part part;
  std::vector<std::uint32_t> delegates;  // by island
  std::optional<std::size_t> owner;      // island
};

// The pieces of an array, in its order, in proportion to the bandwidths of the delegates; among more than two islands each is owned
// by one of them. No piece is empty.
std::vector<IslandPiece> island_pieces(std::span<const Island> islands, std::uint64_t bytes, std::size_t element);
// The same, all owned by one island.
std::vector<IslandPiece> owned_pieces(std::span<const Island> islands, std::size_t owner, std::uint64_t bytes, std::size_t element);
// Block r is that of rank r, and goes through a rank of each other island. No piece is empty.
std::vector<IslandPiece> block_pieces(std::span<const Island> islands, const BlockLayout& blocks);
// The most of them that go through one rank.
std::uint64_t most_pieces(std::span<const IslandPiece> pieces);

// A part of a piece that is moved and reduced at once.
struct IslandChunk {
  Part part;
  const IslandPiece* piece;
  std::vector<std::uint32_t> rounds;  // by island: how many chunks its delegate has before this one, less than result_rounds
};

// First chunks of all pieces, then second ones, and so on: all delegates are busy from the start. Every piece has about as many
// chunks, so that links of different rates are alike in how long they wait for the first one and how often they may pause; but none
// is so small that its fixed cost shows, but for the first three of many. `pieces`: at most result_rounds - 1 go through one rank;
// they outlive the chunks.
std::vector<IslandChunk> chunks_of(std::span<const IslandPiece> pieces, std::span<const Island> islands, const ChunkLimits& limits,
                                   std::size_t element);

}  // namespace hmc
