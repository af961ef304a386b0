// ExchangeKernel: a rank's share of a reduction over mapped memory, as one kernel. For runtimes that load and launch kernels as
// CUDA's driver does.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "device/kernel_api.h"
#include "device/vendor_calls.h"

namespace hmc {

// One kernel for each element type, loaded into a device's context at first use. Any thread.
class ExchangeKernel final : public VendorExchange {
 public:
  using MakeImage = std::function<kernel::Image(int device, DataType type)>;
  using Allocate = std::function<int(std::size_t bytes, void*& data)>;
  // Both are called with the device current. `allocate`: as VendorExchange::allocate().
  ExchangeKernel(const kernel::Api& api, kernel::Vendor vendor, MakeImage image, Allocate allocate)
      : api_(api), vendor_(std::move(vendor)), image_(std::move(image)), allocate_(std::move(allocate)) {}

  bool prepared(int index, DataType type) override { return kernels_.found(index, type); }
  int prepare(int index, DataType type) override { return kernel_of(index, type).code; }
  int allocate(std::size_t bytes, void*& data) override { return allocate_(bytes, data); }
  int allocate_words(std::size_t bytes, void*& data) override;
  int run(int index, const ExchangeCall& call, VendorStream stream) override;

 private:
  kernel::Loaded kernel_of(int device, DataType type);

  const kernel::Api& api_;
  const kernel::Vendor vendor_;
  const MakeImage image_;
  const Allocate allocate_;
  kernel::TypedKernels kernels_;
};

// "hmc_mapped_bf16"
[[nodiscard]] std::string name_of_exchange_kernel(DataType type);

}  // namespace hmc
