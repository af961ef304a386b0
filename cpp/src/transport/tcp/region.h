// Regions of the tcp transport: the owner's software checks and executes everything that a peer asks of them.
#pragma once

#include <cstdint>
#include <memory>

#include "transport/tcp/frames.h"
#include "transport/transport.h"

namespace hmc::tcp {

struct Shared;

class TcpLocalRegion final : public LocalRegion {
 public:
  TcpLocalRegion(const RegionView& view, std::weak_ptr<Shared> shared) noexcept : LocalRegion(view), shared_(std::move(shared)) {}
  ~TcpLocalRegion() override;  // what peers send for its id is read and dropped from now on
  Result<Blob> exported() override;

  [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(view_.span.data); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return view_.span.bytes; }
  [[nodiscard]] bool writable() const noexcept { return view_.access == Access::read_write; }

 private:
  std::weak_ptr<Shared> shared_;
  std::uint64_t id_ = 0;  // 0: not exported yet
};

class TcpRemoteRegion final : public RemoteRegion {
 public:
  explicit TcpRemoteRegion(const RegionKey& key) noexcept : RemoteRegion(key.bytes), key_(key) {}
  [[nodiscard]] std::uint64_t id() const noexcept { return key_.id; }
  [[nodiscard]] bool writable() const noexcept { return key_.access == Access::read_write; }

 private:
  RegionKey key_;
};

}  // namespace hmc::tcp
