// Schedules of the collectives that reduce. Pure.
//
// Every element is reduced in one step, by one rank, from all ranks' inputs in rank order. So the result has the same bits on every
// rank, in every run, for every size and algorithm but the hierarchical one (plan_hierarchical.h).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collective/island.h"
#include "collective/plan.h"

namespace hmc {

// Rounds of results are above those of inputs and of partial results.
inline constexpr std::uint32_t result_rounds = 128;

struct ReduceTuning {
  // Inputs up to this size, times the number of ranks that read it, are sent whole to each rank that reduces.
  std::uint64_t whole = 128 << 10;
  std::uint64_t chunk = 256 << 10;        // larger ones go in chunks, so that ranks reduce while they receive
  std::uint64_t border_chunk = 32 << 10;  // least one over slow links between islands; tcp sends it without asking
  std::uint32_t window = 4;               // chunks of one rank in flight
  // The buffers are device memory, which the CPU reduces in scratch memory of the host.
  bool staged = false;
  // Calls of at least this size, of all blocks together, are hierarchical where the group has islands.
  std::uint64_t hierarchical = 1 << 20;
  std::shared_ptr<const std::vector<Island>> islands = nullptr;  // null, or has_hierarchy()
};

// Whether inputs are sent whole, in one round: every rank must answer alike.
constexpr bool all_reduce_whole(std::uint32_t size, std::uint64_t bytes, const ReduceTuning& tuning) noexcept {
  return size == 1 || bytes <= tuning.whole / size;
}
inline bool reduces_hierarchically(std::uint64_t bytes, const ReduceTuning& tuning) noexcept {
  return tuning.islands && bytes > 0 && bytes >= tuning.hierarchical;
}
constexpr bool reduce_whole(std::uint32_t size, std::uint64_t bytes, const ReduceTuning& tuning) noexcept {
  return size == 1 || bytes <= tuning.whole;
}

// `element`: bytes of one; sizes are multiples of it.
// all_reduce: `bytes` of Area::in of every rank to Area::out of every rank, which may be the same memory.
Schedule plan_all_reduce(std::uint32_t rank, std::uint32_t size, std::uint64_t bytes, std::size_t element,
                         const ReduceTuning& tuning = {});
// reduce_scatter: block r of Area::in of every rank, `blocks` in bytes, to Area::out of rank r, which may be its block of Area::in.
Schedule plan_reduce_scatter(std::uint32_t rank, std::uint32_t size, const BlockLayout& blocks, std::size_t element,
                             const ReduceTuning& tuning = {});
// reduce: `bytes` of Area::in of every rank to Area::out of `root`, which may be the same memory.
Schedule plan_reduce(std::uint32_t rank, std::uint32_t size, std::uint32_t root, std::uint64_t bytes, std::size_t element,
                     const ReduceTuning& tuning = {});

}  // namespace hmc
