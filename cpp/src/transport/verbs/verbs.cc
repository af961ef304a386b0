// The verbs transport: memory of other hosts over InfiniBand or RoCE, written and read by the network cards themselves.
#include <algorithm>
#include <string>

#include "base/env.h"
#include "device/links.h"
#include "transport/verbs/link.h"
#include "transport/verbs/native.h"
#include "transport/verbs/route.h"

namespace hmc {
namespace {

using verbs::Link;
using verbs::Nic;
using verbs::Shared;

// A card that works reports far earlier, on a busy machine too.
constexpr double least_silence_seconds = 10;
constexpr double silence_factor = 2;
constexpr std::int64_t day_seconds = 86400;

// Between hosts a card that moves the bytes itself comes before sockets, which would share its wire. On one host the card's
// loopback comes behind mapped memory.
constexpr double least_bandwidth = 4e9;
constexpr double most_on_one_host = 5e9;
constexpr double wire_efficiency = 0.9;
constexpr const char* no_common_network = "no port here and port there speak the same network (InfiniBand, RoCE over IPv4 or IPv6)";

class VerbsTransport final : public Transport {
 public:
  explicit VerbsTransport(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {
    for (const auto& nic : *shared_->nics) domain_.ports.push_back(nic->info());
  }
  ~VerbsTransport() override { shared_->turns.clear(); }  // which own what they are owned by

  [[nodiscard]] std::string_view name() const noexcept override { return "verbs"; }

  [[nodiscard]] Capabilities capabilities() const override {
    Capabilities result;
    for (const auto& nic : *shared_->nics) {
      result.reason += (result.reason.empty() ? "" : ", ") + nic->name() + " port " + std::to_string(nic->port()) +
                       (nic->info().ethernet ? " (RoCE v2)" : " (InfiniBand)");
    }
    const auto any = [&](bool (Nic::*takes)() const noexcept) {
      return std::ranges::any_of(*shared_->nics, [&](const auto& nic) { return (*nic.*takes)(); });
    };
    const bool dma_buf = any(&Nic::takes_dma_buf), address = any(&Nic::takes_peer_memory);
    result.reason += "; memory of devices " +
                     std::string(dma_buf && address ? "by dma-buf or its address"
                                 : dma_buf          ? "by dma-buf"
                                 : address          ? "by its address"
                                                    : "is not reached") +
                     (dma_buf || address ? ", tried when it is registered" : "") + "; payload is not encrypted";
    result.max_signal = verbs::max_signal;
    result.eager_limit = verbs::max_signal;
    result.rings = true;
    return result;
  }

  [[nodiscard]] Bytes domain() const override { return verbs::encode_domain(domain_); }

  [[nodiscard]] Reach reach(const PeerDomain& peer, const Device& local, const Device& remote) const override {
    Reach result;
    const auto theirs = verbs::decode_domain(peer.domain);
    if (!theirs.ok()) {
      result.reason = theirs.status().message();
      return result;
    }
    const auto pairings = choose(*theirs);
    if (pairings.empty()) {
      result.reason = no_common_network;
      return result;
    }
    double wire = 0;
    for (const auto& pairing : pairings) {
      const Nic& nic = *(*shared_->nics)[pairing.own];
      if (!local.is_cpu() && !reaches(nic, local)) {
        result.reason = nic.name() + " does not reach memory of " + local.str();
        return result;
      }
      if (!remote.is_cpu() && !theirs->ports[pairing.theirs].devices) {
        result.reason = "the peer's network card does not reach memory of devices";
        return result;
      }
      result.detail += (result.detail.empty() ? "" : " and ") + nic.name();
      wire += wire_efficiency * static_cast<double>(pairing.rate);
    }
    result.ok = true;
    const std::size_t rails = std::min(pairings.size() * shared_->queue_pairs, verbs::max_rails);
    result.detail += ", " + (rails == 1 ? "one connection" : std::to_string(rails) + " connections") + " each way, not encrypted";
    result.reason = "written directly by the network cards";
    result.latency_us = 2;
    result.bandwidth = peer.same_host ? std::clamp(wire, least_bandwidth, most_on_one_host) : std::max(wire, least_bandwidth);
    // To register and try memory of a device takes longer than a message.
    result.transient = local.is_cpu() && remote.is_cpu();
    return result;
  }

  Result<std::unique_ptr<LocalRegion>> register_region(const RegionView& view) override {
    if (!view.span.device.is_cpu() && view.transient) {
      return Status(Code::unsupported, "verbs registers memory of devices for buffers, not for messages");
    }
    return verbs::VerbsLocalRegion::create(view, shared_->nics, shared_->devices);
  }

  Result<std::unique_ptr<Endpoint>> create_endpoint(const PeerDomain& peer, EndpointSink& sink) override {
    HMC_ASSIGN(const verbs::Domain theirs, verbs::decode_domain(peer.domain));
    const auto pairings = choose(theirs);
    if (pairings.empty()) return Status(Code::unsupported, no_common_network);
    std::vector<Nic*> nics;
    for (std::size_t turn = 0; turn < shared_->queue_pairs; ++turn) {
      for (const auto& pairing : pairings) {
        if (nics.size() < verbs::max_rails) nics.push_back((*shared_->nics)[pairing.own].get());
      }
    }
    HMC_ASSIGN(auto link, Link::create(shared_, nics, sink));
    return kit::make_handle(std::move(link));
  }

  Result<std::unique_ptr<NativeLink>> connect_native(const NativeFields& peer) override {
    return verbs::VerbsNativeLink::create(shared_, peer);
  }

  bool poll() override {
    if (shared_->links.empty()) {
      shared_->turns.clear();  // of links that have closed since
      return false;
    }
    bool moved = false;
    for (const auto& nic : *shared_->nics) {
      moved = nic->queues().poll([this](const ibv_wc& completion) { shared_->take(completion); }) || moved;
    }
    advancing_.swap(shared_->turns);
    for (const auto& link : advancing_) {
      link->waiting_turn = false;
      link->advance();
    }
    advancing_.clear();
    if (shared_->held != 0) moved = release_held() || moved;
    return moved;
  }

  bool arm() override {
    if (shared_->links.empty()) return true;
    if (shared_->held != 0) return false;  // no event comes from streams of devices
    return std::ranges::all_of(*shared_->nics, [](const auto& nic) { return nic->queues().arm(); });
  }
  [[nodiscard]] bool busy() const override {
    return shared_->held != 0 || std::ranges::any_of(shared_->links, [](const auto& known) {
             const auto link = known.second.lock();
             return link != nullptr && link->busy();
           });
  }

 private:
  [[nodiscard]] std::vector<verbs::Pairing> choose(const verbs::Domain& theirs) const {
    return verbs::choose_ports(domain_.ports, theirs.ports, shared_->ports);
  }
  // As far as it is known without trying.
  static bool reaches(const Nic& nic, const Device& device) {
    return nic.takes_peer_memory() || (nic.takes_dma_buf() && offers(device, "dma-buf"));
  }

  bool release_held() {
    std::vector<std::shared_ptr<Link>> links;
    for (const auto& [number, known] : shared_->links) {
      if (auto link = known.lock()) links.push_back(std::move(link));
    }
    bool moved = false;
    for (const auto& link : links) moved = link->release_held() || moved;
    return moved;
  }

  std::shared_ptr<Shared> shared_;
  verbs::Domain domain_;
  std::vector<std::shared_ptr<Link>> advancing_;
};

Result<std::unique_ptr<Transport>> create_verbs_transport(const TransportEnvironment& environment) {
  HMC_ASSIGN(const verbs::Api* api, verbs::Api::get());
  auto shared = std::make_shared<Shared>();
  shared->engine = environment.engine;
  shared->patience.timeout = static_cast<std::uint8_t>(env_integer("HMC_VERBS_TIMEOUT", 17, 8, 31));
  shared->patience.retries = static_cast<std::uint8_t>(env_integer("HMC_VERBS_RETRIES", 6, 0, 7));
  shared->patience.traffic_class = static_cast<std::uint8_t>(env_integer("HMC_VERBS_TRAFFIC_CLASS", 0, 0, 255));
  const auto silence = static_cast<double>(env_integer("HMC_VERBS_SILENCE", 0, 0, day_seconds));
  shared->silence_seconds =
      silence != 0 ? silence : std::max(least_silence_seconds, silence_factor * shared->patience.most_seconds());
  shared->ports = static_cast<std::size_t>(env_integer("HMC_VERBS_RAILS", 4, 1, verbs::max_rails));
  shared->queue_pairs = static_cast<std::size_t>(env_integer("HMC_VERBS_QUEUE_PAIRS", 1, 1, verbs::max_rails));
  std::string problems;
  *shared->nics = Nic::open_all(*api, environment.engine, problems);
  if (shared->nics->empty()) return Status(Code::unsupported, problems);
  return std::unique_ptr<Transport>(std::make_unique<VerbsTransport>(std::move(shared)));
}

}  // namespace
}  // namespace hmc

HMC_TRANSPORT(verbs, hmc::create_verbs_transport);
