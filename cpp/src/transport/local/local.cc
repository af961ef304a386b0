// The local transport: a Context to itself. Copies between any memories of the process; signals loop back through a bounded queue.
#include <algorithm>
#include <string>
#include <vector>

#include "base/random.h"
#include "device/links.h"
#include "transport/link_list.h"
#include "transport/local/loop.h"

namespace hmc {

namespace {

using local::Loop;
using local::Shared;

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

class LocalEndpoint final : public Endpoint {
 public:
  explicit LocalEndpoint(std::shared_ptr<Loop> loop) noexcept : loop_(std::move(loop)) {}
  ~LocalEndpoint() override { loop_->close(); }

  // There is nobody to find: both ends are this object.
  Result<Blob> address() override { return Blob{}; }
  Status connect(const Blob& peer_address, Completion* done) override {
    if (!peer_address.bytes.empty() || !peer_address.fds.empty()) return Status(Code::protocol, "malformed local address");
    HMC_TRY(loop_->connect());
    done->complete({});
    return {};
  }
  Result<std::unique_ptr<RemoteRegion>> import_region(const Blob& exported) override {
    return local::ImportedRegion::import(loop_->shared(), exported);
  }
  Status put(const TransferOp& op, Completion* done) override { return loop_->put(op, done); }
  Status get(const TransferOp& op, Completion* done) override { return loop_->get(op, done); }
  Status signal(ByteSpan head, ByteSpan body) override { return loop_->signal(head, body); }
  Status flush(Completion* done) override { return loop_->flush(done); }
  Status cancel(Completion* done) override { return loop_->cancel(done); }

 private:
  std::shared_ptr<Loop> loop_;
};

class LocalTransport final : public Transport {
 public:
  explicit LocalTransport(std::shared_ptr<Engine> engine) : shared_(std::make_shared<Shared>()) {
    shared_->engine = std::move(engine);
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
    return std::unique_ptr<LocalRegion>(std::make_unique<local::Region>(view, shared_));
  }

  Result<std::unique_ptr<Endpoint>> create_endpoint(const PeerDomain& peer, EndpointSink& sink) override {
    if (!peer.same_process || !std::ranges::equal(peer.domain, instance_)) {
      return Status(Code::unsupported, "local reaches only its own Context");
    }
    auto loop = std::make_shared<Loop>(shared_, sink);
    loops_.add(loop);
    return std::unique_ptr<Endpoint>(std::make_unique<LocalEndpoint>(std::move(loop)));
  }

  bool poll() override {
    std::size_t budget = poll_bytes;
    return loops_.poll([&](Loop& loop) { return loop.poll(budget); });
  }
  bool arm() override { return loops_.idle(); }
  [[nodiscard]] bool busy() const override { return !loops_.idle(); }

 private:
  std::shared_ptr<Shared> shared_;
  Bytes instance_;
  LinkList<Loop> loops_;
};

Result<std::unique_ptr<Transport>> create_local_transport(const TransportEnvironment& environment) {
  return std::unique_ptr<Transport>(std::make_unique<LocalTransport>(environment.engine));
}

}  // namespace

}  // namespace hmc

HMC_TRANSPORT(local, hmc::create_local_transport);
