// AcceleratorCopies: the copies of an Accelerator, and their completions.
#pragma once

#include "device/accelerator_devices.h"
#include "device/runtime.h"

namespace hmc {

// Copies run on streams of HMC's own: one pair (short and long ones) per device and direction, made at first use, so that nothing
// touches a device that is not used and a short copy does not wait behind a long one. Each copy leaves an event behind, and poll()
// asks for the oldest of every stream.
class AcceleratorCopies {
 public:
  explicit AcceleratorCopies(AcceleratorDevices& devices) noexcept : devices_(devices), calls_(devices.calls()) {}

  Status copy(const CopyOp& op, Completion* done);
  bool poll();

 private:
  // All with the device's mutex held and the device current.
  Result<CopyStream*> stream_for(AcceleratorDevice& device, CopyDirection direction, std::size_t bytes, bool in_blocks);
  AcceleratorDevice::Peer reach(AcceleratorDevice& device, std::size_t other);
  Status start(AcceleratorDevice& device, CopyStream& stream, const CopyOp& op, CopyDirection direction, bool one_launch,
               Completion* done);
  int issue(const CopyOp& op, CopyDirection direction, bool one_launch, VendorStream stream, std::size_t& issued);

  AcceleratorDevices& devices_;
  const VendorCalls& calls_;
};

}  // namespace hmc
