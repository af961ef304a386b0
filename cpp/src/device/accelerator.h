// Accelerator: a DeviceRuntime on the calls of one vendor.
#pragma once

#include "device/accelerator_compute.h"
#include "device/accelerator_copies.h"
#include "device/accelerator_devices.h"
#include "device/accelerator_sharing.h"
#include "device/accelerator_streams.h"
#include "device/pinned_ranges.h"
#include "device/runtime.h"
#include "device/vendor_calls.h"

namespace hmc {

class Accelerator final : public DeviceRuntime {
 public:
  Accelerator(std::string_view vendor, VendorCalls calls) : devices_(vendor, std::move(calls)) {}

  RuntimeInfo enumerate() override { return devices_.enumerate(); }
  Result<std::optional<PointerInfo>> classify(const void* data, std::size_t bytes) override;
  Result<std::unique_ptr<Allocation>> allocate(int index, std::size_t bytes, const MemoryOptions& options) override;
  Status copy(const CopyOp& op, Completion* done) override { return copies_.copy(op, done); }
  DeviceCompute& compute() override { return compute_; }
  bool poll() override { return copies_.poll(); }
  MemorySharing& sharing() override { return sharing_; }
  DeviceStreams& streams() override { return streams_; }

 private:
  AcceleratorDevices devices_;
  PinnedRanges pinned_;
  AcceleratorCopies copies_{devices_, pinned_};
  AcceleratorCompute compute_{devices_, *this};
  AcceleratorSharing sharing_{devices_, pinned_};
  AcceleratorStreams streams_{devices_};
};

}  // namespace hmc
