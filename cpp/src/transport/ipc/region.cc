#include "transport/ipc/region.h"

#include "base/wire.h"

namespace hmc::ipc {

namespace {

constexpr std::size_t max_device_text = 32;
constexpr std::size_t max_handle = 1024;

}  // namespace

Result<Blob> Region::exported() {
  if (!handle_) {
    HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(view_.span.device));
    HMC_ASSIGN(handle_, runtime->sharing().export_handle(view_.span, HandleKind::ipc));
    if (!handle_->fds.empty()) return Status(Code::unsupported, "handles with descriptors are not carried by ipc");
  }
  Blob blob;
  WireWriter(blob.bytes).text(view_.span.device.vendor()).bytes(handle_->bytes).u64(view_.span.bytes);
  return blob;
}

Result<std::unique_ptr<RemoteRegion>> ImportedRegion::import(const Blob& exported) {
  WireReader reader(exported.bytes);
  std::string vendor = reader.text(max_device_text);
  const ByteSpan handle = reader.bytes(max_handle);
  const std::uint64_t bytes = reader.u64();
  if (!reader.finish()) return Status(Code::protocol, "malformed region of device memory");
  return std::unique_ptr<RemoteRegion>(
      std::make_unique<ImportedRegion>(std::move(vendor), Bytes(handle.begin(), handle.end()), static_cast<std::size_t>(bytes)));
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
    HMC_ASSIGN(mapping, runtime->sharing().import_handle(device.index(), blob, HandleKind::ipc));
    if (mapping->span().bytes != bytes_) return Status(Code::protocol, "the peer's handle is of another size than its region");
  }
  return mapping->span();
}

}  // namespace hmc::ipc
