// Hierarchical all_reduce, reduce_scatter, reduce, all_gather and broadcast: within islands, and between them. Pure.
//
// all_reduce: each island divides the array among its ranks, in proportion to their bandwidth to other islands. Such a rank is the
// delegate of its part: it reduces the part of all ranks of its island, exchanges the result with the other islands' delegates, and
// passes the whole result on. So each byte crosses a border once in each direction, where a flat all_reduce of islands of k ranks
// sends it k times.
//
// The delegates of two islands send each other their sums, and both reduce them: no message across the border waits for another
// one. Among more islands that would send more bytes, so one delegate reduces all sums of a part and returns the result.
//
// An element is reduced in rank order within each island, then in the order of the islands: alike on every rank and in every run,
// but rounded once per island, so its bits may differ from those of the other algorithms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "collective/border_split.h"
#include "collective/island.h"
#include "collective/plan.h"
#include "collective/plan_reduce.h"
#include "collective/schedule_builder.h"

namespace hmc {

// Whether a hierarchy saves bytes between islands: there are several, one of which has several ranks. Not where more pieces than a
// Schedule has rounds would go through one rank, as with very many islands, or islands of very different size.
[[nodiscard]] bool has_hierarchy(std::span<const Island> islands);

// ---- has_hierarchy(islands); there is at least one byte ----
// `bytes` of Area::in of every rank to Area::out of every rank, which may be the same memory.
Schedule plan_hierarchical_all_reduce(std::uint32_t rank, std::span<const Island> islands, std::uint64_t bytes, std::size_t element,
                                      const ReduceTuning& tuning);
// As plan_reduce_scatter(), which has its sums: a block's rank is its delegate, and other islands send it their sums.
Schedule plan_hierarchical_reduce_scatter(std::uint32_t rank, std::span<const Island> islands, const BlockLayout& blocks,
                                          std::size_t element, const ReduceTuning& tuning);
// `bytes` of Area::in of every rank to Area::out of `root`, which may be the same memory. Each island sends its sums to the root's.
Schedule plan_hierarchical_reduce(std::uint32_t rank, std::uint32_t root, std::span<const Island> islands, std::uint64_t bytes,
                                  std::size_t element, const ReduceTuning& tuning);
// `bytes` of Area::out of `root` to Area::out of every rank. Each byte enters every other island once; among more than two, these
// share the work of passing it on.
Schedule plan_hierarchical_broadcast(std::uint32_t rank, std::uint32_t root, std::span<const Island> islands, std::uint64_t bytes,
                                     const ChunkLimits& limits);
// The steps of plan_all_gather_blocks() but for the rank's own block: one rank of each other island passes a block on.
void gather_hierarchically(ScheduleBuilder& plan, std::uint32_t rank, std::span<const Island> islands, const BlockLayout& blocks,
                           const ChunkLimits& limits);

}  // namespace hmc
