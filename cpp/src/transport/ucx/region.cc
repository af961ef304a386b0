#include "transport/ucx/region.h"

#include "base/random.h"

namespace hmc::ucx {
Result<std::unique_ptr<LocalRegion>> UcxLocalRegion::create(const RegionView& view, std::shared_ptr<const LibraryContext> context,
                                                            std::shared_ptr<Regions> regions, std::shared_ptr<Native> native) {
  auto region =
      std::unique_ptr<UcxLocalRegion>(new UcxLocalRegion(view, std::move(context), std::move(regions), std::move(native)));
  const bool on_device = !view.span.device.is_cpu();
  if (on_device) region->kind_ = kind_of(view.span.device).value_or(MemoryKind::host);
  if (view.span.bytes != 0 && (on_device || region->context_->rdma())) {
    HMC_ASSIGN(region->handle_, region->context_->map(view));
  }
  return std::unique_ptr<LocalRegion>(std::move(region));
}

UcxLocalRegion::~UcxLocalRegion() {
  if (id_ != 0) regions_->erase(id_);
  if (handle_ != nullptr && !context_->forked()) context_->api().mem_unmap(context_->handle(), handle_);
}

Result<Blob> UcxLocalRegion::exported() {
  if (exported_.empty()) {
    while (id_ == 0 || regions_->try_emplace(id_, this).first->second != this) id_ = random_u64();
    RegionKey region{id_, reinterpret_cast<std::uintptr_t>(view_.span.data), view_.span.bytes, view_.access, kind_, {}};
    if (handle_ != nullptr) {
      const Api& api = context_->api();
      void* key = nullptr;
      std::size_t bytes = 0;
      if (const auto status = api.rkey_pack(context_->handle(), handle_, &key, &bytes); status != UCS_OK) {
        return api.status("packing a remote key", status);
      }
      const auto* first = static_cast<const std::byte*>(key);
      region.key.assign(first, first + bytes);
      api.rkey_buffer_release(key);
      if (bytes > max_key) return Status(Code::unsupported, "UCX's remote key has " + std::to_string(bytes) + " bytes");
    }
    exported_ = encode_region(region);
  }
  Blob blob;
  blob.bytes = exported_;
  return blob;
}

Result<std::vector<NativeFields>> UcxLocalRegion::native(std::size_t offset, std::size_t bytes) const {
  if (!for_programs_) {
    HMC_ASSIGN(auto context, native_->context());
    HMC_ASSIGN(for_programs_, NativeRegion::create(view_, std::move(context)));
  }
  return std::vector<NativeFields>{for_programs_->fields(view_, offset, bytes)};
}

Result<std::unique_ptr<RemoteRegion>> UcxRemoteRegion::create(const RegionKey& key, std::shared_ptr<Worker> worker, bool direct) {
  auto region = std::unique_ptr<UcxRemoteRegion>(new UcxRemoteRegion(key, std::move(worker)));
  if (direct && key.bytes != 0) {
    if (key.key.empty()) return Status(Code::protocol, "the peer's region has no key of UCX's");
    HMC_ASSIGN(region->key_, region->worker_->unpack(key.key));
  }
  return std::unique_ptr<RemoteRegion>(std::move(region));
}

UcxRemoteRegion::~UcxRemoteRegion() {
  if (key_ != nullptr) worker_->destroy(key_);
}

}  // namespace hmc::ucx
