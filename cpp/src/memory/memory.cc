#include "hmc/memory.h"

#include <cstring>

#include "memory/block.h"
#include "memory/own_blocks.h"

namespace hmc {
namespace {

DeviceSpan span_of(const Memory& memory) { return {memory.data(), memory.size(), memory.device()}; }

Status out_of_range(std::size_t offset, std::size_t bytes, std::size_t size) {
  return Status(Code::invalid_argument, "bytes " + std::to_string(offset) + " to " + std::to_string(offset) + "+" +
                                            std::to_string(bytes) + " lie outside a memory of " + std::to_string(size) + " bytes");
}

Result<std::shared_ptr<MemoryBlock>> wrapped(void* data, std::size_t bytes, Device device, std::function<void()> keep_alive,
                                             bool read_only) {
  if (data == nullptr && bytes > 0)
    return Status(Code::invalid_argument, "wrapping a null pointer as " + std::to_string(bytes) + " bytes");
  return std::make_shared<MemoryBlock>(DeviceSpan{data, bytes, device}, std::move(keep_alive), read_only);
}

// Ends a handle to a block that was found by address: first what its user keeps alive, then this share of the block.
struct KeptAlive {
  std::shared_ptr<MemoryBlock> block;
  std::function<void()> end;
  void operator()(MemoryBlock* /*same*/) {
    if (end) end();
    block.reset();
  }
};

Status check_writable(const Memory& target) {
  if (!target.read_only()) return {};
  return Status(Code::invalid_argument,
                "writing " + std::to_string(target.size()) + " bytes to read-only memory; wrap memory that may be written");
}

bool outside(std::size_t offset, std::size_t bytes, std::size_t size) { return offset > size || bytes > size - offset; }

Status check_blocks(const Memory& memory, std::span<const std::uint64_t> offsets, std::size_t bytes) {
  for (const std::uint64_t offset : offsets) {
    if (outside(offset, bytes, memory.size())) return out_of_range(offset, bytes, memory.size());
  }
  return {};
}

}  // namespace

Memory::Memory(std::shared_ptr<MemoryBlock> block, std::size_t offset, std::size_t size) noexcept
    : block_(std::move(block)), offset_(offset), size_(size) {}

Result<Memory> Memory::allocate(std::size_t bytes, Device device, const MemoryOptions& options) {
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(device));
  HMC_ASSIGN(auto allocation, runtime->allocate(device.index(), bytes, options));
  auto block = std::make_shared<MemoryBlock>(std::move(allocation));
  if (block->shareable() && bytes > 0) add_own_block(block);
  return Memory(std::move(block), 0, bytes);
}

Result<Memory> Memory::wrap(void* data, std::size_t bytes, std::function<void()> keep_alive) {
  HMC_ASSIGN(const PointerInfo found, classify_pointer(data, bytes));
  return wrap(data, bytes, found.device, std::move(keep_alive));
}

Result<Memory> Memory::wrap(void* data, std::size_t bytes, Device device, std::function<void()> keep_alive) {
  if (auto own = device.is_cpu() && bytes > 0 ? own_block_of(data, bytes) : nullptr) {
    const auto offset = static_cast<std::size_t>(static_cast<std::byte*>(data) - static_cast<std::byte*>(own->span().data));
    MemoryBlock* const block = own.get();
    return Memory(std::shared_ptr<MemoryBlock>(block, KeptAlive{std::move(own), std::move(keep_alive)}), offset, bytes);
  }
  HMC_ASSIGN(auto block, wrapped(data, bytes, device, std::move(keep_alive), false));
  return Memory(std::move(block), 0, bytes);
}

Result<Memory> Memory::wrap_read_only(const void* data, std::size_t bytes, Device device, std::function<void()> keep_alive) {
  HMC_ASSIGN(auto block, wrapped(const_cast<void*>(data), bytes, device, std::move(keep_alive), true));
  return Memory(std::move(block), 0, bytes);
}

void* Memory::data() const noexcept { return block_ ? static_cast<std::byte*>(block_->span().data) + offset_ : nullptr; }

Device Memory::device() const noexcept { return block_ ? block_->span().device : Device::cpu(); }

bool Memory::shareable() const noexcept { return block_ && block_->shareable(); }

Result<Memory> Memory::slice(std::size_t offset, std::size_t bytes) const {
  if (outside(offset, bytes, size_)) return out_of_range(offset, bytes, size_);
  return Memory(block_, offset_ + offset, bytes);
}

bool Memory::read_only() const noexcept { return block_ && block_->read_only(); }

Status Memory::copy_from(const Memory& source) const {
  HMC_TRY(check_writable(*this));
  return copy_blocking(span_of(*this), span_of(source));
}

Status Memory::queue_copy_from(const Memory& source, StreamHandle stream) const {
  HMC_TRY(check_writable(*this));
  if (size() != source.size()) {
    return Status(Code::invalid_argument,
                  "copy of " + std::to_string(source.size()) + " bytes into " + std::to_string(size()) + ": sizes must be equal");
  }
  if (stream == no_stream || source.device().is_cpu() || !(device().is_cpu() || device() == source.device())) {
    return Status(Code::unsupported, "a copy from " + source.device().str() + " to " + device().str() + " is queued on no stream");
  }
  if (size() == 0) return {};
  block_->pin_for(source.device());
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(source.device()));
  return runtime->streams().queue_copy(source.device().index(), stream, span_of(*this), span_of(source));
}

Status Memory::copy_blocks_from(const Memory& source, std::span<const std::uint64_t> source_offsets,
                                std::span<const std::uint64_t> target_offsets, std::size_t bytes) const {
  HMC_TRY(check_writable(*this));
  if (source_offsets.size() != target_offsets.size()) {
    return Status(Code::invalid_argument, "copying blocks: " + std::to_string(source_offsets.size()) + " source offsets and " +
                                              std::to_string(target_offsets.size()) + " target offsets; pass as many of each");
  }
  if (bytes == 0 || source_offsets.empty()) return {};
  HMC_TRY(check_blocks(source, source_offsets, bytes));
  HMC_TRY(check_blocks(*this, target_offsets, bytes));
  if (!device().is_cpu()) source.block_->pin_for(device());
  if (!source.device().is_cpu()) block_->pin_for(source.device());
  return copy_blocking({.target = span_of(*this),
                        .source = span_of(source),
                        .source_offsets = source_offsets.data(),
                        .target_offsets = target_offsets.data(),
                        .blocks = source_offsets.size(),
                        .block_bytes = bytes});
}

Status Memory::copy_from_host(const void* source, std::size_t bytes, std::size_t offset) const {
  HMC_TRY(check_writable(*this));
  HMC_ASSIGN(const Memory target, slice(offset, bytes));
  return copy_blocking(span_of(target), {const_cast<void*>(source), bytes, Device::cpu()});  // only read
}

Status Memory::copy_to_host(void* target, std::size_t bytes, std::size_t offset) const {
  HMC_ASSIGN(const Memory source, slice(offset, bytes));
  return copy_blocking({target, bytes, Device::cpu()}, span_of(source));
}

Status Memory::fill(std::uint8_t value) const {
  HMC_TRY(check_writable(*this));
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(device()));
  return runtime->compute().fill(span_of(*this), value);
}

void Memory::reset() noexcept {
  block_.reset();
  offset_ = size_ = 0;
}

}  // namespace hmc
