// AcceleratorExchange: the DeviceExchange of an Accelerator.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "device/accelerator_devices.h"
#include "device/runtime.h"

namespace hmc {

class AcceleratorExchange final : public DeviceExchange {
 public:
  static Result<std::unique_ptr<AcceleratorExchange>> open(AcceleratorDevices& devices, int index, std::uint32_t ranks);
  ~AcceleratorExchange() override;
  AcceleratorExchange(const AcceleratorExchange&) = delete;
  AcceleratorExchange& operator=(const AcceleratorExchange&) = delete;

  [[nodiscard]] DeviceSpan segment() const noexcept override { return segment_; }
  [[nodiscard]] bool is_held_up() override { return !std::unique_lock(device_.loading, std::try_to_lock).owns_lock(); }
  Status run(ExchangeCall call, const std::array<const StreamPoint*, 2>& after, Completion* done) override;
  Status order(StreamHandle stream) override;
  void end_kernels() noexcept override { ended_->store(1, std::memory_order_release); }
  [[nodiscard]] bool ended() const noexcept { return ended_ != nullptr && ended_->load(std::memory_order_relaxed) != 0; }

 private:
  using Word = std::atomic<std::uint32_t>;
  AcceleratorExchange(AcceleratorDevices& devices, AcceleratorDevice& device) noexcept : devices_(devices), device_(device) {}

  AcceleratorDevices& devices_;
  AcceleratorDevice& device_;
  DeviceSpan segment_;
  CopyStream* stream_ = nullptr;
  Word* ended_ = nullptr;  // in memory that the device reads
};

}  // namespace hmc
