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

bool TypedKernels::found(int device, DataType type) {
  Entry& entry = entry_of(device, type);
  if (entry.settled.load(std::memory_order_acquire)) return true;
  const std::scoped_lock lock(entry.mutex);  // another thread may be loading it
  return entry.kernel.tried;
}

TypedKernels::Entry& TypedKernels::entry_of(int device, DataType type) {
  const auto find_from = [device](Row* row) {
    while (row != nullptr && row->device != device) row = row->next;
    return row;
  };
  Row* row = find_from(rows_.load(std::memory_order_acquire));
  if (row == nullptr) {
    const std::scoped_lock lock(mutex_);
    row = find_from(rows_.load(std::memory_order_relaxed));
    if (row == nullptr) {
      row = &stored_.emplace_back(device);
      row->next = rows_.load(std::memory_order_relaxed);
      rows_.store(row, std::memory_order_release);
    }
  }
  return row->entries[static_cast<std::size_t>(type)];
}

}  // namespace hmc::kernel
