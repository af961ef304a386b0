// Regions of the local transport: exported by id, looked up again for every slice, so a closed one is stale at once.
#pragma once

#include <memory>
#include <unordered_map>

#include "progress/engine.h"
#include "transport/transport.h"

namespace hmc::local {

class Region;

// Memory on the CPU, if HMC allocated it, for copies of `device`; `block` is null for memory of a message.
inline void pin_for(const Device& device, MemoryBlock* block) {
  if (block != nullptr) block->pin_for(device);
}

// What the endpoints and regions of one transport share. Engine lock held.
struct Shared {
  std::shared_ptr<Engine> engine;
  std::unordered_map<std::uint64_t, const Region*> regions;
};

class Region final : public LocalRegion {
 public:
  Region(const RegionView& view, std::weak_ptr<Shared> shared) : LocalRegion(view), shared_(std::move(shared)) {}
  ~Region() override;
  Result<Blob> exported() override;
  void prepare(const Device& remote) override { pin_for(remote, view_.block.get()); }

 private:
  std::weak_ptr<Shared> shared_;
  std::uint64_t id_ = 0;  // 0: not exported yet
};

class ImportedRegion final : public RemoteRegion {
 public:
  // Errors: stale, protocol.
  static Result<std::unique_ptr<RemoteRegion>> import(const Shared& shared, const Blob& exported);
  ImportedRegion(std::uint64_t id, const RegionView& view) noexcept : RemoteRegion(view.span.bytes), id_(id), block_(view.block) {}
  Status prepare(const Device& local) override {
    pin_for(local, block_.lock().get());
    return {};
  }
  // Null once the owner deregistered it.
  [[nodiscard]] const RegionView* find(const Shared& shared) const;

 private:
  std::uint64_t id_;
  std::weak_ptr<MemoryBlock> block_;
};

}  // namespace hmc::local
