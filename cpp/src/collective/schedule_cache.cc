#include "collective/schedule_cache.h"

#include "collective/places.h"
#include "collective/plan_hierarchical.h"

#include <algorithm>
#include <utility>

namespace hmc {

ScheduleCache::ScheduleCache(std::uint32_t size, std::span<const std::uint32_t> local) : size_(size) {
  recent_.reserve(local.size());
  for (const std::uint32_t rank : local) recent_.push_back({.rank = rank, .entries = {}});
}

ScheduleCache::Recent& ScheduleCache::recent_of(std::uint32_t rank) noexcept {
  return *std::ranges::lower_bound(recent_, rank, {}, &Recent::rank);
}

std::shared_ptr<const PlannedCall> ScheduleCache::find(std::uint32_t rank, const Key& key) {
  Recent& recent = recent_of(rank);
  const std::lock_guard lock(recent_mutex_);
  const auto known = std::ranges::find(recent.entries, key, &Entry::key);
  return known == recent.entries.end() ? nullptr : known->call;
}

void ScheduleCache::keep(std::uint32_t rank, const Key& key, const std::shared_ptr<const PlannedCall>& call) {
  Recent& recent = recent_of(rank);
  const std::lock_guard lock(recent_mutex_);
  if (recent.entries.size() < kept) {
    recent.entries.push_back({key, call});
  } else {
    recent.entries[recent.oldest++ % kept] = {key, call};
  }
}

std::shared_ptr<const std::vector<Island>> ScheduleCache::islands(const Group& group) {
  const std::lock_guard lock(places_mutex_);
  if (!islands_found_) {
    auto found = islands_of(group, measured_.get());
    // Bandwidths that differ make more pieces, which may be too many.
    if (measured_ && !has_hierarchy(found)) found = islands_of(group);
    if (has_hierarchy(found)) islands_ = std::make_shared<const std::vector<Island>>(std::move(found));
    islands_found_ = true;
  }
  return islands_;
}

void ScheduleCache::adopt(Measurement measured) {
  {
    const std::lock_guard lock(places_mutex_);
    measured_ = std::make_shared<const Measurement>(std::move(measured));
    islands_found_ = false;
    islands_ = nullptr;
  }
  const std::lock_guard lock(recent_mutex_);
  for (Recent& recent : recent_) recent.entries.clear();
}

std::shared_ptr<const Measurement> ScheduleCache::measured() const {
  const std::lock_guard lock(places_mutex_);
  return measured_;
}

std::shared_ptr<const Schedule> ScheduleCache::barrier(std::uint32_t rank) {
  return get(rank, {.kind = CallKind::barrier}, [&] { return plan_barrier(rank, size_); });
}

}  // namespace hmc
