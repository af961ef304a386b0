// AcceleratorStreams: the DeviceStreams of an Accelerator.
#pragma once

#include <memory>
#include <string>

#include "device/accelerator_devices.h"
#include "device/runtime.h"

namespace hmc {

[[nodiscard]] inline VendorStream vendor_stream(StreamHandle stream) noexcept {
  return stream == default_stream ? nullptr : reinterpret_cast<VendorStream>(stream);
}

// An event on a caller's stream.
class AcceleratorPoint final : public StreamPoint {
 public:
  AcceleratorPoint(const AcceleratorDevices& devices, AcceleratorDevice& device, VendorEvent event) noexcept
      : devices_(devices), device_(device), event_(event) {}
  // A wait that was queued keeps what the event stood for; the event may be recorded anew.
  ~AcceleratorPoint() override {
    if (devices_.forked()) return;  // the mutex may be held for ever there
    const std::scoped_lock lock(device_.mutex);
    device_.free_events.push_back(event_);
  }
  [[nodiscard]] VendorEvent event() const noexcept { return event_; }
  [[nodiscard]] Result<bool> reached() override;

 private:
  const AcceleratorDevices& devices_;
  AcceleratorDevice& device_;
  const VendorEvent event_;
};

class AcceleratorStreams final : public DeviceStreams {
 public:
  explicit AcceleratorStreams(AcceleratorDevices& devices) noexcept : devices_(devices) {}
  Result<std::shared_ptr<StreamPoint>> mark(int index, StreamHandle stream) override;
  Status queue_copy(int index, StreamHandle stream, const DeviceSpan& target, const DeviceSpan& source) override;
  Status hold(int index, StreamHandle stream, std::shared_ptr<const StreamGate> gate) override;
  Result<std::unique_ptr<DeviceQueue>> open_queue(int index) override;

 private:
  [[nodiscard]] Status failure(const std::string& what, int code) const;

  AcceleratorDevices& devices_;
};

}  // namespace hmc
