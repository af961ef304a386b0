// Regions of the local transport: looked up again for every slice, so a closed one is stale at once.
#pragma once

#include <memory>

#include "transport/host_mapping.h"
#include "transport/kit/served_regions.h"

namespace hmc::local {

// Memory on the CPU, if HMC allocated it, for copies of `device`; `block` is null for memory of a message.
inline void pin_for(const Device& device, MemoryBlock* block) {
  if (block != nullptr) block->pin_for(device);
}

class Region final : public ServedLocalRegion {
 public:
  using ServedLocalRegion::ServedLocalRegion;
  void prepare(const Device& remote) override { pin_for(remote, view_.block.get()); }
};

class ImportedRegion final : public ServedRemoteRegion {
 public:
  ImportedRegion(const ServedKey& key, const RegionView& view) noexcept
      : ServedRemoteRegion(key),
        block_(view.block),
        device_(view.span.device),
        loadable_(is_loadable(view) ? static_cast<const std::byte*>(view.span.data) : nullptr) {}
  Status prepare(const Device& local) override {
    pin_for(local, block_.lock().get());
    return {};
  }
  [[nodiscard]] LoadableBytes loadable(const Device& by) const override {
    const auto block = loadable_ == nullptr || by != device_ ? nullptr : block_.lock();
    return block ? LoadableBytes{{loadable_, bytes()}, block} : LoadableBytes();
  }

 private:
  static bool is_loadable(const RegionView& view) {
    return view.span.device.is_cpu() ? has_file(view) : view.block != nullptr && view.block->owned();
  }

  const std::weak_ptr<MemoryBlock> block_;
  const Device device_;
  const std::byte* const loadable_;  // while the block lives; null: it is not HMC's
};

}  // namespace hmc::local
