// The endpoint of the local transport: both ends are this object.
#pragma once

#include <memory>

#include "transport/copy.h"
#include "transport/device_copies.h"
#include "transport/kit/endpoint_base.h"
#include "transport/kit/served_regions.h"
#include "transport/local/loop_ring.h"

namespace hmc::local {

inline constexpr std::size_t max_signal = 16 << 10;
inline constexpr std::size_t eager_limit = 8 << 10;

// Engine lock held.
class LocalEndpoint final : public kit::EndpointBase {
 public:
  LocalEndpoint(std::shared_ptr<Engine> engine, std::shared_ptr<const ServedRegions> regions, EndpointSink& sink);

  Result<Blob> address() { return Blob{}; }
  Status connect(const Blob& peer_address, Completion* done);
  Result<std::unique_ptr<RemoteRegion>> import_region(const Blob& exported);
  Status signal(ByteSpan head, ByteSpan body);
  // Both sides are this object and end together: no signal is left of a peer that has ended, or for one that lives on.
  void receive_rest() {}
  [[nodiscard]] static bool has_unsent() { return false; }

  [[nodiscard]] bool busy() const noexcept { return ready() && (!ring_.empty() || !waiting_.empty() || !operations_.empty()); }
  bool poll(std::size_t& budget);

 private:
  struct Copy final : kit::Operation {
    CopyKind kind = CopyKind::cached;
    std::unique_ptr<DeviceCopies> copies;  // once a runtime copies something of it
    DeviceRuntime* runtime = nullptr;      // the last that did
  };

  Status check(const Run& run, bool is_put) const override;
  Status start(kit::Operation& operation) override;
  bool send(ByteSpan signal, std::uint64_t put) override;
  Status withdraw(kit::Operation& operation) override;
  void stop() override;

  [[nodiscard]] const ServedRegion* target(const Run& run) const noexcept;
  std::size_t move(Copy& copy, std::size_t budget);
  std::size_t move_device(Copy& copy, const RegionView& remote);
  static bool over(Copy& copy);
  bool advance(std::size_t& budget);
  bool deliver(std::size_t& budget);

  const std::shared_ptr<const ServedRegions> regions_;
  LoopRing ring_;
  std::uint64_t last_served_ = 0;  // operations take turns
};

}  // namespace hmc::local
