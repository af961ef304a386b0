#include "transport/ucx/native.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

namespace hmc::ucx {
namespace {

std::string hexadecimal(const void* data, std::size_t bytes) {
  constexpr char digits[] = "0123456789abcdef";
  const auto* byte = static_cast<const unsigned char*>(data);
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) {
    text += digits[byte[i] >> 4];
    text += digits[byte[i] & 15];
  }
  return text;
}

}  // namespace

Result<std::shared_ptr<const LibraryContext>> Native::context() {
  if (!context_) {
    HMC_ASSIGN(context_, LibraryContext::create(api_, engine_, LibraryContext::For::programs));
  }
  return context_;
}

bool Native::poll() {
  bool moved = false;
  for (UcxNativeLink* link : links_) moved = link->poll() || moved;
  return moved;
}

bool Native::arm() {
  return std::ranges::all_of(links_, [](UcxNativeLink* link) { return link->arm(); });
}

Result<std::unique_ptr<NativeRegion>> NativeRegion::create(const RegionView& view, std::shared_ptr<const LibraryContext> context) {
  auto region = std::unique_ptr<NativeRegion>(new NativeRegion(std::move(context)));
  const Api& api = region->context_->api();
  HMC_ASSIGN(region->handle_, region->context_->map(view));
  void* key = nullptr;
  std::size_t bytes = 0;
  if (const auto status = api.rkey_pack(region->context_->handle(), region->handle_, &key, &bytes); status != UCS_OK) {
    return api.status("packing a remote key", status);
  }
  region->key_ = hexadecimal(key, bytes);
  api.rkey_buffer_release(key);
  return region;
}

NativeRegion::~NativeRegion() {
  if (handle_ != nullptr && !context_->forked()) context_->api().mem_unmap(context_->handle(), handle_);
}

NativeFields NativeRegion::fields(const RegionView& view, std::size_t offset, std::size_t bytes) const {
  NativeFields fields;
  fields["version"] = context_->api().version();
  fields["address"] = reinterpret_cast<std::uintptr_t>(view.span.data) + offset;
  fields["length"] = std::uint64_t{bytes};
  fields["rkey"] = key_;
  return fields;
}

Result<std::unique_ptr<NativeLink>> UcxNativeLink::create(const std::shared_ptr<Native>& native, const NativeFields& peer) {
  if (!peer.empty()) {
    return Status(Code::invalid_argument, "UCX needs to know nothing of the peer's end, so \"" + peer.begin()->first +
                                              "\" has no meaning: give connect_native() no fields");
  }
  HMC_ASSIGN(auto context, native->context());
  auto link = std::unique_ptr<UcxNativeLink>(new UcxNativeLink(native, std::move(context)));
  HMC_TRY(link->open());
  native->links_.push_back(link.get());
  native->engine_->kick();  // a sleeping engine arms it
  return std::unique_ptr<NativeLink>(std::move(link));
}

Status UcxNativeLink::open() {
  const Api& api = context_->api();
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // any thread, under the engine lock
  params.flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK;
  if (const auto status = api.worker_create(context_->handle(), &params, &worker_); status != UCS_OK) {
    worker_ = nullptr;
    return api.status("making a worker", status);
  }
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  if (const auto status = api.worker_get_address(worker_, &address, &bytes); status != UCS_OK) {
    return api.status("asking for the worker's address", status);
  }
  address_ = hexadecimal(address, bytes);
  api.worker_release_address(worker_, address);
  int descriptor = -1;
  if (const auto status = api.worker_get_efd(worker_, &descriptor); status != UCS_OK) {
    return api.status("asking for the worker's descriptor", status);
  }
  HMC_TRY(context_->engine().watch(descriptor, EPOLLIN, *this));
  descriptor_ = descriptor;
  return {};
}

UcxNativeLink::~UcxNativeLink() {
  std::erase(native_->links_, this);
  if (descriptor_ >= 0) context_->engine().unwatch(descriptor_);
  if (worker_ != nullptr && !context_->forked()) context_->api().worker_destroy(worker_);
}

NativeFields UcxNativeLink::fields() const { return {{"version", context_->api().version()}, {"worker_address", address_}}; }

// The next poll() looks; UCX leaves the descriptor readable until it is armed again.
void UcxNativeLink::on_ready(std::uint32_t) {
  context_->engine().modify(descriptor_, 0);
  watching_ = false;
}

bool UcxNativeLink::arm() {
  const auto status = context_->api().worker_arm(worker_);
  if (status == UCS_OK && !std::exchange(watching_, true)) context_->engine().modify(descriptor_, EPOLLIN);
  return status == UCS_OK;
}

}  // namespace hmc::ucx
