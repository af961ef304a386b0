#include "collective/schedule_cache.h"

#include "collective/places.h"
#include "collective/plan_hierarchical.h"

#include <algorithm>
#include <utility>

namespace hmc {

ScheduleCache::ScheduleCache(std::shared_ptr<Engine> engine, std::uint32_t size, std::span<const std::uint32_t> local)
    : engine_(std::move(engine)), size_(size) {
  recent_.reserve(local.size());
  for (const std::uint32_t rank : local) recent_.push_back({.rank = rank, .entries = {}});
}

ScheduleCache::Recent& ScheduleCache::recent_of(std::uint32_t rank) noexcept {
  return *std::ranges::lower_bound(recent_, rank, {}, &Recent::rank);
}

std::shared_ptr<const Schedule> ScheduleCache::find(std::uint32_t rank, const Key& key) {
  Recent& recent = recent_of(rank);
  const auto lock = engine_->lock();
  const auto known = std::ranges::find(recent.entries, key, &Entry::key);
  return known == recent.entries.end() ? nullptr : known->schedule;
}

void ScheduleCache::keep(std::uint32_t rank, const Key& key, const std::shared_ptr<const Schedule>& schedule) {
  Recent& recent = recent_of(rank);
  const auto lock = engine_->lock();
  if (recent.entries.size() < kept) {
    recent.entries.push_back({key, schedule});
  } else {
    recent.entries[recent.oldest++ % kept] = {key, schedule};
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
  const auto lock = engine_->lock();
  for (Recent& recent : recent_) recent.entries.clear();
}

std::shared_ptr<const Measurement> ScheduleCache::measured() const {
  const std::lock_guard lock(places_mutex_);
  return measured_;
}

std::shared_ptr<const Schedule> ScheduleCache::barrier(std::uint32_t rank) {
  return get(rank, {.kind = CallKind::barrier}, [&] { return plan_barrier(rank, size_); });
}

std::shared_ptr<const Schedule> ScheduleCache::all_to_all(std::uint32_t rank, std::uint64_t block, const AllToAllTuning& tuning) {
  const CallKind kind = relays(size_, block, tuning) ? CallKind::all_to_all_relayed : CallKind::all_to_all;
  return get(rank, {.kind = kind, .bytes = block, .more = tuning.inline_copy},
             [&] { return plan_all_to_all(rank, size_, block, tuning); });
}

}  // namespace hmc
