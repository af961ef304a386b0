#include "transport/ipc/region.h"

#include <algorithm>
#include <iterator>

#include "base/wire.h"

namespace hmc::ipc {

namespace {

constexpr std::size_t max_device_text = 32;
constexpr std::size_t max_handle = 1024;
constexpr std::ptrdiff_t handle_bytes = 64;
constexpr std::ptrdiff_t id_bytes = 8;

}  // namespace

Result<Blob> Region::exported() {
  if (!handle_) {
    HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(view_.span.device));
    HMC_ASSIGN(handle_, runtime->sharing().export_handle(view_.span, HandleKind::ipc));
    if (!handle_->fds.empty()) return Status(Code::unsupported, "handles with descriptors are not carried by ipc");
  }
  Blob blob;
  WireWriter(blob.bytes).u8(view_.transient ? 1 : 0).text(view_.span.device.vendor()).bytes(handle_->bytes).u64(view_.span.bytes);
  return blob;
}

Result<std::unique_ptr<RemoteRegion>> ImportedRegion::import(const Blob& exported, std::shared_ptr<MappingCache> cache) {
  WireReader reader(exported.bytes);
  const bool message = reader.u8() != 0;
  std::string vendor = reader.text(max_device_text);
  const ByteSpan handle = reader.bytes(max_handle);
  const std::uint64_t bytes = reader.u64();
  if (!reader.finish()) return Status(Code::protocol, "malformed region of device memory");
  return std::unique_ptr<RemoteRegion>(std::make_unique<ImportedRegion>(
      std::move(vendor), Bytes(handle.begin(), handle.end()), static_cast<std::size_t>(bytes), message, std::move(cache)));
}

void MappingCache::keep(ByteSpan handle, std::shared_ptr<Allocation> mapping) {
  // The same allocation however it was sliced: the handle proper comes first, and the id last.
  Bytes key(handle.begin(), handle.begin() + std::min<std::ptrdiff_t>(handle_bytes, std::ssize(handle)));
  key.insert(key.end(), handle.end() - std::min<std::ptrdiff_t>(id_bytes, std::ssize(handle)), handle.end());
  std::erase_if(entries_, [&](const auto& entry) { return entry.first == key; });
  if (entries_.size() == most) entries_.pop_front();
  entries_.emplace_back(std::move(key), std::move(mapping));
}

Result<DeviceSpan> ImportedRegion::on(const Device& device) {
  auto& mapping = mappings_[device];
  if (!mapping) {
    if (device.vendor() != vendor_) {
      return Status(Code::invalid_argument, "memory of a " + vendor_ + " device cannot be mapped for " + device.str());
    }
    HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(device));
    Blob blob;
    blob.bytes = handle_;
    auto mapped = runtime->sharing().import_handle(device.index(), blob, HandleKind::ipc);
    if (!mapped.ok() && cache_ && !cache_->empty()) {
      // A vendor refuses to map memory again whose former allocation is still mapped, as one that is kept may be.
      cache_->clear();
      mapped = runtime->sharing().import_handle(device.index(), blob, HandleKind::ipc);
    }
    HMC_ASSIGN(auto made, std::move(mapped));
    if (made->span().bytes != bytes_) return Status(Code::protocol, "the peer's handle is of another size than its region");
    mapping = std::move(made);
    if (message_ && cache_) cache_->keep(handle_, mapping);
  }
  return mapping->span();
}

}  // namespace hmc::ipc
