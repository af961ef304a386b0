// MemoryBlock: the shared owner behind Memory handles.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>

#include "base/fd.h"
#include "device/host_pins.h"
#include "device/runtime.h"
#include "hmc/memory.h"

namespace hmc {

class MemoryBlock {
 public:
  explicit MemoryBlock(std::unique_ptr<Allocation> allocation);                    // owned
  MemoryBlock(DeviceSpan span, std::function<void()> keep_alive, bool read_only);  // wrapped
  ~MemoryBlock();
  MemoryBlock(const MemoryBlock&) = delete;
  MemoryBlock& operator=(const MemoryBlock&) = delete;

  [[nodiscard]] DeviceSpan span() const noexcept { return span_; }
  [[nodiscard]] bool shareable() const noexcept { return shareable_; }
  [[nodiscard]] bool read_only() const noexcept { return read_only_; }
  // Whether HMC allocated it: its pages hold nothing else.
  [[nodiscard]] bool owned() const noexcept { return allocation_ != nullptr; }
  // CPU memory that HMC allocated: pins all of it for copies of `device`'s vendor, until the block's end. Takes long the first
  // time; no engine lock. Memory of others is theirs to pin: where they copy a range of which we had pinned a part, the vendor
  // would refuse.
  void pin_for(const Device& device);
  // For a shareable block: {memfd} with bytes = wire{u64 size of the file, u64 offset of the block in it}. Else unsupported.
  [[nodiscard]] Result<Blob> export_handle(HandleKind kind) const;

 private:
  DeviceSpan span_;
  std::shared_ptr<Allocation> allocation_;  // and of what pins it
  std::function<void()> keep_alive_;
  bool shareable_ = false;
  bool read_only_ = false;
  HostPins pins_;
};

}  // namespace hmc
