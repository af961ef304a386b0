#include "transport/served_regions.h"

#include "base/random.h"

namespace hmc {

Result<std::shared_ptr<ServedRegion>> ServedRegions::find(std::uint64_t id, bool to_write) const {
  const auto found = regions_.find(id);
  if (found == regions_.end()) return Status(Code::stale, "the region was deregistered");
  if (to_write && found->second->access != Access::read_write) {
    return Status(Code::invalid_argument, "put into a region that its owner exported for reading only");
  }
  return found->second;
}

ServedExport::ServedExport(const RegionView& view, std::weak_ptr<ServedRegions> table)
    : table_(std::move(table)), region_(std::make_shared<ServedRegion>()) {
  region_->span = view.span;
  region_->access = view.access;
}

ServedExport::~ServedExport() {
  if (id_ == 0) return;
  if (const auto table = table_.lock()) table->regions_.erase(id_);
  for (ServedCopies* copies : region_->users) copies->see_out();
}

Result<std::uint64_t> ServedExport::id() {
  const auto table = table_.lock();
  if (!table) return Status(Code::closed, "the transport of this region is closed");
  while (id_ == 0) {
    const std::uint64_t id = random_u64();
    if (id != 0 && table->regions_.emplace(id, region_).second) id_ = id;
  }
  return id_;
}

}  // namespace hmc
