// Hierarchical all_reduce, reduce_scatter and all_gather: within islands, and between them. Pure.
//
// all_reduce: each island divides the array among its ranks, in proportion to their bandwidth to other islands. Such a rank is the
// delegate of its part: it reduces the part of all ranks of its island, exchanges the result with the other islands' delegates, and
// passes the whole result on. So each byte crosses a border once in each direction, where a flat all_reduce of islands of k ranks
// sends it k times.
//
// An element is reduced in rank order within each island, then in the order of the islands: alike on every rank and in every run,
// but rounded once per island, so its bits may differ from those of the other algorithms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collective/island.h"
#include "collective/parts.h"
#include "collective/plan.h"
#include "collective/plan_reduce.h"
#include "collective/schedule_builder.h"

namespace hmc {

// Whether a hierarchy saves bytes between islands: there are several, one of which has several ranks. Not where more pieces than a
// Schedule has rounds would go through one rank, as with very many islands, or islands of very different size.
[[nodiscard]] bool has_hierarchy(std::span<const Island> islands);

// A part of the array, which goes through one delegate of each island. The delegate of `owner` reduces it for all islands.
struct IslandPiece {
  Part part;
  std::vector<std::uint32_t> delegates;  // by island
  std::size_t owner = 0;                 // island
};
// The pieces of an array, in its order. No piece is empty.
std::vector<IslandPiece> island_pieces(std::span<const Island> islands, std::uint64_t bytes, std::size_t element);

// ---- has_hierarchy(islands); there is at least one byte ----
// `bytes` of Area::in of every rank to Area::out of every rank, which may be the same memory.
Schedule plan_hierarchical_all_reduce(std::uint32_t rank, std::span<const Island> islands, std::uint64_t bytes, std::size_t element,
                                      const ReduceTuning& tuning);
// As plan_reduce_scatter(), which has its sums: a block's rank is its delegate, and other islands send it their sums.
Schedule plan_hierarchical_reduce_scatter(std::uint32_t rank, std::span<const Island> islands, const BlockLayout& blocks,
                                          std::size_t element, const ReduceTuning& tuning);
// The steps of plan_all_gather_blocks() but for the rank's own block: one rank of each other island passes a block on.
void gather_hierarchically(ScheduleBuilder& plan, std::uint32_t rank, std::span<const Island> islands, const BlockLayout& blocks,
                           std::uint64_t chunk);

}  // namespace hmc
