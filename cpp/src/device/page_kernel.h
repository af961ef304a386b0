// PageKernel: digests and conversions of pages that one device reaches, in one kernel launch. For runtimes that load and launch
// kernels as CUDA's driver does.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "device/kernel_api.h"
#include "device/vendor_calls.h"

namespace hmc {

// A kernel of kernels/pages.cu.
struct PageKernelId {
  bool converts = false;
  DataType type = DataType::bf16;  // of the source; of a digest: one of its size, f8_e4m3fn, bf16 or f32

  [[nodiscard]] std::string name() const;        // "hmc_digest_2", "hmc_convert_bf16"
  [[nodiscard]] std::string definition() const;  // the line that defines it: "#define HMC_DIGEST_2"
};

// The kernels are loaded into a device's context at first use. Any thread.
class PageKernel final : public VendorPages {
 public:
  using MakeImage = std::function<kernel::Image(int device, PageKernelId id)>;
  // `image`: called with the device current.
  PageKernel(const kernel::Api& api, kernel::Vendor vendor, MakeImage image)
      : api_(api), vendor_(std::move(vendor)), image_(std::move(image)) {}

  bool prepared(int index, const PageCall& call) override;
  int prepare(int index, const PageCall& call) override;
  int run(int index, const PageCall& call, const PageTables& tables, VendorStream stream) override;

 private:
  kernel::Loaded kernel_of(int device, const PageCall& call);

  const kernel::Api& api_;
  const kernel::Vendor vendor_;
  const MakeImage image_;
  kernel::TypedKernels digests_, conversions_;
};

}  // namespace hmc
