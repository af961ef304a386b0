// Regions of the ipc transport: exported by the vendor's handle, mapped by the importer for each of its devices that needs it.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "transport/transport.h"

namespace hmc::ipc {

class Region final : public LocalRegion {
 public:
  explicit Region(RegionView view) noexcept : LocalRegion(std::move(view)) {}
  // bytes = wire{u8 of a message?, text vendor, blob handle, u64 bytes}. Asked of the vendor once.
  Result<Blob> exported() override;

 private:
  std::optional<Blob> handle_;
};

// Mappings that messages made, kept for the next message from the same allocation: mapping takes a hundred times as long as a short
// copy. The memory of a message is its sender's again when the message is over, so one that is kept may outlive what it maps; it is
// never used then, since an allocation that is made anew has another handle or id. ConnBuffers' mappings end with their import.
class MappingCache {
 public:
  void keep(ByteSpan handle, std::shared_ptr<Allocation> mapping);
  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }
  void clear() noexcept { entries_.clear(); }

 private:
  static constexpr std::size_t most = 64;
  std::deque<std::pair<Bytes, std::shared_ptr<Allocation>>> entries_;  // the latest last
};

class ImportedRegion final : public RemoteRegion {
 public:
  static Result<std::unique_ptr<RemoteRegion>> import(const Blob& exported, std::shared_ptr<MappingCache> cache);
  ImportedRegion(std::string vendor, Bytes handle, std::size_t bytes, bool message, std::shared_ptr<MappingCache> cache) noexcept
      : RemoteRegion(bytes), vendor_(std::move(vendor)), handle_(std::move(handle)), message_(message), cache_(std::move(cache)) {}

  // The memory as `device` here reaches it; mapped at the first call, which takes as long as the vendor needs (a fraction of a
  // millisecond). Errors: those of MemorySharing::import_handle.
  Result<DeviceSpan> on(const Device& device);

 private:
  const std::string vendor_;
  const Bytes handle_;
  const bool message_;
  const std::shared_ptr<MappingCache> cache_;  // of the link
  std::map<Device, std::shared_ptr<Allocation>> mappings_;
};

}  // namespace hmc::ipc
