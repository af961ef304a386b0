// The ipc transport: device memory of two processes on one host, both of one vendor. The vendor's handles map the peer's memory,
// and the devices copy: over NVLink and its kin where there is one, else over PCIe. Signals go by a carrier.
#include <unistd.h>

#include <string>

#include "device/links.h"
#include "transport/ipc/link.h"
#include "transport/link_list.h"

namespace hmc {

namespace {

using ipc::Link;

// Bytes per second, where nobody says what joins two devices: more than any way through host memory.
constexpr double unknown_link = 50e9;

class IpcEndpoint final : public Endpoint {
 public:
  explicit IpcEndpoint(std::shared_ptr<Link> link) noexcept : link_(std::move(link)) {}
  ~IpcEndpoint() override { link_->close(); }

  Result<Blob> address() override { return link_->address(); }
  Status connect(const Blob& peer_address, Completion* done) override { return link_->connect(peer_address, done); }
  Result<std::unique_ptr<RemoteRegion>> import_region(const Blob& exported) override { return link_->import_region(exported); }
  Status put(const TransferOp& op, Completion* done) override { return link_->put(op, done); }
  Status get(const TransferOp& op, Completion* done) override { return link_->get(op, done); }
  Status signal(ByteSpan head, ByteSpan body) override { return link_->signal(head, body); }
  Status flush(Completion* done) override { return link_->flush(done); }
  Status cancel(Completion*) override { return Status(Code::unsupported, "a device is copying; the operation goes on"); }

 private:
  std::shared_ptr<Link> link_;
};

class IpcTransport final : public Transport {
 public:
  explicit IpcTransport(const TransportEnvironment& environment) : engine_(environment.engine), carriers_(environment.carriers) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "ipc"; }

  [[nodiscard]] Capabilities capabilities() const override {
    Capabilities result = carriers_.capabilities();
    result.available = !carriers_.empty();
    result.reason = carriers_.empty() ? "no transport of CPU memory carries its signals"
                                      : "device memory of the same vendor in two processes of one host";
    return result;
  }

  [[nodiscard]] Bytes domain() const override { return carriers_.domain(); }

  [[nodiscard]] Reach reach(const PeerDomain& peer, const Device& local, const Device& remote) const override {
    Reach result;
    if (local.is_cpu() || remote.is_cpu()) {
      result.reason = "ipc moves device memory only, not " + local.str() + " to " + remote.str();
    } else if (local.vendor() != remote.vendor()) {
      result.reason =
          "a " + std::string(local.vendor()) + " device cannot map memory of a " + std::string(remote.vendor()) + " device";
    } else if (!peer.same_host) {
      result.reason = "the peer is not on this host (no descriptor could be passed)";
    } else if (peer.same_process || peer.pid == getpid()) {
      result.reason = "a vendor's handle does not open in the process that made it";
    } else if (const auto carrier = carriers_.choose(peer); carrier.transport == nullptr) {
      result.reason = carrier.reach.reason;
    } else {
      result.ok = true;
      result.detail = "mapped device memory, signals by " + std::string(carrier.transport->name());
      const double link = link_bandwidth(local, remote);
      result.reason = "same host, same vendor";
      result.latency_us = 8 + carrier.reach.latency_us;
      result.bandwidth = link > 0 ? link : unknown_link;
    }
    return result;
  }

  Result<std::unique_ptr<LocalRegion>> register_region(const RegionView& view) override {
    if (view.span.device.is_cpu()) return Status(Code::unsupported, "ipc registers device memory only");
    return std::unique_ptr<LocalRegion>(std::make_unique<ipc::Region>(view));
  }

  Result<std::unique_ptr<Endpoint>> create_endpoint(const PeerDomain& peer, EndpointSink& sink) override {
    HMC_ASSIGN(auto link, Link::create(carriers_, peer, engine_, sink));
    links_.add(link);
    return std::unique_ptr<Endpoint>(std::make_unique<IpcEndpoint>(std::move(link)));
  }

  bool poll() override {
    return links_.poll([](Link& link) { return link.poll(); });
  }
  bool arm() override { return links_.idle(); }

 private:
  const std::shared_ptr<Engine> engine_;
  const Carriers carriers_;
  LinkList<Link> links_;
};

Result<std::unique_ptr<Transport>> create_ipc_transport(const TransportEnvironment& environment) {
  return std::unique_ptr<Transport>(std::make_unique<IpcTransport>(environment));
}

}  // namespace

}  // namespace hmc

HMC_TRANSPORT(ipc, hmc::create_ipc_transport, true);
