// The tcp transport: CPU memory of any two hosts, over several streams per peer. Always there; not encrypted.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>

#include "base/env.h"
#include "progress/address.h"
#include "transport/tcp/endpoint.h"

namespace hmc {
namespace {

using tcp::Shared;
using tcp::TcpEndpoint;

constexpr std::size_t poll_bytes = 1 << 20;
constexpr std::size_t links_per_poll = 16;

class TcpTransport final : public Transport {
 public:
  explicit TcpTransport(const TransportEnvironment& environment)
      : shared_(std::make_shared<Shared>()), listener_(environment.listener), arrivals_(shared_) {
    shared_->engine = environment.engine;
    shared_->streams = static_cast<std::size_t>(env_integer("HMC_TCP_STREAMS", 2, 1, tcp::max_streams));
    shared_->socket_buffer = static_cast<int>(env_integer("HMC_TCP_BUFFER", 0, 0, 1 << 30));
    for (const std::string& address : environment.listen_addresses) {
      if (address.starts_with("tcp://")) shared_->addresses.push_back(address);
    }
    listens_ = std::any_of(shared_->addresses.begin(), shared_->addresses.end(),
                           [](const std::string& address) { return !is_local_address(address); });
    if (listener_ != nullptr) arrivals_.serve(*listener_);
  }
  ~TcpTransport() override {
    if (listener_ != nullptr) arrivals_.stop(*listener_);
    shared_->open.clear();
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "tcp"; }

  [[nodiscard]] Capabilities capabilities() const override {
    Capabilities result;
    result.reason = std::to_string(shared_->streams) + " streams per peer; payload is not encrypted";
    result.max_signal = tcp::max_signal_bytes;
    result.eager_limit = tcp::max_signal_bytes;
    return result;
  }

  [[nodiscard]] Bytes domain() const override { return tcp::encode_domain({listens_}); }

  [[nodiscard]] Reach reach(const PeerDomain& peer, const Device& local, const Device& remote) const override {
    Reach result;
    const auto domain = tcp::decode_domain(peer.domain);
    if (!domain.ok()) {
      result.reason = domain.status().message();
    } else if (!local.is_cpu() || !remote.is_cpu()) {
      result.reason = "tcp moves CPU memory only, not " + local.str() + " to " + remote.str();
    } else if (!peer.same_host && !domain->listens && !listens_) {
      result.reason = "neither side listens on TCP beyond its own host";
    } else {
      result.ok = true;
      result.detail = std::to_string(shared_->streams) + " streams, not encrypted";
      result.reason = "always there";
      result.latency_us = 10;
      result.bandwidth = 3e9;
    }
    return result;
  }

  Result<std::unique_ptr<LocalRegion>> register_region(const RegionView& view) override {
    if (!view.span.device.is_cpu()) {
      return Status(Code::unsupported, "tcp registers CPU memory only, not memory of " + view.span.device.str());
    }
    return std::unique_ptr<LocalRegion>(std::make_unique<ServedLocalRegion>(view, shared_->regions));
  }

  Result<std::unique_ptr<Endpoint>> create_endpoint(const PeerDomain& peer, EndpointSink& sink) override {
    if (shared_->addresses.empty() && peer.same_host) HMC_TRY(listen_on_loopback());
    auto endpoint = std::make_shared<TcpEndpoint>(shared_, peer.same_host, sink);
    if (!polling_) drop_closed();
    shared_->open.push_back(endpoint);
    return kit::make_handle(std::move(endpoint));
  }

  bool poll() override {
    std::size_t budget = poll_bytes;
    bool moved = false;
    polling_ = true;
    const std::size_t count = shared_->open.size();
    std::size_t at = first_ < count ? first_ : 0;
    std::size_t looked = 0;
    for (std::size_t i = 0; i < count && budget != 0 && looked < links_per_poll; ++i, at = at + 1 == count ? 0 : at + 1) {
      TcpEndpoint& candidate = *shared_->open[at];
      if (candidate.closed()) {
        closed_seen_ = true;
      } else if (candidate.active()) {
        const std::shared_ptr<TcpEndpoint> link = shared_->open[at];  // callbacks may destroy the endpoint, or make more
        moved = link->poll(budget) || moved;
        ++looked;
      }
    }
    first_ = at;
    polling_ = false;
    if (closed_seen_) drop_closed();
    return moved;
  }

  bool arm() override {
    return std::all_of(shared_->open.begin(), shared_->open.end(), [](const auto& link) { return link->arm(); });
  }
  [[nodiscard]] bool busy() const override {
    return std::ranges::any_of(shared_->open, [](const auto& link) { return link->busy(); });
  }

 private:
  // For peers on this host when the Context itself listens on a Unix socket only.
  Status listen_on_loopback() {
    if (own_listener_) return {};
    HMC_ASSIGN(auto listener, Listener::create(shared_->engine));
    auto address = listener->listen("tcp://127.0.0.1:0");
    if (!address.ok()) address = listener->listen("tcp://[::1]:0");
    HMC_TRY(address.status());
    own_listener_ = std::move(listener);
    arrivals_.serve(*own_listener_);
    shared_->addresses.push_back(*address);
    return {};
  }

  void drop_closed() {
    closed_seen_ = false;
    std::erase_if(shared_->open, [](const auto& link) { return link->closed(); });
  }

  std::shared_ptr<Shared> shared_;
  Listener* listener_;
  std::unique_ptr<Listener> own_listener_;
  tcp::Arrivals arrivals_;
  bool listens_ = false;  // beyond this host
  std::size_t first_ = 0;
  bool polling_ = false;
  bool closed_seen_ = false;
};

Result<std::unique_ptr<Transport>> create_tcp_transport(const TransportEnvironment& environment) {
  return std::unique_ptr<Transport>(std::make_unique<TcpTransport>(environment));
}

}  // namespace

namespace tcp {

void Shared::tune(int fd) const noexcept {
  set_no_delay(fd);
  if (socket_buffer == 0) return;
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &socket_buffer, sizeof socket_buffer);
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &socket_buffer, sizeof socket_buffer);
}

}  // namespace tcp

}  // namespace hmc

HMC_TRANSPORT(tcp, hmc::create_tcp_transport);
