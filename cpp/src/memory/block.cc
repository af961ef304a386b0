#include "memory/block.h"

#include <utility>

#include "memory/own_blocks.h"

namespace hmc {

MemoryBlock::MemoryBlock(std::unique_ptr<Allocation> allocation)
    : span_(allocation->span()), allocation_(std::move(allocation)), shareable_(allocation_->shareable()) {}

MemoryBlock::MemoryBlock(DeviceSpan span, std::function<void()> keep_alive, bool read_only)
    : span_(span), keep_alive_(std::move(keep_alive)), read_only_(read_only) {}

MemoryBlock::~MemoryBlock() {
  if (shareable_ && span_.bytes > 0) remove_own_block(*this);  // before its address is another's
  if (keep_alive_) keep_alive_();
}

void MemoryBlock::pin_for(const Device& device) {
  if (owned() && span_.device.is_cpu()) pins_.pin_for(device, {span_, allocation_});
}

Result<Blob> MemoryBlock::export_handle(HandleKind kind) const {
  if (allocation_ == nullptr) return Status(Code::unsupported, "memory that HMC did not allocate has no handle to share");
  return allocation_->export_handle(kind);
}

}  // namespace hmc
