// AcceleratorCopies: the copies of an Accelerator, and their completions.
#pragma once

#include "device/accelerator_devices.h"
#include "device/pinned_ranges.h"
#include "device/runtime.h"

namespace hmc {

// Copies run on streams of HMC's own: one pair (short and long ones) per device and direction, made at first use, so that nothing
// touches a device that is not used and a short copy does not wait behind a long one. Each copy leaves an event behind, and poll()
// asks for the oldest of every stream.
class AcceleratorCopies {
 public:
  AcceleratorCopies(AcceleratorDevices& devices, const PinnedRanges& pinned) noexcept
      : devices_(devices), pinned_(pinned), calls_(devices.calls()) {}

  Status copy(const CopyOp& op, Completion* done);
  bool poll();

 private:
  // Whether the device's kernel copies these blocks: it loads the kernel, unless something on the device waits meanwhile. No mutex
  // held; the device current.
  bool in_one_launch(AcceleratorDevice& device, int index, const CopyOp& op);
  // All with the device's mutex held and the device current.
  Result<CopyStream*> stream_for(AcceleratorDevice& device, CopyDirection direction, std::size_t bytes, bool in_blocks);
  bool reach(AcceleratorDevice& device, std::size_t other);
  Status start(AcceleratorDevice& device, CopyStream& stream, const CopyOp& op, CopyDirection direction, bool one_launch,
               Completion* done);
  int issue(const CopyOp& op, CopyDirection direction, bool one_launch, VendorStream stream, std::size_t& issued);

  AcceleratorDevices& devices_;
  const PinnedRanges& pinned_;
  const VendorCalls& calls_;
};

}  // namespace hmc
