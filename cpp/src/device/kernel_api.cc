#include "device/kernel_api.h"

#include <algorithm>

namespace hmc::kernel {
namespace {

// Between two attempts to load a kernel into a full device: each takes milliseconds.
constexpr auto retry_pause = std::chrono::seconds(1);

}  // namespace

void Api::load_cuda(const VendorLibrary& library) {
#define HMC_WANT(member, cuda, hip, ...) library.load(this->member, #cuda);
  HMC_KERNEL_CALLS(HMC_WANT)
#undef HMC_WANT
}

void Api::load_hip(const VendorLibrary& library) {
#define HMC_WANT(member, cuda, hip, ...) library.load(this->member, #hip);
  HMC_KERNEL_CALLS(HMC_WANT)
#undef HMC_WANT
}

bool Api::complete() const noexcept {
  bool all = true;
#define HMC_HAVE(member, ...) all = all && this->member != nullptr;
  HMC_KERNEL_CALLS(HMC_HAVE)
#undef HMC_HAVE
  return all;
}

void Loaded::load(const Api& api, const Vendor& vendor, const std::function<Image(int device)>& image, int device,
                  const char* name) {
  if (tried || (retry_at != decltype(retry_at){} && std::chrono::steady_clock::now() < retry_at)) return;
  code = vendor.unsupported;
  const Image made = api.complete() ? image(device) : Image{};
  tried = !made.pending;
  if (made.data == nullptr) return;
  Module module = nullptr;
  int found = 0;
  code = api.load_module(&module, made.data);
  if (code == 0) code = api.get_function(&function, module, name);
  if (code == 0) code = api.attribute(&found, vendor.multiprocessor_count, device);
  if (vendor.clear(code) != 0) {
    if (code == vendor.out_of_memory) {
      tried = false;
      retry_at = std::chrono::steady_clock::now() + retry_pause;
    }
    code = vendor.unsupported;  // callers do without
  }
  processors = static_cast<std::size_t>(std::max(1, found));
}

Loaded TypedKernels::find(int device, DataType type, const Load& load) {
  Entry* entry = nullptr;
  {
    const std::scoped_lock lock(mutex_);
    entry = &entries_[{device, type}];
  }
  const std::scoped_lock lock(entry->mutex);
  load(entry->kernel);
  return entry->kernel;
}

bool TypedKernels::found(int device, DataType type) {
  Entry* entry = nullptr;
  {
    const std::scoped_lock lock(mutex_);
    entry = &entries_[{device, type}];
  }
  const std::scoped_lock lock(entry->mutex);
  return entry->kernel.tried;
}

}  // namespace hmc::kernel
