// Accelerator::Point: an event on a caller's stream.
#pragma once

#include "device/accelerator.h"

namespace hmc {

class Accelerator::Point final : public StreamPoint {
 public:
  Point(Accelerator& runtime, PerDevice& device, VendorEvent event) noexcept : runtime_(runtime), device_(device), event_(event) {}
  // A wait that was queued keeps what the event stood for; the event may be recorded anew.
  ~Point() override {
    const std::scoped_lock lock(device_.mutex);
    device_.free_events.push_back(event_);
  }
  [[nodiscard]] VendorEvent event() const noexcept { return event_; }
  [[nodiscard]] Result<bool> reached() override {
    const int code = runtime_.calls_.streams->query(event_);
    const VendorCodes& codes = runtime_.calls_.traits.codes;
    if (code == codes.not_ready[0] || code == codes.not_ready[1]) return false;
    if (code != 0) return runtime_.failure("the caller's stream of " + runtime_.vendor_, code);
    return true;
  }

 private:
  Accelerator& runtime_;
  PerDevice& device_;
  const VendorEvent event_;
};

}  // namespace hmc
