// Order across two connections of one peer: notifications that are on their way on one are there before what follows on another.
#include <algorithm>
#include <chrono>
#include <deque>
#include <list>
#include <memory>
#include <utility>

#include "comm/context_state.h"
#include "comm/peer_state.h"
#include "comm/routing/local_transports.h"
#include "comm/session/group_events.h"
#include "second_tcp.h"
#include "support.h"

namespace hmc {
namespace {

using namespace testing;
using Clock = std::chrono::steady_clock;

constexpr auto delay = std::chrono::milliseconds(30);

// Its signals arrive in order, and 30 ms late.
class LateSink final : public EndpointSink {
 public:
  explicit LateSink(EndpointSink& sink) noexcept : sink_(sink) {}
  void on_signal(ByteSpan signal) override { held_.emplace_back(Clock::now(), Bytes(signal.begin(), signal.end())); }
  void on_failed(const Status& reason) override {
    held_.clear();
    sink_.on_failed(reason);
  }
  bool deliver(Clock::duration after = delay) {
    bool moved = false;
    while (!held_.empty() && Clock::now() - held_.front().first >= after) {
      const Bytes signal = std::move(held_.front().second);
      held_.pop_front();
      sink_.on_signal(signal);
      moved = true;
    }
    return moved;
  }
  [[nodiscard]] bool holds() const noexcept { return !held_.empty(); }
  void end() noexcept { held_.clear(); }

 private:
  EndpointSink& sink_;
  std::deque<std::pair<Clock::time_point, Bytes>> held_;
};

// With its end nothing is delivered any more.
class LateEndpoint final : public Endpoint {
 public:
  LateEndpoint(std::unique_ptr<Endpoint> tcp, LateSink& sink) noexcept : tcp_(std::move(tcp)), sink_(sink) {}
  ~LateEndpoint() override {
    tcp_.reset();
    sink_.end();
  }
  Result<Blob> address() override { return tcp_->address(); }
  Status connect(const Blob& address, Completion* done) override { return tcp_->connect(address, done); }
  Result<std::unique_ptr<RemoteRegion>> import_region(const Blob& exported) override { return tcp_->import_region(exported); }
  Status put(const TransferOp& op, Completion* done) override { return tcp_->put(op, done); }
  Status get(const TransferOp& op, Completion* done) override { return tcp_->get(op, done); }
  Status signal(ByteSpan head, ByteSpan body) override { return tcp_->signal(head, body); }
  Status flush(Completion* done) override { return tcp_->flush(done); }
  Status cancel(Completion* done) override { return tcp_->cancel(done); }
  void receive_rest() override {
    tcp_->receive_rest();
    sink_.deliver({});
  }
  [[nodiscard]] bool has_unsent() const override { return tcp_->has_unsent(); }

 private:
  std::unique_ptr<Endpoint> tcp_;
  LateSink& sink_;
};

// "late": tcp by another name, whose signals are late. It carries messages; puts go by tcp, for it takes no long-lived memory.
class Late final : public Transport {
 public:
  explicit Late(std::unique_ptr<Transport> tcp) noexcept : tcp_(std::move(tcp)) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "late"; }
  [[nodiscard]] Capabilities capabilities() const override { return tcp_->capabilities(); }
  [[nodiscard]] Bytes domain() const override { return tcp_->domain(); }
  [[nodiscard]] Reach reach(const PeerDomain& peer, const Device& local, const Device& remote) const override {
    Reach reach = tcp_->reach(peer, local, remote);
    reach.bandwidth *= 100;
    return reach;
  }
  Result<std::unique_ptr<LocalRegion>> register_region(const RegionView& view) override {
    if (!view.transient) return Status(Code::unsupported, "the test's puts go another way");
    return tcp_->register_region(view);
  }
  Result<std::unique_ptr<Endpoint>> create_endpoint(const PeerDomain& peer, EndpointSink& sink) override {
    LateSink& late = sinks_.emplace_back(sink);
    HMC_ASSIGN(auto endpoint, tcp_->create_endpoint(peer, late));
    return std::unique_ptr<Endpoint>(std::make_unique<LateEndpoint>(std::move(endpoint), late));
  }
  bool poll() override {
    bool moved = tcp_->poll();
    for (LateSink& sink : sinks_) moved = sink.deliver() || moved;
    return moved;
  }
  bool arm() override {
    return std::ranges::none_of(sinks_, [](const LateSink& sink) { return sink.holds(); }) && tcp_->arm();
  }

