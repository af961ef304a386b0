// Pair: two ends of one transport, connected, in one process. Every transport's tests stand on it.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "testing.h"
#include "transport/node.h"
#include "transport/transport.h"

namespace hmc::testing {

// Two ends of one link, or one end that loops back when both are the same.
inline PeerDomain same_process_domain(ByteSpan domain) {
  PeerDomain peer;
  peer.same_process = true;
  peer.same_host = true;
  peer.pid = getpid();
  peer.domain = domain;
  return peer;
}

inline Status open_endpoints(Side& a, Side& b) {
  const auto open = [](Side& side, Side& other) -> Status {
    const Bytes domain = other.node->transport->domain();
    const auto lock = side.lock();
    HMC_ASSIGN(side.endpoint, side.node->transport->create_endpoint(same_process_domain(domain), side.sink));
    return {};
  };
  HMC_TRY(open(a, b));
  return &a == &b ? Status() : open(b, a);
}

template <class Until>
Status connect_endpoints(Side& a, Side& b, const Until& until) {
  const std::vector<Side*> ends = &a == &b ? std::vector<Side*>{&a} : std::vector<Side*>{&a, &b};
  std::vector<Blob> addresses;
  for (Side* side : ends) {
    const auto lock = side->lock();
    HMC_ASSIGN(Blob blob, side->endpoint->address());
    addresses.push_back(std::move(blob));
  }
  std::vector<Done> done(ends.size());
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const auto lock = ends[i]->lock();
    HMC_TRY(ends[i]->endpoint->connect(addresses[addresses.size() - 1 - i], &done[i]));
  }
  const bool connected = until([&] { return std::ranges::all_of(done, [](const Done& d) { return d.done(); }); });
  if (!connected) return Status(Code::timeout, "the two ends did not connect");
  for (const Done& d : done) HMC_TRY(Status(d.status()));
  return {};
}

// `area` of the other side, imported at `side` and prepared.
inline std::unique_ptr<RemoteRegion> import_area(Side& side, Side& other, const Area& area) {
  Blob exported;
  {
    const auto lock = other.lock();
    exported = area.region()->exported().value();
  }
  std::unique_ptr<RemoteRegion> region;
  {
    const auto lock = side.lock();
    region = side.endpoint->import_region(exported).value();
  }
  const Status prepared = region->prepare(Device::cpu());
  EXPECT_TRUE(prepared.ok()) << prepared.str();
  return region;
}

class Pair {
 public:
  // Empty, with the reason, when the transport cannot run here or cannot be paired like this.
  // `between` is called after the first of the two is made.
  static std::unique_ptr<Pair> create(
      const TransportFactory& factory, std::string& reason, Progress progress = Progress::manual,
      const std::function<void()>& between = [] {}) {
    auto pair = std::unique_ptr<Pair>(new Pair);
    auto first = Node::create(factory, progress);
    if (!first.ok()) return reason = first.status().str(), nullptr;
    pair->first_ = std::move(*first);
    const Capabilities capabilities = pair->first_->transport->capabilities();
    if (!capabilities.available) return reason = capabilities.reason, nullptr;

    between();
    // Either to another node, or, for transports that reach only themselves, back to the first.
    auto second = Node::create(factory, progress);
    if (!second.ok()) return reason = second.status().str(), nullptr;
    const Bytes other_domain = (*second)->transport->domain();
    const Bytes own_domain = pair->first_->transport->domain();
    const Reach there = pair->first_->transport->reach(peer_domain(other_domain), Device::cpu(), Device::cpu());
    pair->a_.node = pair->first_.get();
    if (there.ok) {
      pair->second_ = std::move(*second);
      pair->b_.node = pair->second_.get();
      pair->far_ = &pair->b_;
    } else {
      const Reach self = pair->first_->transport->reach(peer_domain(own_domain), Device::cpu(), Device::cpu());
      if (!self.ok) return reason = there.reason, nullptr;
      pair->far_ = &pair->a_;
    }
    const Status status = pair->connect();
    if (!status.ok()) {
      ADD_FAILURE() << "connecting: " << status.str();
      return reason = status.str(), nullptr;
    }
    return pair;
  }
  ~Pair() {
    if (a_.endpoint) a_.close();
    if (b_.endpoint) b_.close();
  }

  static PeerDomain peer_domain(ByteSpan domain) { return same_process_domain(domain); }

  Side& a() noexcept { return a_; }
  Side& b() noexcept { return *far_; }  // a() itself for a transport that loops back
  [[nodiscard]] bool loops_back() const noexcept { return far_ == &a_; }
  [[nodiscard]] Capabilities capabilities() const { return first_->transport->capabilities(); }

