// Regions of the local transport: exported by id, looked up again for every slice, so a closed one is stale at once.
#pragma once

#include <memory>
#include <unordered_map>

#include "progress/engine.h"
#include "transport/transport.h"

namespace hmc::local {

class Region;

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

 private:
  std::weak_ptr<Shared> shared_;
  std::uint64_t id_ = 0;  // 0: not exported yet
};

class ImportedRegion final : public RemoteRegion {
 public:
  // Errors: stale, protocol.
  static Result<std::unique_ptr<RemoteRegion>> import(const Shared& shared, const Blob& exported);
  ImportedRegion(std::uint64_t id, std::size_t bytes) noexcept : RemoteRegion(bytes), id_(id) {}
  // Null once the owner deregistered it.
  [[nodiscard]] const RegionView* find(const Shared& shared) const;

 private:
  std::uint64_t id_;
};

}  // namespace hmc::local
