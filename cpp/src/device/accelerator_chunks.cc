// Accelerator: memory that has no IPC handle as a whole. Pieces of virtual memory, and dma-bufs for network cards.
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/wire.h"
#include "device/accelerator.h"

namespace hmc {

// Another process's pieces, mapped side by side.
class Accelerator::MappedChunks final : public Allocation {
 public:
  MappedChunks(Accelerator& runtime, std::vector<VendorChunk> chunks, DeviceSpan span) noexcept
      : runtime_(runtime), chunks_(std::move(chunks)), span_(span) {}
  ~MappedChunks() override {
    if (runtime_.forked()) return;
    const DeviceScope scope(*runtime_.calls_.devices, span_.device.index());
    runtime_.calls_.chunks->unmap(chunks_);
  }
  [[nodiscard]] DeviceSpan span() const noexcept override { return span_; }
  Status allow(int index) override {
    HMC_TRY(runtime_.device(index).status());
    const DeviceScope scope(*runtime_.calls_.devices, index);
    if (scope.code() != 0) return runtime_.failure(runtime_.name(index) + " cannot be used", scope.code());
    const int code = runtime_.calls_.chunks->allow(index, chunks_);
    return code == 0 ? Status() : runtime_.failure("letting " + runtime_.name(index) + " reach a peer's memory", code);
  }

 private:
  Accelerator& runtime_;
  const std::vector<VendorChunk> chunks_;
  const DeviceSpan span_;
};

// Pieces of this process.
class Accelerator::Held final : public HeldChunks {
 public:
  Held(Accelerator& runtime, int index) noexcept : runtime_(runtime), index_(index) {}
  ~Held() override {
    if (runtime_.forked()) return;
    const DeviceScope scope(*runtime_.calls_.devices, index_);
    for (const VendorChunk& chunk : chunks_) runtime_.calls_.chunks->release(chunk);
  }
  [[nodiscard]] DeviceSpan span() const noexcept override {
    auto* const base = static_cast<std::byte*>(chunks_.front().base);
    return {base, static_cast<std::size_t>(static_cast<std::byte*>(chunks_.back().base) + chunks_.back().bytes - base), device_};
  }
  [[nodiscard]] bool in_place() override {
    const DeviceScope scope(*runtime_.calls_.devices, index_);
    return std::ranges::all_of(chunks_, [this](const VendorChunk& chunk) { return runtime_.calls_.chunks->in_place(chunk); });
  }
  Status take(const DeviceSpan& span);
  // bytes = wire{u64 offset of the span in the first piece, u64 bytes of the span, u32 pieces, u64 bytes of each}, a descriptor
  // each.
  Result<Blob> exported(const DeviceSpan& span);

