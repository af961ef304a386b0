// AcceleratorSharing: the MemorySharing of an Accelerator.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "device/accelerator_chunks.h"
#include "device/accelerator_devices.h"
#include "device/pinned_ranges.h"
#include "device/runtime.h"

namespace hmc {

class AcceleratorSharing final : public MemorySharing {
 public:
  // `pinned`: where pin_host() adds what it pins.
  AcceleratorSharing(AcceleratorDevices& devices, PinnedRanges& pinned) noexcept
      : devices_(devices), pinned_(pinned), chunks_(devices) {}
  Result<Blob> export_handle(const DeviceSpan& span, HandleKind kind) override;
  Result<std::unique_ptr<Allocation>> import_handle(int index, const Blob& blob, HandleKind kind) override;
  Result<std::unique_ptr<HeldChunks>> hold_chunks(const DeviceSpan& span) override { return chunks_.hold(span); }
  Result<std::unique_ptr<HostPin>> pin_host(int index, const HostPages& host) override;
  [[nodiscard]] std::size_t registration_limit() const noexcept override { return devices_.calls().traits.registration_limit; }

 private:
  class Mapping;
  class Mapped;

  Result<Blob> export_allocation(const DeviceSpan& span);
  Result<Blob> export_dma_buf(const DeviceSpan& span);
  Result<std::unique_ptr<Allocation>> import_allocation(int index, const Blob& blob);

  AcceleratorDevices& devices_;
  PinnedRanges& pinned_;
  AcceleratorChunks chunks_;
  std::mutex mutex_;  // of what follows
  std::map<std::tuple<int, IpcHandle, std::uint64_t>, std::weak_ptr<Mapping>> mappings_;
};

}  // namespace hmc
