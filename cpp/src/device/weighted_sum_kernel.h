// WeightedSumKernel: weighted sums of rows in memory that one device reaches, in one kernel launch. For runtimes that load and
// launch kernels as CUDA's driver does.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "device/kernel_api.h"
#include "device/vendor_calls.h"

namespace hmc {

// One kernel for each floating type of at most 32 bits, loaded into a device's context at first use. Any thread.
class WeightedSumKernel final : public VendorWeightedSums {
 public:
  using MakeImage = std::function<kernel::Image(int device, DataType type)>;
  // `image`: called with the device current.
  WeightedSumKernel(const kernel::Api& api, kernel::Vendor vendor, MakeImage image)
      : api_(api), vendor_(std::move(vendor)), image_(std::move(image)) {}

  bool prepared(int index, DataType type) override { return kernels_.found(index, type); }
  int prepare(int index, DataType type) override;
  int run(int index, const VendorWeightedSum& sum, VendorStream stream) override;

 private:
  kernel::Loaded kernel_of(int device, DataType type);

  const kernel::Api& api_;
  const kernel::Vendor vendor_;
  const MakeImage image_;
  kernel::TypedKernels kernels_;
};

// "hmc_weighted_sum_bf16"
[[nodiscard]] std::string name_of_weighted_sum_kernel(DataType type);

}  // namespace hmc