 private:
  Accelerator& runtime_;
  const int index_;
  Device device_;
  std::vector<VendorChunk> chunks_;
};

Status Accelerator::Held::take(const DeviceSpan& span) {
  device_ = span.device;
  const DeviceScope scope(*runtime_.calls_.devices, index_);
  if (scope.code() != 0) return runtime_.failure(runtime_.name(index_) + " cannot be used", scope.code());
  const auto* at = static_cast<const std::byte*>(span.data);
  const std::byte* const end = at + span.bytes;
  while (at < end) {
    if (chunks_.size() == max_blob_fds) {
      return Status(Code::unsupported, "the memory was mapped in more than " + std::to_string(max_blob_fds) +
                                           " pieces, each of which takes a descriptor; share it as several smaller buffers");
    }
    VendorChunk chunk;
    const VendorCalls& calls = runtime_.calls_;
    const int code = calls.chunks == nullptr ? calls.traits.codes.unsupported : calls.chunks->hold(at, chunk);
    if (code != 0) return runtime_.failure("no descriptor can be had of this memory of " + runtime_.name(index_), code);
    chunks_.push_back(chunk);
    at = static_cast<const std::byte*>(chunk.base) + chunk.bytes;
  }
  return chunks_.empty() ? Status(Code::invalid_argument, "memory of no bytes") : Status();
}

Result<Blob> Accelerator::Held::exported(const DeviceSpan& span) {
  Blob blob;
  const auto* const base = static_cast<const std::byte*>(chunks_.front().base);
  WireWriter writer(blob.bytes);
  writer.u64(static_cast<std::uint64_t>(static_cast<const std::byte*>(span.data) - base)).u64(span.bytes);
  writer.u32(static_cast<std::uint32_t>(chunks_.size()));
  const DeviceScope scope(*runtime_.calls_.devices, index_);
  for (VendorChunk& chunk : chunks_) {
    const int code = runtime_.calls_.chunks->export_descriptor(chunk);
    if (code != 0) return runtime_.failure("no descriptor can be had of this memory of " + runtime_.name(index_), code);
    blob.fds.emplace_back(std::exchange(chunk.descriptor, -1));
    writer.u64(chunk.bytes);
  }
  return blob;
}

Result<std::unique_ptr<Accelerator::Held>> Accelerator::take_hold(const DeviceSpan& span) {
  HMC_TRY(open());
  VendorPointer owner;
  if (!calls_.memory->classify(span.data, owner)) {
    return Status(Code::invalid_argument, "the memory is not (or no longer) an allocation of " + vendor_);
  }
  auto held = std::make_unique<Held>(*this, owner.index);
  HMC_TRY(held->take(span));
  return held;
}

Result<std::unique_ptr<HeldChunks>> Accelerator::hold_chunks(const DeviceSpan& span) {
  HMC_ASSIGN(auto held, take_hold(span));
  return std::unique_ptr<HeldChunks>(std::move(held));
}

Result<Blob> Accelerator::export_chunks(const DeviceSpan& span) {
  HMC_ASSIGN(const auto held, take_hold(span));
  return held->exported(span);
}

Result<std::unique_ptr<Allocation>> Accelerator::import_chunks(int index, const Blob& blob) {
  HMC_ASSIGN(const Device here, Device::parse(name(index)));
  WireReader reader(blob.bytes);
  const std::uint64_t offset = reader.u64();
  const std::uint64_t bytes = reader.u64();
  const std::size_t count = reader.u32();
  if (count > max_blob_fds) reader.fail();
  std::vector<VendorChunk> chunks(reader.ok() ? count : 0);
  std::uint64_t room = 0;
  for (VendorChunk& chunk : chunks) {
    chunk.bytes = reader.u64();
    if (chunk.bytes == 0 || chunk.bytes > std::numeric_limits<std::int64_t>::max() - room) reader.fail();
    room += chunk.bytes;
  }
  if (!reader.finish() || chunks.empty() || offset > room || bytes > room - offset) {
    return Status(Code::protocol, "malformed description of " + vendor_ + " memory in pieces");
  }
  if (blob.fds.size() != count) {
    return Status(Code::unsupported, "of " + std::to_string(count) + " descriptors " + std::to_string(blob.fds.size()) +
                                         " came; this process may be at its limit (ulimit -n)");
  }
  for (std::size_t i = 0; i < count; ++i) chunks[i].descriptor = blob.fds[i].get();
  const DeviceScope scope(*calls_.devices, index);
  if (scope.code() != 0) return failure(name(index) + " cannot be used", scope.code());
  const int code = calls_.chunks == nullptr ? calls_.traits.codes.unsupported : calls_.chunks->map(index, chunks);
  if (code != 0) {
    return failure("mapping a peer's memory on " + name(index), code);
  }
  const DeviceSpan span{static_cast<std::byte*>(chunks.front().base) + offset, bytes, here};
  return std::unique_ptr<Allocation>(std::make_unique<MappedChunks>(*this, std::move(chunks), span));
}

// bytes = wire{u64 offset of the span in the dma-buf, u64 bytes of the span}.
Result<Blob> Accelerator::export_dma_buf(const DeviceSpan& span) {
  VendorPointer owner;
  if (!calls_.memory->classify(span.data, owner)) {
    return Status(Code::invalid_argument, "the memory is not (or no longer) an allocation of " + vendor_);
  }
  const DeviceScope scope(*calls_.devices, owner.index);
  if (scope.code() != 0) return failure(name(owner.index) + " cannot be used", scope.code());
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<std::uintptr_t>(span.data);
  const std::uintptr_t first = start / page * page;
  const std::uintptr_t last = (start + span.bytes + page - 1) / page * page;
  int descriptor = -1;
  std::uint64_t offset = 0;
  const int code = calls_.handles->dma_buf(owner.index, reinterpret_cast<void*>(first), last - first, descriptor, offset);
  if (code != 0) {
    const Status refused = failure("no dma-buf can be had of memory of " + name(owner.index), code);
    return Status(Code::unsupported, std::string(refused.message()), code);
  }
  Blob blob;
  blob.fds.emplace_back(descriptor);
  WireWriter(blob.bytes).u64(offset + (start - first)).u64(span.bytes);
  return blob;
}

}  // namespace hmc
