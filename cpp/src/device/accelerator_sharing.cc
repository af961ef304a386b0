#include "device/accelerator_sharing.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/wire.h"

namespace hmc {

// Another process's allocation as mapped here, shared by every import of it.
class AcceleratorSharing::Mapping {
 public:
  Mapping(AcceleratorDevices& devices, int index, void* base) noexcept : devices_(devices), index_(index), base_(base) {}
  ~Mapping() {
    if (!devices_.forked()) devices_.release(index_, {base_, ReleasedMemory::Kind::mapped, {}});
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  [[nodiscard]] std::byte* base() const noexcept { return static_cast<std::byte*>(base_); }

 private:
  AcceleratorDevices& devices_;
  const int index_;
  void* const base_;
};

class AcceleratorSharing::Mapped final : public Allocation {
 public:
  Mapped(std::shared_ptr<Mapping> mapping, DeviceSpan span) noexcept : mapping_(std::move(mapping)), span_(span) {}
  [[nodiscard]] DeviceSpan span() const noexcept override { return span_; }

 private:
  const std::shared_ptr<Mapping> mapping_;
  const DeviceSpan span_;
};

namespace {

// Host memory that this process has pinned.
class Pin final : public HostPin {
 public:
  Pin(AcceleratorDevices& devices, PinnedRanges& ranges, int device, void* data, std::shared_ptr<const void> pages) noexcept
      : devices_(devices), ranges_(ranges), device_(device), data_(data), pages_(std::move(pages)) {}
  ~Pin() override {
    if (devices_.forked()) return;
    ranges_.remove(data_);
    devices_.release(device_, {data_, ReleasedMemory::Kind::pinned, std::move(pages_)});
  }

