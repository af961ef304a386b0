#include "collective/schedule_cache.h"

#include <algorithm>
#include <utility>

namespace hmc {

ScheduleCache::ScheduleCache(std::shared_ptr<Engine> engine, std::uint32_t size, std::span<const std::uint32_t> local)
    : engine_(std::move(engine)), size_(size) {
  entries_.reserve(local.size());
  for (const std::uint32_t rank : local) entries_.push_back({.rank = rank, .barrier = nullptr, .all_to_all = nullptr});
}

ScheduleCache::Entry& ScheduleCache::entry_of(std::uint32_t rank) noexcept {
  return *std::ranges::lower_bound(entries_, rank, {}, &Entry::rank);
}

std::shared_ptr<const Schedule> ScheduleCache::barrier(std::uint32_t rank) {
  Entry& entry = entry_of(rank);
  {
    const auto lock = engine_->lock();
    if (entry.barrier) return entry.barrier;
  }
  auto made = std::make_shared<const Schedule>(plan_barrier(rank, size_));
  const auto lock = engine_->lock();
  entry.barrier = made;
  return made;
}

std::shared_ptr<const Schedule> ScheduleCache::all_to_all(std::uint32_t rank, std::uint64_t block, const AllToAllTuning& tuning) {
  Entry& entry = entry_of(rank);
  {
    const auto lock = engine_->lock();
    if (entry.all_to_all && entry.block == block && entry.inline_copy == tuning.inline_copy) return entry.all_to_all;
  }
  auto made = std::make_shared<const Schedule>(plan_all_to_all(rank, size_, block, tuning));
  const auto lock = engine_->lock();
  entry.all_to_all = made;
  entry.block = block;
  entry.inline_copy = tuning.inline_copy;
  return made;
}

}  // namespace hmc
