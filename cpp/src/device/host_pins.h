// HostPins: one piece of host memory, pinned for the vendors whose devices copy from and to it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "device/runtime.h"

namespace hmc {

// Any thread; the first call for a vendor takes about 0.2 ms per MiB.
class HostPins {
 public:
  // Once per vendor; nothing for the CPU. `host` begins at a page, and its pages hold nothing else: a vendor refuses to copy a
  // range that is pinned in part (CUDA_ERROR_INVALID_VALUE), so pinning must not reach into memory that others copy. Where a vendor
  // refuses, its copies go through pageable memory, which is slower and said once.
  void pin_for(const Device& device, const HostPages& host);

 private:
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<HostPin>, std::less<>> pins_;  // by vendor; null: it refused
};

}  // namespace hmc
