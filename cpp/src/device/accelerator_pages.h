// AcceleratorPages: the DevicePages of an Accelerator.
#pragma once

#include "device/accelerator_devices.h"
#include "device/accelerator_scratch.h"
#include "device/runtime.h"

namespace hmc {

// A call's tables pass to the device, and its sums back, through memory that later calls use again. Kernels run on the stream of
// what the device computes. Any thread.
class AcceleratorPages final : public DevicePages {
 public:
  // `runtime`: whose poll() ends what is over.
  AcceleratorPages(AcceleratorDevices& devices, AcceleratorScratch& scratch, DeviceRuntime& runtime) noexcept
      : devices_(devices), calls_(devices.calls()), runtime_(runtime), scratch_(scratch) {}

  Status run(int index, const PageCall& call) override;

 private:
  Status launch(AcceleratorDevice& on, const PageCall& call, const AcceleratorScratch::Piece& scratch, const PageTables& tables,
                Completion* done);

  AcceleratorDevices& devices_;
  const VendorCalls& calls_;
  DeviceRuntime& runtime_;
  AcceleratorScratch& scratch_;
};

}  // namespace hmc
