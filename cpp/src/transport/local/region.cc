#include "transport/local/region.h"

#include "base/random.h"
#include "base/wire.h"

namespace hmc::local {

Region::~Region() {
  if (id_ == 0) return;
  if (const auto shared = shared_.lock()) shared->regions.erase(id_);
}

Result<Blob> Region::exported() {
  const auto shared = shared_.lock();
  if (!shared) return Status(Code::closed, "the local transport of this region is closed");
  while (id_ == 0) {
    const std::uint64_t id = random_u64();
    if (id != 0 && shared->regions.emplace(id, this).second) id_ = id;
  }
  Blob blob;
  WireWriter(blob.bytes).u64(id_);
  return blob;
}

Result<std::unique_ptr<RemoteRegion>> ImportedRegion::import(const Shared& shared, const Blob& exported) {
  WireReader reader(exported.bytes);
  const std::uint64_t id = reader.u64();
  if (!reader.finish()) return Status(Code::protocol, "malformed local region");
  const auto place = shared.regions.find(id);
  if (place == shared.regions.end()) return Status(Code::stale, "the region was deregistered");
  return std::unique_ptr<RemoteRegion>(std::make_unique<ImportedRegion>(id, place->second->view()));
}

const RegionView* ImportedRegion::find(const Shared& shared) const {
  const auto place = shared.regions.find(id_);
  return place == shared.regions.end() ? nullptr : &place->second->view();
}

}  // namespace hmc::local