 private:
  AcceleratorDevices& devices_;
  PinnedRanges& ranges_;
  const int device_;
  void* const data_;
  std::shared_ptr<const void> pages_;
};

}  // namespace

Result<Blob> AcceleratorSharing::export_handle(const DeviceSpan& span, HandleKind kind) {
  HMC_TRY(devices_.open());
  switch (kind) {
    case HandleKind::ipc:
      return export_allocation(span);
    case HandleKind::chunks:
      return chunks_.export_handle(span);
    case HandleKind::dma_buf:
      return export_dma_buf(span);
    case HandleKind::memfd:
      break;
  }
  return Status(Code::unsupported, devices_.vendor() + " memory lies in no memfd");
}

Result<std::unique_ptr<Allocation>> AcceleratorSharing::import_handle(int index, const Blob& blob, HandleKind kind) {
  HMC_TRY(devices_.device(index).status());
  if (kind == HandleKind::ipc) return import_allocation(index, blob);
  if (kind == HandleKind::chunks) return chunks_.import_handle(index, blob);
  return Status(Code::unsupported, devices_.vendor() + " maps the vendor's handles only");
}

// bytes = wire{raw 64 handle, u64 offset of the span in its allocation, u64 bytes of the span, u64 id of the allocation}: an
// address that was freed and given out again has another id.
Result<Blob> AcceleratorSharing::export_allocation(const DeviceSpan& span) {
  HMC_ASSIGN(const VendorPointer owner, allocation_at(devices_, span.data));
  if (owner.base == nullptr) return Status(Code::device, devices_.vendor() + " does not say where the allocation begins");
  IpcHandle handle{};
  const DeviceScope scope(*devices_.calls().devices, owner.index);
  if (scope.code() != 0) return devices_.unusable(owner.index, scope.code());
  if (const int code = devices_.calls().handles->ipc_export(owner.base, handle); code != 0) {
    return devices_.failure("the vendor gives no handle of this allocation of " + devices_.name(owner.index), code);
  }
  Blob blob;
  const auto offset = static_cast<std::uint64_t>(static_cast<std::byte*>(span.data) - static_cast<std::byte*>(owner.base));
  WireWriter(blob.bytes).raw(handle).u64(offset).u64(span.bytes).u64(owner.id);
  return blob;
}

Result<std::unique_ptr<Allocation>> AcceleratorSharing::import_allocation(int index, const Blob& blob) {
  HMC_ASSIGN(const Device here, Device::parse(devices_.name(index)));
  WireReader reader(blob.bytes);
  IpcHandle handle{};
  std::ranges::copy(reader.raw(handle.size()), handle.begin());
  const std::uint64_t offset = reader.u64();
  const std::uint64_t bytes = reader.u64();
  const std::uint64_t id = reader.u64();
  if (!reader.finish() || !blob.fds.empty()) return Status(Code::protocol, "malformed handle of " + devices_.vendor() + " memory");

  const std::scoped_lock lock(mutex_);
  std::erase_if(mappings_, [](const auto& entry) { return entry.second.expired(); });
  auto mapping = mappings_[{index, handle, id}].lock();
  if (!mapping) {
    const DeviceScope scope(*devices_.calls().devices, index);
    if (scope.code() != 0) return devices_.unusable(index, scope.code());
    void* base = nullptr;
    if (const int code = devices_.calls().handles->ipc_open(handle, base); code != 0) {
      return devices_.failure("mapping a peer's memory on " + devices_.name(index) + " (its owner may have freed it or ended)",
                              code);
    }
    mapping = std::make_shared<Mapping>(devices_, index, base);
    mappings_[{index, handle, id}] = mapping;
  }
  HMC_ASSIGN(const auto whole, devices_.find(mapping->base()));
  const bool known = whole && whole->bytes != 0;
  if (known && (offset > whole->bytes || bytes > whole->bytes - offset)) {
    return Status(Code::protocol, "the peer's memory is smaller than it claims");
  }
  const DeviceSpan span{mapping->base() + offset, bytes, here};
  return std::unique_ptr<Allocation>(std::make_unique<Mapped>(std::move(mapping), span));
}

// bytes = wire{u64 offset of the span in the dma-buf, u64 bytes of the span}.
Result<Blob> AcceleratorSharing::export_dma_buf(const DeviceSpan& span) {
  HMC_ASSIGN(const VendorPointer owner, allocation_at(devices_, span.data));
  const DeviceScope scope(*devices_.calls().devices, owner.index);
  if (scope.code() != 0) return devices_.unusable(owner.index, scope.code());
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<std::uintptr_t>(span.data);
  const std::uintptr_t first = start / page * page;
  const std::uintptr_t last = (start + span.bytes + page - 1) / page * page;
  int descriptor = -1;
  std::uint64_t offset = 0;
  const int code = devices_.calls().handles->dma_buf(owner.index, reinterpret_cast<void*>(first), last - first, descriptor, offset);
  if (code != 0) {
    const Status refused = devices_.failure("no dma-buf can be had of memory of " + devices_.name(owner.index), code);
    return Status(Code::unsupported, std::string(refused.message()), code);
  }
  Blob blob;
  blob.fds.emplace_back(descriptor);
  WireWriter(blob.bytes).u64(offset + (start - first)).u64(span.bytes);
  return blob;
}

Result<std::unique_ptr<HostPin>> AcceleratorSharing::pin_host(int index, const HostPages& host) {
  HMC_TRY(devices_.device(index).status());
  const DeviceScope scope(*devices_.calls().devices, index);
  if (scope.code() != 0) return devices_.unusable(index, scope.code());
  const int code = devices_.calls().memory->pin(host.span.data, host.span.bytes, host.read_only);
  if (code != 0 && code == devices_.calls().traits.codes.already_pinned) return std::make_unique<HostPin>();  // another's to unpin
  if (code != 0) {
    return devices_.failure("pinning " + std::to_string(host.span.bytes) + " bytes of host memory for " + devices_.vendor(), code);
  }
  auto pin = std::make_unique<Pin>(devices_, pinned_, index, host.span.data, host.owner);
  if (devices_.calls().memory->kernels_reach(host.span.data)) pinned_.add(host.span.data, host.span.bytes);
  return std::unique_ptr<HostPin>(std::move(pin));
}

}  // namespace hmc
