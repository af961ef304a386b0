#include "breaking.h"

#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "comm/routing/local_transports.h"
#include "second_tcp.h"
#include "transport/transport.h"

namespace hmc::testing {

std::atomic<bool> swift_refuses{false};
std::atomic<int> swift_refusals{0};
std::atomic<int> swift_ends_left{-1};
std::atomic<bool> swift_hides{false};

int cut_data_connections() {
  std::vector<int> sockets;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const std::string name = entry.path().filename();
    int fd = -1;
    std::from_chars(name.data(), name.data() + name.size(), fd);
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 && peer.ss_family == AF_INET) sockets.push_back(fd);
  }
  for (const int fd : sockets) shutdown(fd, SHUT_RDWR);
  return static_cast<int>(sockets.size());
}

namespace {

class Swift final : public Transport {
 public:
  explicit Swift(std::unique_ptr<Transport> tcp) noexcept : tcp_(std::move(tcp)) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "swift"; }
  [[nodiscard]] Capabilities capabilities() const override { return tcp_->capabilities(); }
  [[nodiscard]] Bytes domain() const override { return tcp_->domain(); }
  [[nodiscard]] Reach reach(const PeerDomain& peer, const Device& local, const Device& remote) const override {
    Reach reach = tcp_->reach(peer, local, remote);
    if (hidden_) {
      reach.ok = false;
      reach.reason = "the test hides it";
    }
    reach.bandwidth *= 100;
    return reach;
  }
  Result<std::unique_ptr<LocalRegion>> register_region(const RegionView& view) override { return tcp_->register_region(view); }
  Result<std::unique_ptr<Endpoint>> create_endpoint(const PeerDomain& peer, EndpointSink& sink) override {
    if (swift_refuses.load() || refused() || (swift_ends_left.load() >= 0 && swift_ends_left.fetch_sub(1) <= 0))
      return Status(Code::transport, "the test keeps it from connecting");
    return tcp_->create_endpoint(peer, sink);
  }
  bool poll() override { return tcp_->poll(); }
  bool arm() override { return tcp_->arm(); }

 private:
  static bool refused() {
    int left = swift_refusals.load();
    while (left > 0 && !swift_refusals.compare_exchange_weak(left, left - 1)) {
    }
    return left > 0;
  }
  std::unique_ptr<Transport> tcp_;
  const bool hidden_ = swift_hides.exchange(false);
};

Result<std::unique_ptr<Transport>> create_swift(const TransportEnvironment& environment) {
  HMC_ASSIGN(auto tcp, create_second_tcp(environment));
  return std::unique_ptr<Transport>(std::make_unique<Swift>(std::move(tcp)));
}

constexpr TransportFactory swift_factory{"swift", create_swift};

}  // namespace

void add_swift_transport() {
  static const bool added = [] {
    all_transports().push_back(&swift_factory);
    return true;
  }();
  static_cast<void>(added);
}

}  // namespace hmc::testing
