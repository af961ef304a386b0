// Regions whose owner's software moves the bytes that a peer asks for: exported by a number that only whoever imports them learns,
// looked up at each request, so that a closed region is closed.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "transport/transport.h"

namespace hmc {

// Copies of one request.
class ServedCopies {
 public:
  // Waits for those under way: what a device copies cannot be stopped.
  virtual void see_out() = 0;

 protected:
  ~ServedCopies() = default;
};

// What remains known of a region while a device still copies.
struct ServedRegion {
  DeviceSpan span;
  Access access = Access::read;
  std::vector<ServedCopies*> users;  // with copies under way
};

// Of one transport. Engine lock held.
class ServedRegions {
 public:
  // Errors: stale (there is no such region, or no longer), invalid_argument (to be written, and exported for reading only).
  [[nodiscard]] Result<std::shared_ptr<ServedRegion>> find(std::uint64_t id, bool to_write) const;

 private:
  friend class ServedExport;
  std::unordered_map<std::uint64_t, std::shared_ptr<ServedRegion>> regions_;
};

// A local region's place there, from its first export to its end, which sees out what is copied.
class ServedExport {
 public:
  ServedExport(const RegionView& view, std::weak_ptr<ServedRegions> table);
  ~ServedExport();
  ServedExport(const ServedExport&) = delete;
  ServedExport& operator=(const ServedExport&) = delete;

  // Not 0. Errors: closed.
  Result<std::uint64_t> id();

 private:
  const std::weak_ptr<ServedRegions> table_;
  const std::shared_ptr<ServedRegion> region_;
  std::uint64_t id_ = 0;  // 0: not exported yet
};

}  // namespace hmc
