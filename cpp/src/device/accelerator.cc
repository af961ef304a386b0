#include "device/accelerator.h"

#include <algorithm>

namespace hmc {
namespace {

// Memory that HMC has allocated on a device.
class OwnedMemory final : public Allocation {
 public:
  OwnedMemory(AcceleratorDevices& devices, MemorySharing& sharing, DeviceSpan span) noexcept
      : devices_(devices), sharing_(sharing), span_(span) {}
  ~OwnedMemory() override {
    if (!devices_.forked()) devices_.release(span_.device.index(), {span_.data});
  }
  [[nodiscard]] DeviceSpan span() const noexcept override { return span_; }
  [[nodiscard]] Result<Blob> export_handle(HandleKind kind) const override { return sharing_.export_handle(span_, kind); }

 private:
  AcceleratorDevices& devices_;
  MemorySharing& sharing_;
  const DeviceSpan span_;
};

}  // namespace

Result<std::optional<PointerInfo>> Accelerator::classify(const void* data, std::size_t) {
  if (!devices_.open_resident() && !devices_.is_open()) return std::optional<PointerInfo>();
  HMC_ASSIGN(const auto found, devices_.find(data));
  if (!found) return std::optional<PointerInfo>();
  HMC_ASSIGN(const Device owner, Device::parse(devices_.name(found->index)));
  return std::optional(PointerInfo{owner, found->base, found->bytes, found->id});
}

Result<std::unique_ptr<Allocation>> Accelerator::allocate(int index, std::size_t bytes, const MemoryOptions&) {
  HMC_TRY(devices_.device(index).status());
  devices_.release_kept();
  HMC_ASSIGN(const Device owner, Device::parse(devices_.name(index)));
  const DeviceScope scope(*devices_.calls().devices, index);
  if (scope.code() != 0) return devices_.unusable(index, scope.code());
  void* data = nullptr;
  if (const int code = devices_.calls().memory->allocate(std::max<std::size_t>(bytes, 1), data); code != 0) {
    return devices_.failure("allocating " + std::to_string(bytes) + " bytes on " + devices_.name(index), code);
  }
  return std::unique_ptr<Allocation>(std::make_unique<OwnedMemory>(devices_, sharing_, DeviceSpan{data, bytes, owner}));
}

}  // namespace hmc
