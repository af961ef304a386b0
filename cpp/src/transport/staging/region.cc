#include "transport/staging/region.h"

#include "base/random.h"
#include "base/wire.h"

namespace hmc::staging {

Region::Region(const RegionView& view, std::weak_ptr<Shared> shared)
    : LocalRegion(view), shared_(std::move(shared)), state_(std::make_shared<RegionState>()) {
  state_->span = view.span;
  state_->access = view.access;
}

Region::~Region() {
  if (id_ == 0) return;
  if (const auto shared = shared_.lock()) shared->regions.erase(id_);
  for (PieceCopies* copies : state_->users) copies->see_out();
}

Result<Blob> Region::exported() {
  const auto shared = shared_.lock();
  if (!shared) return Status(Code::closed, "the staging transport of this region is closed");
  while (id_ == 0) {
    const std::uint64_t id = random_u64();
    if (id != 0 && shared->regions.emplace(id, state_).second) id_ = id;
  }
  Blob blob;
  WireWriter(blob.bytes).u64(id_).u64(view_.span.bytes);
  return blob;
}

Result<std::unique_ptr<RemoteRegion>> ImportedRegion::import(const Blob& exported) {
  WireReader reader(exported.bytes);
  const std::uint64_t id = reader.u64();
  const std::uint64_t bytes = reader.u64();
  if (!reader.finish()) return Status(Code::protocol, "malformed region of staging");
  return std::unique_ptr<RemoteRegion>(std::make_unique<ImportedRegion>(id, static_cast<std::size_t>(bytes)));
}

}  // namespace hmc::staging
