// DeviceOrder: the part of an operation that a device may carry out, for streams of that device that are to come after it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "hmc/device.h"
#include "hmc/memory.h"

namespace hmc {

class DeviceOrder {
 public:
  virtual ~DeviceOrder() = default;
  // Becomes 1, under the engine lock, once it is known whether a device does. Any thread.
  [[nodiscard]] virtual const std::atomic<std::uint32_t>& settled() const noexcept = 0;
  // So long a caller may wait for that, who otherwise has the host hold the stream. Engine lock held.
  [[nodiscard]] virtual std::chrono::microseconds patience() const = 0;
  // What is queued on `stream` of `device` from now on waits there for the operation. False: it is not carried out there. Engine
  // lock held.
  virtual bool order(const Device& device, StreamHandle stream) = 0;
};

}  // namespace hmc
