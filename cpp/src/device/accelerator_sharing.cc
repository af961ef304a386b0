// Accelerator: memory of other processes, and host memory that the copy engines reach.
#include <algorithm>

#include "base/wire.h"
#include "device/accelerator.h"

namespace hmc {

// Another process's allocation as mapped here, shared by every import of it.
class Accelerator::Mapping {
 public:
  Mapping(Accelerator& runtime, int index, void* base) noexcept : runtime_(runtime), index_(index), base_(base) {}
  ~Mapping() {
    if (runtime_.forked()) return;
    const DeviceScope scope(*runtime_.calls_.devices, index_);
    runtime_.calls_.handles->ipc_close(base_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  [[nodiscard]] std::byte* base() const noexcept { return static_cast<std::byte*>(base_); }

 private:
  Accelerator& runtime_;
  const int index_;
  void* const base_;
};

class Accelerator::Mapped final : public Allocation {
 public:
  Mapped(std::shared_ptr<Mapping> mapping, DeviceSpan span) noexcept : mapping_(std::move(mapping)), span_(span) {}
  [[nodiscard]] DeviceSpan span() const noexcept override { return span_; }

 private:
  const std::shared_ptr<Mapping> mapping_;
  const DeviceSpan span_;
};

Result<Blob> Accelerator::export_handle(const DeviceSpan& span, HandleKind kind) {
  HMC_TRY(open());
  switch (kind) {
    case HandleKind::ipc:
      return export_allocation(span);
    case HandleKind::chunks:
      return export_chunks(span);
    case HandleKind::dma_buf:
      return export_dma_buf(span);
    case HandleKind::memfd:
      break;
  }
  return Status(Code::unsupported, vendor_ + " memory lies in no memfd");
}

Result<std::unique_ptr<Allocation>> Accelerator::import_handle(int index, const Blob& blob, HandleKind kind) {
  HMC_TRY(device(index).status());
  if (kind == HandleKind::ipc) return import_allocation(index, blob);
  if (kind == HandleKind::chunks) return import_chunks(index, blob);
  return Status(Code::unsupported, vendor_ + " maps the vendor's handles only");
}

// bytes = wire{raw 64 handle, u64 offset of the span in its allocation, u64 bytes of the span, u64 id of the allocation}: an
// address that was freed and given out again has another id.
Result<Blob> Accelerator::export_allocation(const DeviceSpan& span) {
  VendorPointer owner;
  if (!calls_.memory->classify(span.data, owner) || owner.base == nullptr) {
    return Status(Code::invalid_argument, "the memory is not (or no longer) an allocation of " + vendor_);
  }
  IpcHandle handle{};
  const DeviceScope scope(*calls_.devices, owner.index);
  if (scope.code() != 0) return failure(name(owner.index) + " cannot be used", scope.code());
  if (const int code = calls_.handles->ipc_export(owner.base, handle); code != 0) {
    return failure("the vendor gives no handle of this allocation of " + name(owner.index), code);
  }
  Blob blob;
  const auto offset = static_cast<std::uint64_t>(static_cast<std::byte*>(span.data) - static_cast<std::byte*>(owner.base));
  WireWriter(blob.bytes).raw(handle).u64(offset).u64(span.bytes).u64(owner.id);
  return blob;
}

Result<std::unique_ptr<Allocation>> Accelerator::import_allocation(int index, const Blob& blob) {
  HMC_ASSIGN(const Device here, Device::parse(name(index)));
  WireReader reader(blob.bytes);
  IpcHandle handle{};
  std::ranges::copy(reader.raw(handle.size()), handle.begin());
  const std::uint64_t offset = reader.u64();
  const std::uint64_t bytes = reader.u64();
  const std::uint64_t id = reader.u64();
  if (!reader.finish() || !blob.fds.empty()) return Status(Code::protocol, "malformed handle of " + vendor_ + " memory");

  const std::scoped_lock lock(mutex_);
  std::erase_if(mappings_, [](const auto& entry) { return entry.second.expired(); });
  auto mapping = mappings_[{index, handle, id}].lock();
  if (!mapping) {
    const DeviceScope scope(*calls_.devices, index);
    if (scope.code() != 0) return failure(name(index) + " cannot be used", scope.code());
    void* base = nullptr;
    if (const int code = calls_.handles->ipc_open(handle, base); code != 0) {
      return failure("mapping a peer's memory on " + name(index) + " (its owner may have freed it or ended)", code);
    }
    mapping = std::make_shared<Mapping>(*this, index, base);
    mappings_[{index, handle, id}] = mapping;
  }
  VendorPointer whole;
  const bool known = calls_.memory->classify(mapping->base(), whole) && whole.bytes != 0;
  if (known && (offset > whole.bytes || bytes > whole.bytes - offset)) {
    return Status(Code::protocol, "the peer's memory is smaller than it claims");
  }
  const DeviceSpan span{mapping->base() + offset, bytes, here};
  return std::unique_ptr<Allocation>(std::make_unique<Mapped>(std::move(mapping), span));
}

Result<std::unique_ptr<HostPin>> Accelerator::pin_host(int index, const DeviceSpan& host, bool read_only) {
  class Pin final : public HostPin {
   public:
    Pin(Accelerator& runtime, int device, void* data) noexcept : runtime_(runtime), device_(device), data_(data) {}
    ~Pin() override {
      if (runtime_.forked()) return;
      const DeviceScope scope(*runtime_.calls_.devices, device_);
      runtime_.calls_.memory->unpin(data_);
    }

   private:
    Accelerator& runtime_;
    const int device_;
    void* const data_;
  };
  HMC_TRY(device(index).status());
  const DeviceScope scope(*calls_.devices, index);
  if (scope.code() != 0) return failure(name(index) + " cannot be used", scope.code());
  const int code = calls_.memory->pin(host.data, host.bytes, read_only);
  if (code != 0 && code == calls_.traits.codes.already_pinned) return std::make_unique<HostPin>();  // another's to unpin
  if (code != 0) {
    return failure("pinning " + std::to_string(host.bytes) + " bytes of host memory for " + vendor_, code);
  }
  return std::unique_ptr<HostPin>(std::make_unique<Pin>(*this, index, host.data));
}

}  // namespace hmc
