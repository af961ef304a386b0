// Schedules of broadcast, gather, scatter and the public all_gather. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collective/island.h"
#include "collective/plan.h"

namespace hmc {

struct SpreadTuning {
  // Up to this size broadcast goes along a tree, and so do all blocks of an all_gather together.
  std::uint64_t tree = 64 << 10;
  std::uint64_t chunk = 256 << 10;        // larger broadcasts go in chunks
  std::uint64_t border_chunk = 32 << 10;  // as ReduceTuning has it
  std::uint64_t inline_copy = 1 << 20;    // a rank's own block above this size goes as a message
  bool in_place = false;                  // the own block is where it belongs
  // A broadcast or an all_gather of at least this size, of all blocks together, is hierarchical where the group has islands.
  std::uint64_t hierarchical = 1 << 20;
  std::shared_ptr<const std::vector<Island>> islands = nullptr;  // null, or has_hierarchy()
};

// Whether blocks of `total` bytes together are gathered by doubling, and `bytes` are broadcast along a tree: every rank must
// answer alike.
constexpr bool gathers_by_doubling(std::uint32_t size, std::uint64_t total, const SpreadTuning& tuning) noexcept {
  return size > 2 && total <= tuning.tree;
}
inline bool spreads_hierarchically(std::uint64_t total, const SpreadTuning& tuning) noexcept {
  return tuning.islands && total > 0 && total >= tuning.hierarchical;
}
constexpr bool broadcasts_by_tree(std::uint32_t size, std::uint64_t bytes, const SpreadTuning& tuning) noexcept {
  return size <= 2 || bytes <= tuning.tree;
}

// all_gather: Area::in of rank r to block r, `blocks` in bytes, of Area::out of every rank.
Schedule plan_all_gather_blocks(std::uint32_t rank, std::uint32_t size, const BlockLayout& blocks, const SpreadTuning& tuning = {});
// broadcast: `bytes` of Area::out of `root` to Area::out of every rank.
Schedule plan_broadcast(std::uint32_t rank, std::uint32_t size, std::uint32_t root, std::uint64_t bytes,
                        const SpreadTuning& tuning = {});
// gather: Area::in of rank r to block r of Area::out of `root`. Other ranks need their own block only.
Schedule plan_gather(std::uint32_t rank, std::uint32_t size, std::uint32_t root, const BlockLayout& blocks,
                     const SpreadTuning& tuning = {});
// scatter: block r of Area::in of `root` to Area::out of rank r. Other ranks need their own block only.
Schedule plan_scatter(std::uint32_t rank, std::uint32_t size, std::uint32_t root, const BlockLayout& blocks,
                      const SpreadTuning& tuning = {});

}  // namespace hmc
