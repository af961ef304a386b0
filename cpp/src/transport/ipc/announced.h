// AnnouncedMemory: memory of the peer's process that its link has announced, mapped here once for every request and message that
// names it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "transport/ipc/descriptor_channel.h"
#include "transport/ipc/region.h"
#include "transport/ipc/shared.h"

namespace hmc::ipc {

class AnnouncedMemory final : public std::enable_shared_from_this<AnnouncedMemory> {
 public:
  // A failure of the import is kept as that of every use.
  AnnouncedMemory(const Bytes& exported, FdGroup group);

  [[nodiscard]] std::size_t bytes() const noexcept { return region_ ? region_->bytes() : 0; }
  // Whether it is mapped, and pinned, for `device`; false: `worker` is at it. Errors: those of that.
  Result<bool> prepared(const Device& device, Worker& worker);
  // Any thread. Maps it at the first call.
  Result<DeviceSpan> on(const Device& device, bool to_write);

 private:
  std::unique_ptr<ImportedRegion> region_;  // null: `failure_` says why
  Status failure_;
  std::mutex mutex_;                             // of what follows
  std::map<Device, Result<bool>> prepared_for_;  // false: under way
};

// A part of it, for one message.
class AnnouncedRegion final : public ImportedRegion {
 public:
  AnnouncedRegion(std::shared_ptr<AnnouncedMemory> memory, std::uint64_t offset, std::size_t bytes) noexcept
      : ImportedRegion(bytes), memory_(std::move(memory)), offset_(offset) {}
  Result<DeviceSpan> on(const Device& device, bool to_write) override;

 private:
  const std::shared_ptr<AnnouncedMemory> memory_;
  const std::uint64_t offset_;
};

// What one peer has announced. Engine lock held.
class AnnouncedTable {
 public:
  explicit AnnouncedTable(std::shared_ptr<Engine> engine) noexcept : engine_(std::move(engine)) {}
  // Errors: protocol.
  Result<std::shared_ptr<AnnouncedMemory>> find(std::uint64_t id, DescriptorChannel& channel);
  Status forget(std::uint64_t id, DescriptorChannel& channel);
  // bytes = wire{u8 Kind::announced, u64 id, u64 offset, u64 bytes}. Errors: protocol.
  Result<std::unique_ptr<RemoteRegion>> import(const Blob& exported, DescriptorChannel& channel);
  void clear();

 private:
  Status take(DescriptorChannel& channel);
  const std::shared_ptr<Engine> engine_;
  std::unordered_map<std::uint64_t, std::shared_ptr<AnnouncedMemory>> memories_;
};

}  // namespace hmc::ipc
