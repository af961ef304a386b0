#include "scarce.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "comm/routing/local_transports.h"
#include "second_tcp.h"
#include "transport/transport.h"

namespace hmc::testing {

std::atomic<std::size_t> scarce_used{0};
std::atomic<bool> scarce_holds{false};
std::atomic<std::size_t> scarce_held{0};

namespace {

class ScarceRegion final : public LocalRegion {
 public:
  ScarceRegion(const RegionView& view, std::unique_ptr<LocalRegion> inner) : LocalRegion(view), inner_(std::move(inner)) {}
  ~ScarceRegion() override { scarce_used.fetch_sub(view_.span.bytes); }
  Result<Blob> exported() override { return inner_->exported(); }
  [[nodiscard]] bool scarce() const noexcept override { return true; }
  [[nodiscard]] LocalRegion* inner() const noexcept { return inner_.get(); }

 private:
  std::unique_ptr<LocalRegion> inner_;
};

struct Ended {
  Completion* done;
  Status status;
};
using Held = std::vector<Ended>;

void complete_all(Held& held) {
  Held ended = std::exchange(held, {});
  scarce_held.fetch_sub(ended.size());
  for (Ended& one : ended) one.done->complete(std::move(one.status));
}

// One put or get: its runs name tcp's regions.
class Moving final : public Completion {
 public:
  Moving(const TransferOp& op, Completion* done, std::shared_ptr<Held> held)
      : runs(op.runs.begin(), op.runs.end()), done_(done), held_(std::move(held)) {
    for (Run& run : runs) run.local = static_cast<ScarceRegion*>(run.local)->inner();
  }
  void complete(Status status) noexcept override {
    const std::unique_ptr<Moving> self(this);
    if (!scarce_holds.load()) return done_->complete(std::move(status));
    held_->push_back({done_, std::move(status)});
    scarce_held.fetch_add(1);
  }
  std::vector<Run> runs;

 private:
  Completion* done_;
  std::shared_ptr<Held> held_;
};

class ScarceEndpoint final : public Endpoint {
 public:
  ScarceEndpoint(std::unique_ptr<Endpoint> inner, std::shared_ptr<Held> held) : inner_(std::move(inner)), held_(std::move(held)) {}
  ~ScarceEndpoint() override {
    inner_.reset();
    complete_all(*held_);
  }
  Result<Blob> address() override { return inner_->address(); }
  Status connect(const Blob& address, Completion* done) override { return inner_->connect(address, done); }
  Result<std::unique_ptr<RemoteRegion>> import_region(const Blob& exported) override { return inner_->import_region(exported); }
  Result<Blob> describe(LocalRegion& region) override { return inner_->describe(*static_cast<ScarceRegion&>(region).inner()); }
  Status put(const TransferOp& op, Completion* done) override { return post(op, done, true); }
  Status get(const TransferOp& op, Completion* done) override { return post(op, done, false); }
  Status signal(ByteSpan head, ByteSpan body) override { return inner_->signal(head, body); }
  Status flush(Completion* done) override { return inner_->flush(done); }
  Status cancel(Completion*) override { return {Code::unsupported, "it completes by itself"}; }
  void receive_rest() override { inner_->receive_rest(); }
  [[nodiscard]] bool has_unsent() const override { return inner_->has_unsent(); }

 private:
  Status post(const TransferOp& op, Completion* done, bool is_put) {
    auto moving = std::make_unique<Moving>(op, done, held_);
    TransferOp inner = op;
    inner.runs = moving->runs;
    Moving* const given = moving.release();  // completes, perhaps at once, unless the post fails
    Status status = is_put ? inner_->put(inner, given) : inner_->get(inner, given);
    if (!status.ok()) delete given;
    return status;
  }
  std::unique_ptr<Endpoint> inner_;
  std::shared_ptr<Held> held_;
};

class Scarce final : public Transport {
 public:
  explicit Scarce(std::unique_ptr<Transport> tcp) noexcept : tcp_(std::move(tcp)) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "scarce"; }
  [[nodiscard]] Capabilities capabilities() const override { return tcp_->capabilities(); }
  [[nodiscard]] Bytes domain() const override { return tcp_->domain(); }
  [[nodiscard]] Reach reach(const PeerDomain& peer, const Device& local, const Device& remote) const override {
    Reach reach = tcp_->reach(peer, local, remote);
    reach.bandwidth *= 100;
    return reach;
  }
  Result<std::unique_ptr<LocalRegion>> register_region(const RegionView& view) override {
    const std::size_t bytes = view.span.bytes;
    if (bytes > scarce_budget) return Status(Code::unsupported, "more than the budget");
    if (scarce_used.fetch_add(bytes) + bytes > scarce_budget) {
      scarce_used.fetch_sub(bytes);
      return Status(Code::would_block, "the budget is used up");
    }
    auto inner = tcp_->register_region(view);
    if (!inner.ok()) {
      scarce_used.fetch_sub(bytes);
      return inner.status();
    }
    return std::unique_ptr<LocalRegion>(std::make_unique<ScarceRegion>(view, std::move(*inner)));
  }
  Result<std::unique_ptr<Endpoint>> create_endpoint(const PeerDomain& peer, EndpointSink& sink) override {
    HMC_ASSIGN(auto inner, tcp_->create_endpoint(peer, sink));
    return std::unique_ptr<Endpoint>(std::make_unique<ScarceEndpoint>(std::move(inner), held_));
  }
  bool poll() override {
    const bool moved = tcp_->poll();
    if (scarce_holds.load() || held_->empty()) return moved;
    complete_all(*held_);
    return true;
  }
  bool arm() override { return held_->empty() && tcp_->arm(); }

 private:
  std::unique_ptr<Transport> tcp_;
  std::shared_ptr<Held> held_ = std::make_shared<Held>();
};

Result<std::unique_ptr<Transport>> create_scarce(const TransportEnvironment& environment) {
  HMC_ASSIGN(auto tcp, create_second_tcp(environment));
  return std::unique_ptr<Transport>(std::make_unique<Scarce>(std::move(tcp)));
}

constexpr TransportFactory scarce_factory{"scarce", create_scarce};

}  // namespace

void add_scarce_transport() {
  static const bool added = [] {
    all_transports().push_back(&scarce_factory);
    return true;
  }();
  static_cast<void>(added);
}

}  // namespace hmc::testing
