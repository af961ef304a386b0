// AcceleratorSums: the weighted sums of an Accelerator.
#pragma once

#include "device/accelerator_devices.h"
#include "device/accelerator_scratch.h"
#include "device/runtime.h"

namespace hmc {

// The terms pass to the device through scratch memory. Kernels run on the stream of what the device computes. Any thread.
class AcceleratorSums {
 public:
  // `runtime`: whose poll() ends what is over.
  AcceleratorSums(AcceleratorDevices& devices, AcceleratorScratch& scratch, DeviceRuntime& runtime) noexcept
      : devices_(devices), calls_(devices.calls()), runtime_(runtime), scratch_(scratch) {}

  // As DeviceCompute::prepare_weighted_sum() and weighted_sum().
  Result<bool> prepare(int index, DataType type);
  Status run(const WeightedSumOp& op);

 private:
  Status launch(AcceleratorDevice& on, const WeightedSumOp& op, const AcceleratorScratch::Piece& scratch, Completion* done);

  AcceleratorDevices& devices_;
  const VendorCalls& calls_;
  DeviceRuntime& runtime_;
  AcceleratorScratch& scratch_;
};

}  // namespace hmc
