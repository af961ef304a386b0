// The ucx transport: CPU memory over whatever UCX finds between two processes, and device memory where UCX shares it between the
// processes of a host, for those who ask for it by name.
//
// It must be named because of what it brings into the process: UCX listens on ports of its own, where nobody is asked for a key.
#include <unistd.h>

#include <map>

#include "base/random.h"
#include "device/links.h"
#include "transport/link_list.h"
#include "transport/ucx/endpoint.h"

namespace hmc {
namespace {

using ucx::UcxEndpoint;

// Estimates, between those of verbs and of tcp where cards do the work, else below both.
constexpr double rdma_bandwidth = 3.5e9;
constexpr double same_host_bandwidth = 2.5e9;
constexpr double tcp_bandwidth = 2e9;
constexpr unsigned first_for_devices = 22;  // minor version
constexpr double device_bandwidth = 50e9;   // where nobody says what joins two devices
constexpr double behind_ipc = 0.9;          // which has one kernel for many blocks

class UcxTransport final : public Transport {
 public:
  UcxTransport(std::shared_ptr<const ucx::LibraryContext> context, const std::shared_ptr<Engine>& engine)
      : context_(std::move(context)), native_(std::make_shared<ucx::Native>(context_->api(), engine)) {
    const ucx::Api& api = context_->api();
    domain_.major = static_cast<std::uint16_t>(api.major);
    domain_.minor = static_cast<std::uint16_t>(api.minor);
    domain_.rdma = context_->rdma();
    // Older versions want the device's context current in the calling thread; none but this has been run.
    for (const auto kind : {ucx::MemoryKind::cuda, ucx::MemoryKind::rocm}) {
      domain_.shares[static_cast<std::size_t>(kind)] = api.minor >= first_for_devices && context_->shares(kind);
    }
    domain_.id = random_u64();
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "ucx"; }

  [[nodiscard]] Capabilities capabilities() const override {
    Capabilities result;
    result.reason = "UCX " + context_->api().version() + " (" + context_->api().path + "): " + ucx::joined(context_->transports()) +
                    "; payload is not encrypted, UCX's own ports ask for no key";
    result.max_signal = ucx::max_body;
    result.eager_limit = ucx::max_body;
    return result;
  }

  [[nodiscard]] Bytes domain() const override { return ucx::encode_domain(domain_); }

  [[nodiscard]] Reach reach(const PeerDomain& peer, const Device& local, const Device& remote) const override {
    Reach result;
    const auto theirs = ucx::decode_domain(peer.domain);
    if (!theirs.ok()) {
      result.reason = theirs.status().message();
      return result;
    }
    if (const Status same = same_version(*theirs); !same.ok()) {
      result.reason = same.message();
      return result;
    }
    const bool device = !local.is_cpu() || !remote.is_cpu();
    if (device) {
      result.reason = why_not(peer, *theirs, local, remote);
      if (!result.reason.empty()) return result;
    }
    result.ok = true;
    const auto known = by_peer_.find(theirs->id);
    const auto link = known == by_peer_.end() ? nullptr : known->second.lock();
    result.detail =
        (link && !link->lanes.empty() ? link->lanes + " of " : "") + "UCX " + context_->api().version() + ", not encrypted";
    result.reason = "was named; UCX chooses the way";
    if (device) {
      const double known_rate = link_bandwidth(local, remote);
      result.latency_us = 10;
      result.bandwidth = behind_ipc * (known_rate > 0 ? known_rate : device_bandwidth);
      result.transient = false;  // its mapping takes longer than most messages
      return result;
    }
    const bool rdma = domain_.rdma && theirs->rdma;
    result.latency_us = rdma ? 3 : peer.same_host ? 2 : 15;
    result.bandwidth = rdma ? rdma_bandwidth : peer.same_host ? same_host_bandwidth : tcp_bandwidth;
    return result;
  }

  Result<std::unique_ptr<LocalRegion>> register_region(const RegionView& view) override {
    if (!view.span.device.is_cpu() && view.transient) {
      return Status(Code::unsupported, "ucx registers memory of devices for buffers, not for messages");
    }
    return ucx::UcxLocalRegion::create(view, context_, regions_, native_);
  }

  Result<std::unique_ptr<Endpoint>> create_endpoint(const PeerDomain& peer, EndpointSink& sink) override {
    HMC_ASSIGN(const ucx::Domain theirs, ucx::decode_domain(peer.domain));
    HMC_TRY(same_version(theirs));
    HMC_ASSIGN(auto endpoint, UcxEndpoint::create(context_, regions_, sink));
    endpoints_.add(endpoint);
    std::erase_if(by_peer_, [](const auto& known) { return known.second.expired(); });
    by_peer_[theirs.id] = endpoint;
    return kit::make_handle(std::move(endpoint));
  }

  Result<std::unique_ptr<NativeLink>> connect_native(const NativeFields& peer) override {
    return ucx::UcxNativeLink::create(native_, peer);
  }

  bool poll() override {
    const bool moved = endpoints_.poll([](UcxEndpoint& endpoint) { return endpoint.poll(); });
    return native_->poll() || moved;
  }

  bool arm() override { return endpoints_.arm() && native_->arm(); }
  [[nodiscard]] bool busy() const override { return endpoints_.any_unsent(); }

 private:
  // Between two devices, or a device and the CPU. Empty: it can.
  [[nodiscard]] std::string why_not(const PeerDomain& peer, const ucx::Domain& theirs, const Device& local,
                                    const Device& remote) const {
    const auto kind = ucx::kind_of(local);
    if (local.is_cpu() || remote.is_cpu()) return "ucx moves nothing between memory of a device and of the CPU";
    if (local.vendor() != remote.vendor() || !kind) return "UCX has no way from " + local.str() + " to " + remote.str();
    if (!peer.same_host) return "the peer is not on this host, and UCX's way for device memory by network cards is not used";
    if (peer.same_process || peer.pid == getpid()) return "a vendor's handle does not open in the process that made it";
    for (const ucx::Domain* side : {&domain_, &theirs}) {
      if (side->shares[static_cast<std::size_t>(*kind)]) continue;
      return std::string(side == &theirs ? "the peer's" : "this") + " UCX has no " + std::string(ucx::sharing_transport(*kind));
    }
    return {};
  }
  [[nodiscard]] Status same_version(const ucx::Domain& theirs) const {
    if (theirs.major == domain_.major && theirs.minor == domain_.minor) return {};
    return Status(Code::unsupported, "UCX " + std::to_string(theirs.major) + "." + std::to_string(theirs.minor) + " there and " +
                                         context_->api().version() +
                                         " here: UCX's versions need not understand one another; install the same on both sides");
  }

  std::shared_ptr<const ucx::LibraryContext> context_;
  std::shared_ptr<ucx::Native> native_;
  std::shared_ptr<ucx::Regions> regions_ = std::make_shared<ucx::Regions>();
  ucx::Domain domain_;
  LinkList<UcxEndpoint> endpoints_;
  std::map<std::uint64_t, std::weak_ptr<UcxEndpoint>> by_peer_;  // the last to that domain
};

Result<std::unique_ptr<Transport>> create_ucx_transport(const TransportEnvironment& environment) {
  HMC_ASSIGN(const ucx::Api* api, ucx::Api::get());
  HMC_ASSIGN(auto context, ucx::LibraryContext::create(*api, environment.engine));
  return std::unique_ptr<Transport>(std::make_unique<UcxTransport>(std::move(context), environment.engine));
}

}  // namespace
}  // namespace hmc

HMC_TRANSPORT(ucx, hmc::create_ucx_transport, false, true);
