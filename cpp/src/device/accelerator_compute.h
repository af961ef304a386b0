// AcceleratorCompute: what the devices of an Accelerator compute, and its completions.
#pragma once

#include "device/accelerator_devices.h"
#include "device/accelerator_pages.h"
#include "device/accelerator_scratch.h"
#include "device/accelerator_sums.h"
#include "device/runtime.h"

namespace hmc {

// Kernels run on a stream of their own per device, made at first use, so they do not wait behind copies. Each DeviceExchange has
// another stream (accelerator_exchange.h). AcceleratorCopies::poll() ends what is over.
class AcceleratorCompute final : public DeviceCompute {
 public:
  // `runtime`: whose poll() that is.
  AcceleratorCompute(AcceleratorDevices& devices, DeviceRuntime& runtime) noexcept
      : devices_(devices),
        calls_(devices.calls()),
        runtime_(runtime),
        scratch_(devices),
        pages_(devices, scratch_, runtime),
        sums_(devices, scratch_, runtime) {}

  Status fill(const DeviceSpan& target, std::uint8_t value) override;
  Status prepare_reduction(int index, DataType type, std::size_t sources) override;
  Status reduce(const ReductionOp& op, Completion* done) override;
  Status prepare_exchange(int index, DataType type) override;
  Result<std::unique_ptr<DeviceExchange>> open_exchange(int index, std::uint32_t ranks) override;
  [[nodiscard]] bool keeps_memory() const noexcept override { return devices_.keeps(); }
  void release_memory() override { devices_.release_kept(); }
  [[nodiscard]] DevicePages* pages() noexcept override { return calls_.pages == nullptr ? nullptr : &pages_; }
  Result<bool> prepare_weighted_sum(int index, DataType type) override { return sums_.prepare(index, type); }
  Status weighted_sum(const WeightedSumOp& op) override { return sums_.run(op); }
  Status reach(int index, int other) override;

 private:
  // Loads the kernel that does `what` with elements of that type, where it is not. As AcceleratorDevices::load(). `kernels` may be
  // null: there are none.
  template <typename Kernels>
  Status prepare(Kernels* kernels, int index, DataType type, std::string_view what, std::chrono::milliseconds patience);

  AcceleratorDevices& devices_;
  const VendorCalls& calls_;
  DeviceRuntime& runtime_;
  AcceleratorScratch scratch_;
  AcceleratorPages pages_;
  AcceleratorSums sums_;
};

}  // namespace hmc
