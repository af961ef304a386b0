#include "transport/staging/region.h"

#include "base/wire.h"

namespace hmc::staging {

Result<Blob> Region::exported() {
  HMC_ASSIGN(const std::uint64_t id, export_.id());
  Blob blob;
  WireWriter(blob.bytes).u64(id).u64(view_.span.bytes);
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
