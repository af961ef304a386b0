// AcceleratorPages: the DevicePages of an Accelerator.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "device/accelerator_devices.h"
#include "device/runtime.h"

namespace hmc {

// A call's tables pass to the device, and its sums back, through memory that later calls use again. Kernels run on the stream of
// what the device computes. Any thread.
class AcceleratorPages final : public DevicePages {
 public:
  // `runtime`: whose poll() ends what is over.
  AcceleratorPages(AcceleratorDevices& devices, DeviceRuntime& runtime) noexcept
      : devices_(devices), calls_(devices.calls()), runtime_(runtime) {}

  Status run(int index, const PageCall& call) override;

 private:
  // Of equal sizes on both sides.
  struct Scratch {
    int index = 0;
    std::size_t bytes = 0;
    std::byte* host = nullptr;  // pinned, where that works
    void* device = nullptr;
  };
  Result<Scratch> take(int index, std::size_t bytes);
  void give(const Scratch& scratch);
  Status launch(AcceleratorDevice& on, const PageCall& call, const Scratch& scratch, const PageTables& tables, Completion* done);

  AcceleratorDevices& devices_;
  const VendorCalls& calls_;
  DeviceRuntime& runtime_;
  std::mutex mutex_;  // of what follows
  std::vector<Scratch> spare_;
};

}  // namespace hmc
