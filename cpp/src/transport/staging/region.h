// Regions of the staging transport: exported by a number that only whoever imports them learns. Their owner's software moves the
// bytes, so a closed region is closed.
#pragma once

#include <memory>
#include <unordered_map>

#include "progress/engine.h"
#include "transport/staging/pieces.h"
#include "transport/transport.h"

namespace hmc::staging {

// What the endpoints and regions of one transport share. Engine lock held.
struct Shared {
  std::shared_ptr<Engine> engine;
  std::unordered_map<std::uint64_t, std::shared_ptr<RegionState>> regions;
};

class Region final : public LocalRegion {
 public:
  Region(const RegionView& view, std::weak_ptr<Shared> shared);
  ~Region() override;
  Result<Blob> exported() override;

 private:
  std::weak_ptr<Shared> shared_;
  std::shared_ptr<RegionState> state_;
  std::uint64_t id_ = 0;  // 0: not exported yet
};

class ImportedRegion final : public RemoteRegion {
 public:
  static Result<std::unique_ptr<RemoteRegion>> import(const Blob& exported);
  ImportedRegion(std::uint64_t id, std::size_t bytes) noexcept : RemoteRegion(bytes), id_(id) {}
  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }

 private:
  const std::uint64_t id_;
};

}  // namespace hmc::staging
