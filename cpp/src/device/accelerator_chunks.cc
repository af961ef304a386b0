#include "device/accelerator_chunks.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/wire.h"

namespace hmc {
namespace {

// Another process's pieces, mapped side by side.
class MappedChunks final : public Allocation {
 public:
  MappedChunks(AcceleratorDevices& devices, std::vector<VendorChunk> chunks, DeviceSpan span) noexcept
      : devices_(devices), chunks_(std::move(chunks)), span_(span) {}
  ~MappedChunks() override {
    if (devices_.forked()) return;
    const DeviceScope scope(*devices_.calls().devices, span_.device.index());
    devices_.calls().chunks->unmap(chunks_);
  }
  [[nodiscard]] DeviceSpan span() const noexcept override { return span_; }
  Status allow(int index) override {
    HMC_TRY(devices_.device(index).status());
    const DeviceScope scope(*devices_.calls().devices, index);
    if (scope.code() != 0) return devices_.unusable(index, scope.code());
    const int code = devices_.calls().chunks->allow(index, chunks_);
    return code == 0 ? Status() : devices_.failure("letting " + devices_.name(index) + " reach a peer's memory", code);
  }

 private:
  AcceleratorDevices& devices_;
  const std::vector<VendorChunk> chunks_;
  const DeviceSpan span_;
};

// Pieces of this process.
class Held final : public HeldChunks {
 public:
  Held(const AcceleratorDevices& devices, int index) noexcept : devices_(devices), index_(index) {}
  ~Held() override {
    if (devices_.forked()) return;
    const DeviceScope scope(*devices_.calls().devices, index_);
    for (const VendorChunk& chunk : chunks_) devices_.calls().chunks->release(chunk);
  }
  [[nodiscard]] DeviceSpan span() const noexcept override {
    auto* const base = static_cast<std::byte*>(chunks_.front().base);
    return {base, static_cast<std::size_t>(static_cast<std::byte*>(chunks_.back().base) + chunks_.back().bytes - base), device_};
  }
  [[nodiscard]] bool in_place() override {
    const DeviceScope scope(*devices_.calls().devices, index_);
    return std::ranges::all_of(chunks_, [this](const VendorChunk& chunk) { return devices_.calls().chunks->in_place(chunk); });
  }
  Status take(const DeviceSpan& span);
  // bytes = wire{u64 offset of the span in the first piece, u64 bytes of the span, u32 pieces, u64 bytes of each}, a descriptor
  // each.
  Result<Blob> exported(const DeviceSpan& span);

 private:
  const AcceleratorDevices& devices_;
  const int index_;
  Device device_;
  std::vector<VendorChunk> chunks_;
};

Status Held::take(const DeviceSpan& span) {
  device_ = span.device;
  const DeviceScope scope(*devices_.calls().devices, index_);
  if (scope.code() != 0) return devices_.unusable(index_, scope.code());
  const auto* at = static_cast<const std::byte*>(span.data);
  const std::byte* const end = at + span.bytes;
  while (at < end) {
    if (chunks_.size() == max_blob_fds) {
      return Status(Code::unsupported, "the memory was mapped in more than " + std::to_string(max_blob_fds) +
                                           " pieces, each of which takes a descriptor; share it as several smaller buffers");
    }
    VendorChunk chunk;
    const VendorCalls& calls = devices_.calls();
    const int code = calls.chunks == nullptr ? calls.traits.codes.unsupported : calls.chunks->hold(at, chunk);
    if (code != 0) return devices_.failure("no descriptor can be had of this memory of " + devices_.name(index_), code);
    chunks_.push_back(chunk);
    at = static_cast<const std::byte*>(chunk.base) + chunk.bytes;
  }
  return chunks_.empty() ? Status(Code::invalid_argument, "memory of no bytes") : Status();
}

Result<Blob> Held::exported(const DeviceSpan& span) {
  Blob blob;
  const auto* const base = static_cast<const std::byte*>(chunks_.front().base);
  WireWriter writer(blob.bytes);
  writer.u64(static_cast<std::uint64_t>(static_cast<const std::byte*>(span.data) - base)).u64(span.bytes);
  writer.u32(static_cast<std::uint32_t>(chunks_.size()));
  const DeviceScope scope(*devices_.calls().devices, index_);
  for (VendorChunk& chunk : chunks_) {
    const int code = devices_.calls().chunks->export_descriptor(chunk);
    if (code != 0) return devices_.failure("no descriptor can be had of this memory of " + devices_.name(index_), code);
    blob.fds.emplace_back(std::exchange(chunk.descriptor, -1));
    writer.u64(chunk.bytes);
  }
  return blob;
}

Result<std::unique_ptr<Held>> take_hold(AcceleratorDevices& devices, const DeviceSpan& span) {
  HMC_TRY(devices.open());
  HMC_ASSIGN(const VendorPointer owner, allocation_at(devices, span.data));
  auto held = std::make_unique<Held>(devices, owner.index);
  HMC_TRY(held->take(span));
  return held;
}

}  // namespace

Result<std::unique_ptr<HeldChunks>> AcceleratorChunks::hold(const DeviceSpan& span) {
  HMC_ASSIGN(auto held, take_hold(devices_, span));
  return std::unique_ptr<HeldChunks>(std::move(held));
}

Result<Blob> AcceleratorChunks::export_handle(const DeviceSpan& span) {
  HMC_ASSIGN(const auto held, take_hold(devices_, span));
  return held->exported(span);
}

Result<std::unique_ptr<Allocation>> AcceleratorChunks::import_handle(int index, const Blob& blob) {
  HMC_ASSIGN(const Device here, Device::parse(devices_.name(index)));
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
    return Status(Code::protocol, "malformed description of " + devices_.vendor() + " memory in pieces");
  }
  if (blob.fds.size() != count) {
    return Status(Code::unsupported, "of " + std::to_string(count) + " descriptors " + std::to_string(blob.fds.size()) +
                                         " came; this process may be at its limit (ulimit -n)");
  }
  for (std::size_t i = 0; i < count; ++i) chunks[i].descriptor = blob.fds[i].get();
  const DeviceScope scope(*devices_.calls().devices, index);
  if (scope.code() != 0) return devices_.unusable(index, scope.code());
  const VendorCalls& calls = devices_.calls();
  const int code = calls.chunks == nullptr ? calls.traits.codes.unsupported : calls.chunks->map(index, chunks);
  if (code != 0) return devices_.failure("mapping a peer's memory on " + devices_.name(index), code);
  const DeviceSpan span{static_cast<std::byte*>(chunks.front().base) + offset, bytes, here};
  return std::unique_ptr<Allocation>(std::make_unique<MappedChunks>(devices_, std::move(chunks), span));
}

}  // namespace hmc
