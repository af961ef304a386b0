// Regions whose owner's software moves the bytes that a peer asks for: exported by a number that only its importers learn, looked
// up at each request, so that a closed region is closed.
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
  // The region ends: waits for copies in flight (what a device copies cannot be stopped).
  virtual void see_out() = 0;

 protected:
  ~ServedCopies() = default;
};

// What remains known of a region while a device still copies.
struct ServedRegion {
  RegionView view;
  std::vector<ServedCopies*> users;  // with copies in flight

  [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(view.span.data); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return view.span.bytes; }
  [[nodiscard]] bool writable() const noexcept { return view.access == Access::read_write; }
};

// Of one transport. Engine lock held.
class ServedRegions {
 public:
  // Null: there is no such region, or no longer.
  [[nodiscard]] ServedRegion* find(std::uint64_t id) const noexcept {
    const auto found = regions_.find(id);
    return found == regions_.end() ? nullptr : found->second.get();
  }
  // For copies that may outlive the region. Errors: stale, invalid_argument (to be written, and exported for reading only).
  [[nodiscard]] Result<std::shared_ptr<ServedRegion>> hold(std::uint64_t id, bool to_write) const;

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

// What ServedLocalRegion::exported() says.
struct ServedKey {
  std::uint64_t id = 0;  // unguessable
  std::uint64_t bytes = 0;
  Access access = Access::read_write;
};
[[nodiscard]] Bytes encode_served(const ServedKey& key);
[[nodiscard]] Result<ServedKey> decode_served(ByteSpan bytes);  // errors: protocol

class ServedLocalRegion : public LocalRegion {
 public:
  ServedLocalRegion(const RegionView& view, const std::shared_ptr<ServedRegions>& table)
      : LocalRegion(view), export_(view, table) {}
  Result<Blob> exported() override;

 private:
  ServedExport export_;
};

class ServedRemoteRegion : public RemoteRegion {
 public:
  explicit ServedRemoteRegion(const ServedKey& key) noexcept : RemoteRegion(key.bytes), id_(key.id), access_(key.access) {}
  static Result<std::unique_ptr<RemoteRegion>> import(const Blob& exported);
  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
  [[nodiscard]] bool writable() const noexcept override { return access_ == Access::read_write; }

 private:
  const std::uint64_t id_;
  const Access access_;
};

// A put into a region that its owner exported for reading only.
Status read_only_target();

}  // namespace hmc
