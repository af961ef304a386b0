#include "transport/verbs/region.h"

namespace hmc::verbs {

Result<std::unique_ptr<LocalRegion>> VerbsLocalRegion::create(const RegionView& view, std::shared_ptr<const Nics> nics) {
  auto region = std::unique_ptr<VerbsLocalRegion>(new VerbsLocalRegion(view, std::move(nics)));
  if (view.span.bytes != 0) {
    const unsigned remote =
        view.access == Access::read_write ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ;
    for (const auto& nic : *region->nics_) {
      auto handle = nic->register_memory(view.span.data, view.span.bytes, remote | IBV_ACCESS_LOCAL_WRITE);
      // Memory that this process itself may only read.
      if (!handle.ok() && view.access == Access::read) {
        if (auto again = nic->register_memory(view.span.data, view.span.bytes, remote); again.ok()) handle = std::move(again);
      }
      if (!handle.ok()) return handle.status();
      region->handles_.push_back(*handle);
    }
  }
  return std::unique_ptr<LocalRegion>(std::move(region));
}

VerbsLocalRegion::~VerbsLocalRegion() {
  for (std::size_t i = 0; i < handles_.size(); ++i) {
    const Nic& nic = *(*nics_)[i];
    if (!nic.forked()) nic.api().dereg_mr(handles_[i]);
  }
}

Result<Blob> VerbsLocalRegion::exported() {
  RegionKeys keys;
  keys.address = reinterpret_cast<std::uintptr_t>(view_.span.data);
  keys.bytes = view_.span.bytes;
  keys.access = view_.access;
  for (const ibv_mr* handle : handles_) keys.keys.push_back(handle->rkey);
  Blob blob;
  blob.bytes = encode_region(keys);
  return blob;
}

}  // namespace hmc::verbs
