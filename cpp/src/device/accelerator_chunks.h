// AcceleratorChunks: HandleKind::chunks of an Accelerator, for memory that has no IPC handle as a whole.
#pragma once

#include <memory>

#include "device/accelerator_devices.h"
#include "device/runtime.h"

namespace hmc {

// As MemorySharing, for memory that was mapped piece by piece. Any thread.
class AcceleratorChunks {
 public:
  explicit AcceleratorChunks(AcceleratorDevices& devices) noexcept : devices_(devices) {}
  Result<std::unique_ptr<HeldChunks>> hold(const DeviceSpan& span);
  Result<Blob> export_handle(const DeviceSpan& span);
  Result<std::unique_ptr<Allocation>> import_handle(int index, const Blob& blob);

 private:
  AcceleratorDevices& devices_;
};

}  // namespace hmc
