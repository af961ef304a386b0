// The ipc transport: memory of another process of the host, mapped for a device here, which copies. Device memory of its own vendor
// by the vendor's handles: over NVLink and its kin where there is one, else over PCIe. CPU memory that HMC allocated by its memfd,
// whichever side the device is on. Signals go by a carrier.
#include <unistd.h>

#include <algorithm>
#include <string>

#include "device/links.h"
#include "transport/host_mapping.h"
#include "transport/ipc/endpoint.h"
#include "transport/ipc/host_region.h"
#include "transport/link_list.h"

namespace hmc {

namespace {

using ipc::IpcEndpoint;

// Bytes per second. Where nobody says what joins two devices: not less than the way of each to host memory, so that no stage looks
// faster. What the peer's device does its own process knows, and this one opens no library to ask.
double rate(const Device& local, const Device& remote) {
  constexpr double unknown_link = 50e9;
  if (local.is_cpu()) return usual_host_bandwidth;
  const double host = host_bandwidth(local);
  if (remote.is_cpu()) return host > 0 ? host : usual_host_bandwidth;
  const double link = link_bandwidth(local, remote);
  return link > 0 ? link : std::max(unknown_link, host);
}

class IpcTransport final : public Transport {
 public:
  explicit IpcTransport(const TransportEnvironment& environment)
      : shared_(std::make_shared<ipc::Shared>(environment.engine)), carriers_(environment.carriers) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "ipc"; }

  [[nodiscard]] Capabilities capabilities() const override {
    Capabilities result = carriers_.capabilities();
    result.available = !carriers_.empty();
    result.reason = carriers_.empty() ? "no transport of CPU memory carries its signals"
                                      : "a device and memory of another process of the host: its vendor's, or the CPU's";
    return result;
  }

  [[nodiscard]] Bytes domain() const override { return carriers_.domain(); }

  [[nodiscard]] Reach reach(const PeerDomain& peer, const Device& local, const Device& remote) const override {
    Reach result;
    const bool host = local.is_cpu() || remote.is_cpu();
    if (local.is_cpu() && remote.is_cpu()) {
      result.reason = "ipc needs at least one device buffer; both buffers are CPU memory";
    } else if (!host && local.vendor() != remote.vendor()) {
      result.reason =
          "a " + std::string(local.vendor()) + " device cannot map memory of a " + std::string(remote.vendor()) + " device";
    } else if (!peer.same_host) {
      result.reason = "the peer is not on this host (no descriptor could be passed)";
    } else if (host && peer.same_process) {
      result.reason = "it is this very Context";
    } else if (!host && (peer.same_process || peer.pid == getpid())) {
      result.reason = "a vendor's handle does not open in the process that made it";
    } else if (const auto carrier = carriers_.choose(peer); carrier.transport == nullptr) {
      result.reason = carrier.reach.reason;
    } else {
      result.ok = true;
      result.detail = (host ? "mapped host memory (pinned where the vendor lets it) copied by the " +
                                  std::string(local.is_cpu() ? "peer's " : "") + "device, signals by "
                            : "mapped device memory, signals by ") +
                      std::string(carrier.transport->name());
      result.reason = host ? "same host" : "same host, same vendor";
      result.latency_us = 8 + (local.is_cpu() ? 3 : 1) * carrier.reach.latency_us;
      result.bandwidth = rate(local, remote);
      result.transient = !host;  // its memfd takes a descriptor, its mapping longer than the copy
    }
    return result;
  }

  Result<std::unique_ptr<LocalRegion>> register_region(const RegionView& view) override {
    if (!view.span.device.is_cpu()) return std::unique_ptr<LocalRegion>(std::make_unique<ipc::Region>(view, shared_->served));
    if (has_file(view)) return std::unique_ptr<LocalRegion>(std::make_unique<ipc::HostRegion>(view, shared_));
    return Status(Code::unsupported, view.transient ? "ipc maps CPU memory of buffers, not of messages"
                                                    : "CPU memory that HMC did not allocate has no descriptor by which a device "
                                                      "of another process could reach it; that of comm.buffer() has");
  }

  Result<std::unique_ptr<Endpoint>> create_endpoint(const PeerDomain& peer, EndpointSink& sink) override {
    HMC_ASSIGN(auto endpoint, IpcEndpoint::create(shared_, carriers_, peer, sink));
    endpoints_.add(endpoint);
    return kit::make_handle(std::move(endpoint));
  }

  bool poll() override {
    return endpoints_.poll([](IpcEndpoint& endpoint) { return endpoint.poll(); });
  }
  bool arm() override { return endpoints_.arm(); }
  [[nodiscard]] bool busy() const override { return !endpoints_.idle(); }

 private:
  const std::shared_ptr<ipc::Shared> shared_;
  const Carriers carriers_;
  LinkList<IpcEndpoint> endpoints_;
};

Result<std::unique_ptr<Transport>> create_ipc_transport(const TransportEnvironment& environment) {
  return std::unique_ptr<Transport>(std::make_unique<IpcTransport>(environment));
}

}  // namespace

}  // namespace hmc

HMC_TRANSPORT(ipc, hmc::create_ipc_transport, true);
