// CPU memory of the ipc transport: exported by its memfd, mapped by a process that has a device, and pinned for that.
#pragma once

#include <memory>
#include <mutex>

#include "device/host_pins.h"
#include "transport/host_mapping.h"
#include "transport/ipc/region.h"
#include "transport/ipc/shared.h"

namespace hmc::ipc {

// Of memory that has_file().
class HostRegion final : public LocalRegion {
 public:
  HostRegion(const RegionView& view, std::weak_ptr<Shared> shared) noexcept : LocalRegion(view), shared_(std::move(shared)) {}
  ~HostRegion() override;
  // bytes = wire{u8 Kind::host, u8 access, u64 offset in the file, u64 bytes}, with the file's descriptor.
  Result<Blob> exported() override { return exported_for(view_.access); }
  [[nodiscard]] bool peer_moves() const noexcept override { return true; }
  // For a peer whose device copies for this side, which may always write.
  [[nodiscard]] Result<Blob> exported_for(Access access) const;

 private:
  const std::weak_ptr<Shared> shared_;
};

class ImportedHostRegion final : public ImportedRegion {
 public:
  static Result<std::unique_ptr<RemoteRegion>> import(const Blob& exported, const ImportContext& context);
  ~ImportedHostRegion() override;

  // Maps it, and pins it for the device's vendor. Errors: protocol; unsupported where the system refuses to map it.
  Status prepare(const Device& local) override;
  Result<DeviceSpan> on(const Device& device, bool to_write) override;

 private:
  struct Mapped {
    std::shared_ptr<const MappedRegion> memory;
    HostPins pins;
  };
  ImportedHostRegion(RegionFile file, std::size_t bytes, bool writable, std::shared_ptr<Engine> engine) noexcept
      : ImportedRegion(bytes), writable_(writable), engine_(std::move(engine)), file_(std::move(file)) {}

  Result<Mapped*> map();

  const bool writable_;
  const std::shared_ptr<Engine> engine_;
  std::mutex mutex_;  // of what follows
  RegionFile file_;   // until it is mapped
  std::shared_ptr<Mapped> mapped_;
};

}  // namespace hmc::ipc
