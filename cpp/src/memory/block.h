// MemoryBlock: the shared owner behind Memory handles.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>

#include "base/fd.h"
#include "device/runtime.h"
#include "hmc/memory.h"

namespace hmc {

class MemoryBlock {
 public:
  explicit MemoryBlock(std::unique_ptr<Allocation> allocation);    // owned
  MemoryBlock(DeviceSpan span, std::function<void()> keep_alive);  // wrapped
  ~MemoryBlock();
  MemoryBlock(const MemoryBlock&) = delete;
  MemoryBlock& operator=(const MemoryBlock&) = delete;

  [[nodiscard]] DeviceSpan span() const noexcept { return span_; }
  [[nodiscard]] bool shareable() const noexcept { return shareable_; }
  // For a shareable block: {memfd} with bytes = wire{u64 size of the file, u64 offset of the block in it}. Else unsupported.
  [[nodiscard]] Result<Blob> export_handle(HandleKind kind) const;

 private:
  DeviceSpan span_;
  std::unique_ptr<Allocation> allocation_;
  std::function<void()> keep_alive_;
  bool shareable_ = false;
};

}  // namespace hmc
