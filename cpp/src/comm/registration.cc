#include "comm/registration.h"

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
  return *regions_.emplace_back(Entry{transport, std::move(region), {}}).region;
}

void Registration::mark_prepared(const Transport* transport, const Device& remote) {
  for (auto& entry : regions_) {
    if (entry.transport == transport && !entry.prepared_for(remote)) entry.prepared.push_back(remote);
  }
}

std::shared_ptr<Registration> RegistrationCache::get(const Memory& memory, Access access, bool& hit) {
  auto& entry = entries_[Key{memory.block().get(), memory.offset(), memory.size(), access}];
  auto registration = entry.lock();
  hit = registration != nullptr;
  if (!hit) {
    registration = std::make_shared<Registration>(memory, access);
    entry = registration;
    if (entries_.size() >= sweep_at_) sweep();
  }
  return registration;
}

void RegistrationCache::sweep() {
  std::erase_if(entries_, [](const auto& item) { return item.second.expired(); });
  sweep_at_ = std::max<std::size_t>(64, entries_.size() * 2);
}

}  // namespace hmc
