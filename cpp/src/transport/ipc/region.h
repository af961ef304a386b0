// Regions of the ipc transport: exported by the vendor's handle, mapped by the importer for each of its devices that needs it.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "transport/transport.h"

namespace hmc::ipc {

class Region final : public LocalRegion {
 public:
  explicit Region(RegionView view) noexcept : LocalRegion(std::move(view)) {}
  // bytes = wire{text device, blob handle, u64 bytes}. Asked of the vendor once.
  Result<Blob> exported() override;

 private:
  std::optional<Blob> handle_;
};

class ImportedRegion final : public RemoteRegion {
 public:
  static Result<std::unique_ptr<RemoteRegion>> import(const Blob& exported);
  ImportedRegion(std::string vendor, Bytes handle, std::size_t bytes) noexcept
      : RemoteRegion(bytes), vendor_(std::move(vendor)), handle_(std::move(handle)) {}

  // The memory as `device` here reaches it; mapped at the first call, which takes as long as the vendor needs (a fraction of a
  // millisecond). Errors: those of MemorySharing::import_handle.
  Result<DeviceSpan> on(const Device& device);

 private:
  const std::string vendor_;
  const Bytes handle_;
  std::map<Device, std::unique_ptr<Allocation>> mappings_;
};

}  // namespace hmc::ipc
