// The staging transport: memory that nothing reaches directly, through pinned host memory, in chunks whose stages overlap. On one
// host the two sides share the ring, so the host itself copies nothing; across hosts a carrier moves the chunks.
#include <algorithm>
#include <string>

#include "base/env.h"
#include "device/links.h"
#include "transport/link_list.h"
#include "transport/staging/endpoint.h"

namespace hmc {

namespace {

using staging::Geometry;
using staging::Shared;
using staging::StagingEndpoint;

// Bytes per second through a shared ring, from or to `local`. Measured on an H200: 0.93 of what pinned memory gives, and what one
// thread copies where an end is CPU memory.
double ring_rate(const Device& local, const Device& remote) {
  if (local.is_cpu() || remote.is_cpu()) return 9.5e9;
  const double known = host_bandwidth(local);
  return known > 0 ? 0.93 * known : 20e9;
}

class StagingTransport final : public Transport {
 public:
  explicit StagingTransport(const TransportEnvironment& environment)
      : carriers_(environment.carriers), shared_(std::make_shared<Shared>()) {
    shared_->engine = environment.engine;
    const auto chunk = env_integer("HMC_STAGING_CHUNK_BYTES", 4 << 20, 4096, 16 << 20);
    const std::uint32_t page = Geometry::page_bytes();
    options_.geometry.chunk_bytes = std::max(page, static_cast<std::uint32_t>(chunk) / page * page);
    options_.share = env_flag("HMC_STAGING_SHARED", true);
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "staging"; }

  [[nodiscard]] Capabilities capabilities() const override {
    Capabilities result = carriers_.capabilities();
    result.available = !carriers_.empty();
    result.reason = carriers_.empty() ? "no transport of CPU memory to build on"
                                      : "device memory through pinned host memory, where nothing direct exists";
    return result;
  }

  [[nodiscard]] Bytes domain() const override { return carriers_.domain(); }

  [[nodiscard]] Reach reach(const PeerDomain& peer, const Device& local, const Device& remote) const override {
    Reach result;
    result.direct = false;
    const auto carrier = carriers_.choose(peer);
    if (carrier.transport == nullptr) {
      result.reason = carrier.reach.reason;
      return result;
    }
    const bool devices = !local.is_cpu() || !remote.is_cpu();
    result.ok = true;
    result.encrypted = !peer.same_host && carrier.reach.encrypted;
    result.detail =
        std::to_string(options_.geometry.chunk_bytes >> 10) + " KiB chunks " +
        (peer.same_host && options_.share ? "in a shared ring" : "carried by " + std::string(carrier.transport->name()));
    result.reason = "nothing direct joins the two memories";
    result.latency_us = (devices ? 20 : 2) + carrier.reach.latency_us;
    // Between CPU memories it is never worth it, and there for completeness.
    result.bandwidth = devices && peer.same_host && options_.share ? ring_rate(local, remote) : carrier.reach.bandwidth * 0.4;
    return result;
  }

  Result<std::unique_ptr<LocalRegion>> register_region(const RegionView& view) override {
    return std::unique_ptr<LocalRegion>(std::make_unique<ServedLocalRegion>(view, shared_->regions));
  }

  Result<std::unique_ptr<Endpoint>> create_endpoint(const PeerDomain& peer, EndpointSink& sink) override {
    HMC_ASSIGN(auto endpoint, StagingEndpoint::create(shared_, carriers_, peer, options_, sink));
    endpoints_.add(endpoint);
    return kit::make_handle(std::move(endpoint));
  }

  bool poll() override {
    return endpoints_.poll([](StagingEndpoint& endpoint) { return endpoint.poll(); });
  }
  bool arm() override { return endpoints_.arm(); }
  [[nodiscard]] bool busy() const override { return !endpoints_.idle(); }

 private:
  const Carriers carriers_;
  const std::shared_ptr<Shared> shared_;
  staging::Options options_;
  LinkList<StagingEndpoint> endpoints_;
};

Result<std::unique_ptr<Transport>> create_staging_transport(const TransportEnvironment& environment) {
  return std::unique_ptr<Transport>(std::make_unique<StagingTransport>(environment));
}

}  // namespace

}  // namespace hmc

HMC_TRANSPORT(staging, hmc::create_staging_transport, true);
