// The local transport: a Context to itself. Copies between any memories of the process; signals loop back through a bounded queue.
#include <algorithm>
#include <string>
#include <vector>

#include "base/random.h"
#include "device/links.h"
#include "transport/link_list.h"
#include "transport/local/endpoint.h"
#include "transport/local/region.h"

namespace hmc {

namespace {

using local::LocalEndpoint;

constexpr std::size_t instance_bytes = 16;
constexpr std::size_t poll_bytes = 1 << 20;

// Bytes per second; where the hardware is not known, that of a common one.
double estimate(const Device& from, const Device& to) {
  constexpr double memcpy_rate = 10e9, device_memory = 1e12;
  if (from.is_cpu() && to.is_cpu()) return memcpy_rate;
  if (from == to) return device_memory;
  const double known = from.is_cpu() ? host_bandwidth(to) : to.is_cpu() ? host_bandwidth(from) : link_bandwidth(from, to);
  return known > 0 ? known : usual_host_bandwidth;
}

class LocalTransport final : public Transport {
 public:
  explicit LocalTransport(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {
    instance_.resize(instance_bytes);
    random_bytes(instance_);
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "local"; }

  [[nodiscard]] Capabilities capabilities() const override {
    Capabilities result;
    result.reason = "copies within the process";
    result.max_signal = local::max_signal;
    result.eager_limit = local::eager_limit;
    result.breaks = false;
    return result;
  }

  [[nodiscard]] Bytes domain() const override { return instance_; }

  [[nodiscard]] Reach reach(const PeerDomain& peer, const Device& from, const Device& to) const override {
    Reach result;
    if (!peer.same_process || !std::ranges::equal(peer.domain, instance_)) {
      result.reason = "local reaches only its own Context";
    } else if (!from.is_cpu() && !to.is_cpu() && from.vendor() != to.vendor()) {
      result.reason = "no runtime copies from " + from.str() + " to " + to.str() + " directly";
    } else {
      result.ok = true;
      result.detail = from.is_cpu() && to.is_cpu() ? "memcpy" : "copy engine";
      result.reason = "same Context";
      result.latency_us = from.is_cpu() && to.is_cpu() ? 0.1 : 8;
      result.bandwidth = estimate(from, to);
    }
    return result;
  }

  Result<std::unique_ptr<LocalRegion>> register_region(const RegionView& view) override {
    return std::unique_ptr<LocalRegion>(std::make_unique<local::Region>(view, regions_));
  }

  Result<std::unique_ptr<Endpoint>> create_endpoint(const PeerDomain& peer, EndpointSink& sink) override {
    if (!peer.same_process || !std::ranges::equal(peer.domain, instance_)) {
      return Status(Code::unsupported, "local reaches only its own Context");
    }
    auto endpoint = std::make_shared<LocalEndpoint>(engine_, regions_, sink);
    endpoints_.add(endpoint);
    return kit::make_handle(std::move(endpoint));
  }

  bool poll() override {
    std::size_t budget = poll_bytes;
    return endpoints_.poll([&](LocalEndpoint& endpoint) { return endpoint.poll(budget); });
  }
  bool arm() override { return endpoints_.idle(); }
  [[nodiscard]] bool busy() const override { return !endpoints_.idle(); }

 private:
  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<ServedRegions> regions_ = std::make_shared<ServedRegions>();
  Bytes instance_;
  LinkList<LocalEndpoint> endpoints_;
};

Result<std::unique_ptr<Transport>> create_local_transport(const TransportEnvironment& environment) {
  return std::unique_ptr<Transport>(std::make_unique<LocalTransport>(environment.engine));
}

}  // namespace

}  // namespace hmc

HMC_TRANSPORT(local, hmc::create_local_transport);
