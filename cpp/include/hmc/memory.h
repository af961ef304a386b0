// Memory: owner of bytes on one device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "hmc/device.h"
#include "hmc/export.h"
#include "hmc/status.h"

namespace hmc {

class MemoryBlock;  // the shared owner behind handles; defined in the memory layer

struct MemoryOptions {
  bool huge_pages = false;       // back host memory by huge pages; falls back to ordinary pages with one log line
  bool pinned = false;           // mlock host memory; out_of_memory with the limit to raise when refused
  std::size_t alignment = 4096;  // bytes, power of two, at most 2 MiB
};

// A handle to bytes on a device: a whole allocation or a slice of it. Copies of a handle share the bytes, and the bytes
// live until the last handle (or view, or operation under way) is gone.
// Thread rules: handles are values; concurrent access to the same bytes is the caller's to order.
class HMC_API Memory {
 public:
  Memory() noexcept = default;  // empty: size 0, no device

  // `bytes` may be 0. CPU memory is a sealed memfd, shareable with peers on the host and zero-filled.
  // Errors: out_of_memory, unsupported (no such device), invalid_argument.
  static Result<Memory> allocate(std::size_t bytes, Device device = Device::cpu(), const MemoryOptions& options = {});
  // In place over bytes that HMC does not own. `keep_alive` runs once when the last handle is gone (any thread, no lock held).
  // The owner is classified by asking the runtimes; `device` overrides when given. Where all of it lies in CPU memory that HMC
  // allocated, it is a slice of that: shareable, and alive for as long as the result is. Errors: device where the vendor of memory
  // that the CPU cannot read does not say whether it is its own; closed where such memory is of the parent of this forked process.
  static Result<Memory> wrap(void* data, std::size_t bytes, std::function<void()> keep_alive = {});
  static Result<Memory> wrap(void* data, std::size_t bytes, Device device, std::function<void()> keep_alive = {});
  // The same for memory that this process must not write: fill() and copies to them, a registration that peers may write, and get()
  // into it are refused.
  static Result<Memory> wrap_read_only(const void* data, std::size_t bytes, Device device, std::function<void()> keep_alive = {});

  [[nodiscard]] void* data() const noexcept;                         // address on its device; null when empty
  [[nodiscard]] std::size_t size() const noexcept { return size_; }  // bytes
  [[nodiscard]] Device device() const noexcept;
  [[nodiscard]] bool shareable() const noexcept;  // allocated by HMC, so peers on the host can map it
  [[nodiscard]] bool read_only() const noexcept;  // wrap_read_only(), or a slice of it
  [[nodiscard]] bool valid() const noexcept { return block_ != nullptr; }

  // A view of [offset, offset + bytes). Errors: invalid_argument when out of range.
  [[nodiscard]] Result<Memory> slice(std::size_t offset, std::size_t bytes) const;

  // Blocking copies between any two devices; sizes must be equal. Overlap within one allocation behaves like memmove. Errors of
  // these and of fill(): invalid_argument (other sizes, read-only memory).
  Status copy_from(const Memory& source) const;
  Status copy_to(const Memory& target) const { return target.copy_from(*this); }
  // Queues such a copy on a stream of the source's device and does not wait: a StreamMark made afterwards says when it is over,
  // until when both memories stay. This is memory of the CPU, which is pinned at the first such copy if HMC allocated it, or of the
  // same device. Errors also: unsupported (another device, no stream), device.
  Status queue_copy_from(const Memory& source, StreamHandle stream) const;
  Status copy_from_host(const void* source, std::size_t bytes, std::size_t offset = 0) const;
  Status copy_to_host(void* target, std::size_t bytes, std::size_t offset = 0) const;
  // Copies blocks of `bytes` bytes from source_offsets[i] of `source` to target_offsets[i] of this; blocking, any two devices.
  // Blocks written do not overlap each other or the blocks read. Beside a device, CPU memory that HMC allocated is pinned at the
  // first such copy. Errors also: a block outside its memory, lists of different lengths.
  Status copy_blocks_from(const Memory& source, std::span<const std::uint64_t> source_offsets,
                          std::span<const std::uint64_t> target_offsets, std::size_t bytes) const;
  Status fill(std::uint8_t value) const;

  // Drops this handle's share. The bytes are freed when nobody else holds them.
  void reset() noexcept;

  [[nodiscard]] const std::shared_ptr<MemoryBlock>& block() const noexcept { return block_; }
  [[nodiscard]] std::size_t offset() const noexcept { return offset_; }  // within block()

 private:
  Memory(std::shared_ptr<MemoryBlock> block, std::size_t offset, std::size_t size) noexcept;
  std::shared_ptr<MemoryBlock> block_;
  std::size_t offset_ = 0;
  std::size_t size_ = 0;
};

}  // namespace hmc