  bool poll() {
    bool moved = a_.node->poll();
    if (!loops_back()) moved = b_.node->poll() || moved;
    return moved;
  }
  // Polls both ends until `condition`, at most 100 s; longer where the machine is emulated, perhaps on cores that others use too.
  // Between loaded cores a yield takes as long as all that is ready: it comes only after many polls that found nothing.
  [[nodiscard]] bool until(const std::function<bool()>& condition) {
    constexpr int patience = 64;
    const Deadline deadline = Deadline::after_seconds(slow() ? 150 : 100);
    for (int idle = 0; !condition();) {
      if (deadline.passed()) return false;
      idle = poll() ? 0 : idle + 1;
      if (idle % patience == patience - 1) sched_yield();
    }
    return true;
  }
  void settle(int rounds = 200) {
    for (int i = 0; i < rounds; ++i) poll();
  }
  std::unique_ptr<RemoteRegion> import(Side& side, const Area& area) { return import_area(side, other(side), area); }
  Side& other(Side& side) noexcept { return &side == &a_ ? *far_ : a_; }

 private:
  Pair() = default;

  Status connect() {
    HMC_TRY(open_endpoints(a_, *far_));
    return connect_endpoints(a_, *far_, [this](const std::function<bool()>& condition) { return until(condition); });
  }

  std::unique_ptr<Node> first_;
  std::unique_ptr<Node> second_;
  Side a_;
  Side b_;
  Side* far_ = nullptr;
};

// One more link between the nodes of a Pair, which outlives it.
class Link {
 public:
  ~Link() { close(); }
  Status connect(Pair& pair) {
    near.node = pair.a().node;
    far_.node = pair.b().node;
    loops_ = pair.loops_back();
    HMC_TRY(open_endpoints(near, far_side()));
    return connect_endpoints(near, far_side(), [&](const std::function<bool()>& condition) { return pair.until(condition); });
  }
  Side& far_side() noexcept { return loops_ ? near : far_; }
  std::unique_ptr<RemoteRegion> import(const Area& area) { return import_area(near, far_side(), area); }
  void close() {
    if (near.endpoint) near.close();
    if (far_.endpoint) far_.close();
  }

  Side near;

 private:
  Side far_;
  bool loops_ = false;
};

// One contiguous put or get; keeps what the operation points to.
class Transfer {
 public:
  Transfer(Side& side, const Area& local, RemoteRegion& remote) : Transfer(side, local, remote, {0}, {0}, local.bytes()) {}
  Transfer(Side& side, const Area& local, RemoteRegion& remote, std::vector<std::uint64_t> local_offsets,
           std::vector<std::uint64_t> remote_offsets, std::size_t block)
      : side_(&side) {
    add(local, remote, std::move(local_offsets), std::move(remote_offsets), block);
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  // A test that gave up on it leaves with it under way.
  ~Transfer() {
    if (posted_ && !done.done()) side_->close();
  }
  // Another pair of regions in the same operation.
  void add(const Area& local, RemoteRegion& remote, std::vector<std::uint64_t> local_offsets,
           std::vector<std::uint64_t> remote_offsets, std::size_t block) {
    offsets_.push_back(std::make_unique<std::vector<std::uint64_t>>(std::move(local_offsets)));
    const auto& locals = *offsets_.back();
    offsets_.push_back(std::make_unique<std::vector<std::uint64_t>>(std::move(remote_offsets)));
    const auto& remotes = *offsets_.back();
    runs_.push_back({local.region(), &remote, locals.data(), remotes.data(), locals.size(), block});
  }
  void set_signal(ByteSpan signal) { signal_.assign(signal.begin(), signal.end()); }
  void set_level(Complete level) { level_ = level; }
  Status put() { return post(true); }
  Status get() { return post(false); }
  // Without an own locking: for posts from a sink or a completion.
  Status post_locked(bool is_put) {
    TransferOp op;
    op.runs = runs_;
    for (const Run& run : runs_) op.bytes += run.count * run.block;
    op.level = level_;
    op.signal = signal_;
    const Posting posting(side_->sink);
    const Status status = is_put ? side_->endpoint->put(op, &done) : side_->endpoint->get(op, &done);
    posted_ = posted_ || status.ok();
    return status;
  }
  Status cancel() {
    const auto lock = side_->lock();
    const Posting posting(side_->sink);
    return side_->endpoint->cancel(&done);
  }

  Done done;

 private:
  Status post(bool is_put) {
    const auto lock = side_->lock();
    return post_locked(is_put);
  }

  Side* side_;
  std::vector<std::unique_ptr<std::vector<std::uint64_t>>> offsets_;
  std::vector<Run> runs_;
  Bytes signal_;
  Complete level_ = Complete::remote;
  bool posted_ = false;
};

inline Status send_signal(Side& side, ByteSpan head, ByteSpan body = {}) {
  const auto lock = side.lock();
  const Posting posting(side.sink);
  return side.endpoint->signal(head, body);
}

}  // namespace hmc::testing
