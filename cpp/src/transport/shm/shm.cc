// The shm transport: CPU memory of two processes on one host.
//
// Who may write where: a mapped region and the system-call path are guarded by the kernel's permissions between processes of one
// user (the importer keeps to the exported bounds and access; a dishonest peer of the same user could always use ptrace). On the
// ring path the owner's software checks every chunk.
#include <algorithm>
#include <string>

#include "base/env.h"
#include "base/random.h"
#include "base/wire.h"
#include "transport/kit/endpoint_base.h"
#include "transport/shm/endpoint.h"

namespace hmc {

namespace {

using shm::Shared;
using shm::ShmEndpoint;

constexpr std::uint8_t domain_version = 2;
constexpr std::size_t poll_bytes = 1 << 20;
// A rendezvous of 64 KiB takes three times as long as one copy by each side, of 12 KiB six times: measured on a 2-core AMD EPYC,
// 2026-11.
constexpr std::size_t eager_limit = 64 << 10;

class ShmTransport final : public Transport {
 public:
  explicit ShmTransport(std::shared_ptr<Engine> engine) : shared_(std::make_shared<Shared>()) {
    shared_->engine = std::move(engine);
    const auto ring = env_integer("HMC_SHM_RING_BYTES", 512 << 10, shm::min_ring_bytes, shm::max_ring_bytes);
    shared_->sizes = shm::sizes_for(static_cast<std::size_t>(ring));
    shared_->ptrace_wanted = env_flag("HMC_SHM_PTRACE", true);
    shared_->probe_word = random_u64();
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "shm"; }

  [[nodiscard]] Capabilities capabilities() const override {
    Capabilities result;
    const bool ptrace = shared_->ptrace_wanted && !shared_->ptrace_refused;
    result.reason = "memory allocated by HMC is mapped; " + other_memory();
    result.max_signal = shm::max_signal;
    result.eager_limit = eager_limit;
    result.foreign_both_ends = ptrace;
    result.shares_memory = true;
    result.breaks = false;
    return result;
  }

  [[nodiscard]] Bytes domain() const override {
    Bytes bytes;
    WireWriter(bytes).u8(domain_version);
    return bytes;
  }

  [[nodiscard]] Reach reach(const PeerDomain& peer, const Device& local, const Device& remote) const override {
    Reach result;
    WireReader reader(peer.domain);
    const std::uint8_t version = reader.u8();
    if (!reader.finish() || version != domain_version) {
      result.reason = "the peer's shm speaks version " + std::to_string(version) + ", this one " + std::to_string(domain_version);
    } else if (!peer.same_host) {
      result.reason = "the peer is not on this host (no descriptor could be passed)";
    } else if (!local.is_cpu() || !remote.is_cpu()) {
      result.reason = "shm moves CPU memory only, not " + local.str() + " to " + remote.str();
    } else {
      result.ok = true;
      result.detail = "mapped memfd; " + other_memory();
      result.reason = "same host";
      result.latency_us = 0.2;
      result.bandwidth = 10e9;
    }
    return result;
  }

  Result<std::unique_ptr<LocalRegion>> register_region(const RegionView& view) override {
    if (!view.span.device.is_cpu()) {
      return Status(Code::unsupported, "shm registers CPU memory only, not memory of " + view.span.device.str());
    }
    return std::unique_ptr<LocalRegion>(std::make_unique<shm::ShmLocalRegion>(view, shared_->regions, shared_->ptrace_wanted));
  }

  Result<std::unique_ptr<Endpoint>> create_endpoint(const PeerDomain& peer, EndpointSink& sink) override {
    HMC_ASSIGN(auto endpoint, ShmEndpoint::create(shared_, peer.pid, sink));
    if (!polling_) drop_closed();
    endpoints_.push_back(endpoint);
    return kit::make_handle(std::move(endpoint));
  }

  bool poll() override {
    std::size_t budget = poll_bytes;
    bool moved = false;
    polling_ = true;
    const std::size_t count = endpoints_.size();
    std::size_t at = first_ < count ? first_ : 0;
    for (std::size_t i = 0; i < count && budget != 0; ++i, at = at + 1 == count ? 0 : at + 1) {
      if (endpoints_[at]->closed()) {
        closed_seen_ = true;
      } else if (endpoints_[at]->active()) {
        const std::shared_ptr<ShmEndpoint> endpoint = endpoints_[at];  // callbacks may destroy the endpoint, or make more
        moved = endpoint->poll(budget) || moved;
      }
    }
    first_ = at;  // whoever found the budget spent comes first next time
    polling_ = false;
    if (closed_seen_) drop_closed();
    return moved;
  }

  bool arm() override {
    armed_ = true;
    for (const auto& endpoint : endpoints_) {
      if (endpoint->arm()) continue;
      disarm();
      return false;
    }
    return true;
  }

  void disarm() override {
    if (!armed_) return;
    armed_ = false;
    for (const auto& endpoint : endpoints_) endpoint->disarm();
  }

  [[nodiscard]] bool busy() const override {
    return std::ranges::any_of(endpoints_, [](const auto& endpoint) { return endpoint->busy(); });
  }

 private:
  [[nodiscard]] std::string other_memory() const {
    if (!shared_->ptrace_wanted) return "other memory goes through a shared ring (HMC_SHM_PTRACE=0)";
    if (shared_->ptrace_refused) return "other memory goes through a shared ring (ptrace is not permitted)";
    return "other memory is copied between address spaces (process_vm)";
  }

  void drop_closed() {
    closed_seen_ = false;
    std::erase_if(endpoints_, [](const auto& endpoint) { return endpoint->closed(); });
  }

  std::shared_ptr<Shared> shared_;
  std::vector<std::shared_ptr<ShmEndpoint>> endpoints_;
  std::size_t first_ = 0;
  bool polling_ = false;
  bool closed_seen_ = false;
  bool armed_ = false;
};

Result<std::unique_ptr<Transport>> create_shm_transport(const TransportEnvironment& environment) {
  return std::unique_ptr<Transport>(std::make_unique<ShmTransport>(environment.engine));
}

}  // namespace

}  // namespace hmc

HMC_TRANSPORT(shm, hmc::create_shm_transport);
