#include "comm/buffers/registration.h"

#include <algorithm>

namespace hmc {

RegionView Registration::view() const {
  RegionView view;
  view.span = DeviceSpan{memory_.data(), memory_.size(), memory_.device()};
  view.block = memory_.block();
  view.access = access_;
  return view;
}

LocalRegion& Registration::add(const Transport* transport, std::shared_ptr<LocalRegion> region) {
  if (const auto* known = find(transport)) return **known;
  return *regions_.emplace_back(Entry{.transport = transport, .region = std::move(region), .prepared = {}}).region;
}

void Registration::mark_prepared(const Transport* transport, const Device& remote) {
  for (auto& entry : regions_) {
    if (entry.transport == transport && !entry.leaving && !entry.prepared_for(remote)) entry.prepared.push_back(remote);
  }
}

Registration::Entry* Registration::entry_of(const LocalRegion* region) noexcept {
  const auto found = std::ranges::find_if(regions_, [&](const Entry& entry) { return entry.region.get() == region; });
  return found == regions_.end() ? nullptr : &*found;
}

bool Registration::has(const LocalRegion* region) const noexcept {
  return std::ranges::any_of(regions_, [&](const Entry& entry) { return entry.region.get() == region; });
}

void Registration::grant(const LocalRegion* region) noexcept { ++entry_of(region)->grants; }

void Registration::end_grant(const LocalRegion* region) {
  Entry* entry = entry_of(region);
  if (entry != nullptr && --entry->grants == 0 && entry->leaving) regions_.erase(regions_.begin() + (entry - regions_.data()));
}

void Registration::pin(const Transport* transport) noexcept {
  for (auto& entry : regions_) {
    if (entry.transport == transport && !entry.leaving) entry.pinned = true;
  }
}

const LocalRegion* Registration::scarce_region(const Transport* transport, Clock::time_point before,
                                               Clock::time_point& since) const {
  for (const auto& entry : regions_) {
    // Somebody else who holds it is about to use it.
    if (entry.transport != transport || entry.leaving || entry.pinned || entry.region.use_count() != 1) continue;
    if (!entry.region->scarce() || entry.since > before) return nullptr;
    since = entry.since;
    return entry.region.get();
  }
  return nullptr;
}

void Registration::stay(const LocalRegion* region) noexcept {
  Entry* entry = entry_of(region);
  // Somebody has needed it meanwhile, and it was registered a second time: then it goes with its last grant all the same.
  if (find(entry->transport) != nullptr) return;
  entry->leaving = false;
  entry->since = Clock::now();
}

void Registration::begin_leaving(const LocalRegion* region) {
  Entry* entry = entry_of(region);
  entry->leaving = true;
  if (entry->grants == 0) regions_.erase(regions_.begin() + (entry - regions_.data()));
}

}  // namespace hmc
