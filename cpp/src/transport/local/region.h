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
        loadable_(has_file(view) ? static_cast<const std::byte*>(view.span.data) : nullptr) {}
  Status prepare(const Device& local) override {
    pin_for(local, block_.lock().get());
    return {};
  }
  [[nodiscard]] LoadableBytes loadable() const override {
    const auto block = loadable_ == nullptr ? nullptr : block_.lock();
    return block ? LoadableBytes{{loadable_, bytes()}, block} : LoadableBytes();
  }

 private:
  const std::weak_ptr<MemoryBlock> block_;
  const std::byte* const loadable_;  // while the block lives; null: it is not HMC's
};

}  // namespace hmc::local
