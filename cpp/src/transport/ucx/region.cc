#include "transport/ucx/region.h"

#include "base/random.h"

namespace hmc::ucx {
Result<std::unique_ptr<LocalRegion>> UcxLocalRegion::create(const RegionView& view, std::shared_ptr<const LibraryContext> context,
                                                            std::shared_ptr<Regions> regions) {
  auto region = std::unique_ptr<UcxLocalRegion>(new UcxLocalRegion(view, std::move(context), std::move(regions)));
  if (view.span.bytes != 0 && region->context_->rdma()) {
    const Api& api = region->context_->api();
    ucp_mem_map_params_t params{};
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_PROT;
    params.address = view.span.data;
    params.length = view.span.bytes;
    params.prot = UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_LOCAL_WRITE | UCP_MEM_MAP_PROT_REMOTE_READ;
    if (view.access == Access::read_write) params.prot |= UCP_MEM_MAP_PROT_REMOTE_WRITE;
    auto status = api.mem_map(region->context_->handle(), &params, &region->handle_);
    if (status != UCS_OK && view.access == Access::read) {  // memory that this process itself may only read
      params.prot &= ~static_cast<unsigned>(UCP_MEM_MAP_PROT_LOCAL_WRITE);
      status = api.mem_map(region->context_->handle(), &params, &region->handle_);
    }
    if (status != UCS_OK) {
      region->handle_ = nullptr;
      return api.status("registering " + std::to_string(view.span.bytes) + " bytes", status);
    }
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
    RegionKey region{id_, reinterpret_cast<std::uintptr_t>(view_.span.data), view_.span.bytes, view_.access, {}};
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

Result<std::unique_ptr<RemoteRegion>> UcxRemoteRegion::create(const RegionKey& key, std::shared_ptr<Worker> worker, bool direct) {
  auto region = std::unique_ptr<UcxRemoteRegion>(new UcxRemoteRegion(key, std::move(worker)));
  if (direct && key.bytes != 0) {
    if (key.key.empty()) return Status(Code::protocol, "the peer's region is not registered with its network card");
    HMC_ASSIGN(region->key_, region->worker_->unpack(key.key));
  }
  return std::unique_ptr<RemoteRegion>(std::move(region));
}

UcxRemoteRegion::~UcxRemoteRegion() {
  if (key_ != nullptr) worker_->destroy(key_);
}

}  // namespace hmc::ucx
