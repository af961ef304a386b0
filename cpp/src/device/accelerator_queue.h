// AcceleratorQueue: the DeviceQueue of an Accelerator.
#pragma once

#include <memory>

#include "device/accelerator_devices.h"
#include "device/runtime.h"

namespace hmc {

class AcceleratorQueue final : public DeviceQueue {
 public:
  static Result<std::unique_ptr<AcceleratorQueue>> open(AcceleratorDevices& devices, int index);
  ~AcceleratorQueue() override;
  AcceleratorQueue(const AcceleratorQueue&) = delete;
  AcceleratorQueue& operator=(const AcceleratorQueue&) = delete;

  Status run(const std::array<const StreamPoint*, 2>& after, const std::function<Status(StreamHandle)>& issue,
             Completion* done) override;
  Status on_device(const std::function<Status()>& function) override;

 private:
  AcceleratorQueue(AcceleratorDevices& devices, AcceleratorDevice& device, int index, CopyStream& stream) noexcept
      : devices_(devices), device_(device), index_(index), stream_(stream) {}

  AcceleratorDevices& devices_;
  AcceleratorDevice& device_;
  const int index_;
  CopyStream& stream_;
};

}  // namespace hmc