 private:
  std::list<LateSink> sinks_;
  std::unique_ptr<Transport> tcp_;
};

constexpr TransportFactory late_factory{
    .name = "late",
    .create = [](const TransportEnvironment& environment) -> Result<std::unique_ptr<Transport>> {
      HMC_ASSIGN(auto tcp, create_second_tcp(environment));
      return std::unique_ptr<Transport>(std::make_unique<Late>(std::move(tcp)));
    },
    .on_carriers = false,
    .named_only = true};

class Order : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    static const bool added = [] {
      all_transports().push_back(&late_factory);
      return true;
    }();
    static_cast<void>(added);
  }
  const Pair pair_{"late,tcp"};
  const ConnBuffer source_ = *pair_.a.buffer(5000), target_ = *pair_.b.buffer(5000);
  const RemoteBuffer remote_ = *pair_.ab.import(*target_.descriptor(), soon());
};

TEST_F(Order, AFenceHoldsPutsBackBehindNotifications) {
  ASSERT_EQ(pair_.ab.path(Device::cpu(), Device::cpu())->transport, "late");
  for (std::uint64_t round = 1; round < 6; ++round) {
    SCOPED_TRACE(round);
    fill_pattern(span_of(source_), round);
    HMC_ASSERT_OK(pair_.ab.notify(2 * round));
    HMC_ASSERT_OK(pair_.ab.fence());
    const auto put = *pair_.ab.put(source_, remote_, {2 * round + 1, round % 2 == 0 ? Complete::local : Complete::remote});
    HMC_ASSERT_OK(pair_.ba.wait_notify(2 * round + 1, 1, soon()));
    EXPECT_EQ(first_mismatch(span_of(target_), round), -1);
    HMC_EXPECT_OK(pair_.ba.wait_notify(2 * round, 1, soon(0)));
    HMC_ASSERT_OK(put.wait(soon()));
  }
  EXPECT_EQ(pair_.a.counters().at("put.bytes.tcp"), 5U * source_.size());
}

TEST_F(Order, AFenceBesideNothingIsOver) {
  HMC_ASSERT_OK(pair_.ab.notify(1));
  HMC_ASSERT_OK(pair_.ab.fence());
  HMC_ASSERT_OK(pair_.ab.notify(2));
  HMC_ASSERT_OK(pair_.ba.wait_notify(2, 1, soon()));
  HMC_EXPECT_OK(pair_.ba.wait_notify(1, 1, soon(0)));
}

// A mark whose answer is still awaited when either side closes, or the connection goes.
TEST_F(Order, ACloseAmidAFenceLosesNothing) {
  HMC_ASSERT_OK(pair_.ab.notify(1));
  HMC_ASSERT_OK(pair_.ab.fence());
  fill_pattern(span_of(source_), 7);
  const auto put = *pair_.ab.put(source_, remote_, {2, Complete::local});
  pair_.ab.close();
  HMC_EXPECT_OK(pair_.ba.wait_notify(1, 1, soon()));
  HMC_EXPECT_OK(pair_.ba.wait_notify(2, 1, soon()));
  EXPECT_EQ(first_mismatch(span_of(target_), 7), -1);
  HMC_EXPECT_OK(put.wait(soon()));
  HMC_EXPECT_OK(pair_.a.close(soon()));
}

// Messages of groups go over the control channel, the goodbye as a signal of a transport.
TEST(GroupMessages, ComeBeforeTheGoodbye) {
  for (int round = 0; round < 20; ++round) {
    const auto a = make_context(), b = make_context();
    const auto ab = *a.connect(b.addresses().front(), soon());
    const auto ba = *b.accept(soon());
    std::size_t received = 0, before_the_end = 0;
    bool gone = false;
    {
      const auto lock = b.state()->engine()->lock();
      b.state()->group_events().set_message_handler(
          [&](PeerState&, MessageType, ByteSpan, const std::vector<UniqueFd>&) { ++received; });
      b.state()->group_events().watch_peers([&](PeerState&, const Status& reason) {
        EXPECT_EQ(reason.code(), Code::closed) << reason.str();
        before_the_end = received;
        gone = true;
      });
    }
    {
      const auto lock = a.state()->engine()->lock();
      for (std::uint64_t i = 0; i < 50; ++i) HMC_ASSERT_OK(ab.state()->send_control(201, pattern(1000 + i, i)));
    }
    ab.close();
    EXPECT_TRUE(b.state()->engine()->drive(soon(), [&] { return gone; }));
    EXPECT_EQ(before_the_end, 50U);
    HMC_EXPECT_OK(a.close(soon()));
    HMC_EXPECT_OK(b.close(soon()));
  }
}

}  // namespace
}  // namespace hmc
