// Regions of the staging transport: their owner's software moves the bytes.
#pragma once

#include <memory>

#include "progress/engine.h"
#include "transport/served_regions.h"

namespace hmc::staging {

// What the endpoints and regions of one transport share. Engine lock held.
struct Shared {
  std::shared_ptr<Engine> engine;
  const std::shared_ptr<ServedRegions> regions = std::make_shared<ServedRegions>();
};

class Region final : public LocalRegion {
 public:
  Region(const RegionView& view, const std::shared_ptr<ServedRegions>& served) : LocalRegion(view), export_(view, served) {}
  Result<Blob> exported() override;

 private:
  ServedExport export_;
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
