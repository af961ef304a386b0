#include "transport/tcp/region.h"

#include "base/random.h"
#include "transport/tcp/shared.h"

namespace hmc::tcp {

TcpLocalRegion::~TcpLocalRegion() {
  if (id_ == 0) return;
  if (const auto shared = shared_.lock()) {
    shared->regions.erase(id_);
    shared->region_gone(id_);
  }
}

Result<Blob> TcpLocalRegion::exported() {
  const auto shared = shared_.lock();
  if (!shared) return Status(Code::closed, "the tcp transport of this region is closed");
  while (id_ == 0 || shared->regions.try_emplace(id_, this).first->second != this) id_ = random_u64();
  Blob blob;
  blob.bytes = encode_region({id_, bytes(), view_.access});
  return blob;
}

}  // namespace hmc::tcp
