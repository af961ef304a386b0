// A carrier that breaks in the middle of what staging does with it, or whose other end does not read.
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <deque>
#include <map>
#include <string>

#include "base/wire.h"
#include "transport/kit/endpoint_base.h"
#include "transport/one_transport.h"

namespace hmc::testing {
namespace {

constexpr std::size_t room = 4096;  // of a signal
const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));

// Signals between two ends of this process, until it breaks within the post of one.
class FrailEndpoint final : public kit::EndpointBase {
 public:
  FrailEndpoint(std::shared_ptr<Engine> engine, EndpointSink& sink, std::uint64_t number)
      : EndpointBase({"frail", room, kit::operation_type<kit::Operation>()}, std::move(engine), sink), number_(number) {}
  static std::map<std::uint64_t, std::weak_ptr<FrailEndpoint>>& all() {
    static std::map<std::uint64_t, std::weak_ptr<FrailEndpoint>> known;
    return known;
  }
  Result<Blob> address() {
    Blob own;
    WireWriter(own.bytes).u64(number_);
    return own;
  }
  Status connect(const Blob& address, Completion* done) {
    HMC_TRY(begin_connect(done));
    peer_ = all()[WireReader(address.bytes).u64()];
    connected({});
    return {};
  }
  Result<std::unique_ptr<RemoteRegion>> import_region(const Blob&) { return Status(Code::unsupported, "signals only"); }
  Status signal(ByteSpan head, ByteSpan body) {
    if (!ready()) return not_ready();
    if (signals_left != 0 && --signals_left == 0) {
      fail(Status(Code::peer_lost, "the carrier broke"));
      return not_ready();
    }
    ++sent;
    if (const auto peer = peer_.lock()) {
      Bytes& signal = peer->inbox_.emplace_back(head.begin(), head.end());
      signal.insert(signal.end(), body.begin(), body.end());
    }
    return {};
  }
  void receive_rest() {}
  [[nodiscard]] bool has_unsent() const { return false; }
  bool poll() {
    bool moved = false;
    std::size_t left = most_delivered;
    for (const auto keep = shared_from_this(); ready() && !inbox_.empty() && left != 0; moved = true, --left) {
      const Bytes signal = std::move(inbox_.front());
      inbox_.pop_front();
      sink_->on_signal(signal);
    }
    return moved;
  }
  unsigned signals_left = 0;          // 0: it does not break
  std::size_t sent = 0;               // signals
  std::size_t most_delivered = 1000;  // in one poll

 private:
  Status check(const hmc::Run&, bool) const override { return {Code::unsupported, "signals only"}; }
  Status start(kit::Operation&) override { return {Code::unsupported, "signals only"}; }
  bool send(ByteSpan, std::uint64_t) override { return false; }
  void stop() override {}

  const std::uint64_t number_;
  std::weak_ptr<FrailEndpoint> peer_;
  std::deque<Bytes> inbox_;
};

class FrailCarrier final : public Transport {
 public:
  explicit FrailCarrier(std::shared_ptr<Engine> engine) noexcept : engine_(std::move(engine)) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "frail"; }
  [[nodiscard]] Capabilities capabilities() const override {
    Capabilities own;
    own.max_signal = own.eager_limit = room;
    return own;
  }
  [[nodiscard]] Bytes domain() const override { return {}; }
  [[nodiscard]] Reach reach(const PeerDomain&, const Device&, const Device&) const override {
    Reach reach;
    reach.ok = true;
    reach.bandwidth = 1e9;
    return reach;
  }
  Result<std::unique_ptr<LocalRegion>> register_region(const RegionView&) override {
    return Status(Code::unsupported, "signals only");
  }
  Result<std::unique_ptr<Endpoint>> create_endpoint(const PeerDomain&, EndpointSink& sink) override {
    static std::uint64_t last = 0;
    endpoint = std::make_shared<FrailEndpoint>(engine_, sink, ++last);
    FrailEndpoint::all()[last] = endpoint;
    return kit::make_handle(endpoint);
  }
  bool poll() override { return endpoint && endpoint->poll(); }

  std::shared_ptr<FrailEndpoint> endpoint;

 private:
  const std::shared_ptr<Engine> engine_;
};

struct End {
  End() {
    const auto lock = engine->lock();
    carrier = std::make_unique<FrailCarrier>(engine);
    staging = factory_of("staging").create({engine, nullptr, {}, {carrier.get()}}).value();
    engine->add(*carrier);
    engine->add(*staging);
    auto made = staging->register_region({{memory.data(), memory.size(), Device::cpu()}});
    region = std::move(made.value());
  }
  ~End() {
    {
      const auto lock = engine->lock();
      region.reset();
      endpoint.reset();
      engine->remove(*staging);
      staging.reset();
      engine->remove(*carrier);
      carrier.reset();
    }
    engine->stop();
  }
  void poll() const {
    const auto lock = engine->lock();
    engine->poll_once();
  }

  std::shared_ptr<Engine> engine = Engine::create(Progress::manual).value();
  std::unique_ptr<FrailCarrier> carrier;
  std::unique_ptr<Transport> staging;
  Bytes memory = Bytes(15 * page - 100);  // a chunk takes a page
  std::unique_ptr<LocalRegion> region;
  TestSink sink;
  std::unique_ptr<Endpoint> endpoint;
};

struct Ends {
  Ends() {
    setenv("HMC_STAGING_CHUNK_BYTES", std::to_string(page).c_str(), 1);
    near = std::make_unique<End>();
    far = std::make_unique<End>();
    unsetenv("HMC_STAGING_CHUNK_BYTES");
    for (End* end : {near.get(), far.get()}) {
      const Bytes domain = end->staging->domain();
      const auto lock = end->engine->lock();
      end->endpoint = end->staging->create_endpoint(same_process_domain(domain), end->sink).value();
    }
    const Blob to_near = near->endpoint->address().value(), to_far = far->endpoint->address().value();
    HMC_EXPECT_OK(near->endpoint->connect(to_far, &connected[0]));
    HMC_EXPECT_OK(far->endpoint->connect(to_near, &connected[1]));
    EXPECT_TRUE(until([&] { return connected[0].done() && connected[1].done(); }));
    remote = near->endpoint->import_region(far->region->exported().value()).value();
    blocks = {near->region.get(), remote.get(), &offset, &offset, 1, near->memory.size()};
  }
  bool until(const std::function<bool()>& condition) const {
    const Deadline deadline = Deadline::after_seconds(100);
    while (!condition()) {
      if (deadline.passed()) return false;
      near->poll();
      far->poll();
    }
    return true;
  }
  // 15 chunks.
  Status put(Done& done) {
    TransferOp op;
    op.runs = {&blocks, 1};
    op.bytes = near->memory.size();
    const auto lock = near->engine->lock();
    const Posting posting(near->sink);
    return near->endpoint->put(op, &done);
  }

  std::array<Done, 2> connected;
  std::unique_ptr<End> near, far;
  std::unique_ptr<RemoteRegion> remote;
  const std::uint64_t offset = 0;
  hmc::Run blocks;
};

// `at_far`: the end that breaks is the one that answers. `after`: signals, the last of which breaks it.
void run(bool is_put, bool at_far, unsigned after) {
  SCOPED_TRACE(::testing::Message() << (is_put ? "put" : "get") << (at_far ? " far " : " near ") << after);
  std::vector<Done> done(3), connected(2);  // until the ends are gone
  setenv("HMC_STAGING_CHUNK_BYTES", std::to_string(page).c_str(), 1);
  End near, far;
  unsetenv("HMC_STAGING_CHUNK_BYTES");
  const auto until = [&](const std::function<bool()>& condition) {
    const Deadline deadline = Deadline::after_seconds(100);
    while (!condition()) {
      if (deadline.passed()) return false;
      near.poll();
      far.poll();
    }
    return true;
  };
  for (End* end : {&near, &far}) {
    const Bytes domain = end->staging->domain();
    const auto lock = end->engine->lock();
    end->endpoint = end->staging->create_endpoint(same_process_domain(domain), end->sink).value();
  }
  const Blob to_near = near.endpoint->address().value(), to_far = far.endpoint->address().value();
  HMC_ASSERT_OK(near.endpoint->connect(to_far, &connected[0]));
  HMC_ASSERT_OK(far.endpoint->connect(to_near, &connected[1]));
  ASSERT_TRUE(until([&] { return connected[0].done() && connected[1].done(); }));
  const auto remote = near.endpoint->import_region(far.region->exported().value()).value();
  (at_far ? far : near).carrier->endpoint->signals_left = after;
  const std::uint64_t offset = 0;
  const hmc::Run blocks{near.region.get(), remote.get(), &offset, &offset, 1, near.memory.size()};
  TransferOp op;
  op.runs = {&blocks, 1};
  op.bytes = near.memory.size();
  std::size_t posted = 0;
  {
    const auto lock = near.engine->lock();
    const Posting posting(near.sink);
    for (Done& each : done) {
      const Status status = is_put ? near.endpoint->put(op, &each) : near.endpoint->get(op, &each);
      if (status.ok()) ++posted;
      EXPECT_TRUE(status.ok() || status.code() == Code::would_block) << status.str();
    }
  }
  ASSERT_GE(posted, 1U);
  TestSink& told = (at_far ? far : near).sink;
  ASSERT_TRUE(until([&] { return !told.failure.ok(); }));
  EXPECT_EQ(told.failure.code(), Code::peer_lost) << told.failure.str();
  if (!at_far) {
    for (std::size_t i = 0; i < posted; ++i) {
      EXPECT_EQ(done[i].count(), 1);
      EXPECT_EQ(done[i].status().code(), Code::peer_lost) << done[i].status().str();
    }
  }
  {
    const auto lock = near.engine->lock();
    near.endpoint.reset();
  }
  for (std::size_t i = 0; i < posted; ++i) EXPECT_EQ(done[i].count(), 1);
}

// No operation is through before the carrier breaks.
TEST(StagingOnAFrailCarrier, EndsWhatIsUnderWayOnce) {
  for (const bool is_put : {true, false}) {
    for (const bool at_far : {false, true}) {
      for (const unsigned after : {1U, 2U, 5U, 9U, 14U}) run(is_put, at_far, after);
    }
  }
}

// All slots are with a peer that does not run: only what it does moves on what waits for one.
TEST(StagingSlowPeer, IsWaitedForAsleep) {
  std::array<Done, 3> done;
  Ends ends;
  for (Done& each : done) HMC_ASSERT_OK(ends.put(each));
  for (int i = 0; i < 10; ++i) ends.near->poll();
  {
    const auto lock = ends.near->engine->lock();
    EXPECT_TRUE(ends.near->staging->arm());
  }
  ASSERT_TRUE(ends.until([&] { return std::ranges::all_of(done, &Done::done); }));
  for (const Done& each : done) HMC_EXPECT_OK(each.status());
}

TEST(StagingSlowPeer, ASlotThatIsBackTakesTheNextChunk) {
  Done done;
  Ends ends;
  HMC_ASSERT_OK(ends.put(done));
  const std::size_t first = ends.near->carrier->endpoint->sent;
  for (int i = 0; i < 10; ++i) ends.far->poll();
  ends.near->carrier->endpoint->most_delivered = 1;
  ends.near->poll();
  EXPECT_GT(ends.near->carrier->endpoint->sent, first);
  ASSERT_TRUE(ends.until([&] { return done.done(); }));
  HMC_EXPECT_OK(done.status());
}

// The engine sleeps while the carrier is full, and the peer that reads wakes it.
TEST(StagingSlowPeer, WakesWhoWaitsForRoom) {
  constexpr std::size_t bytes = 200'003;
  const auto near_node = Node::create(factory_of("staging"), Progress::background).value();
  const auto far_node = Node::create(factory_of("staging")).value();
  Side near{near_node.get(), {}, nullptr}, far{far_node.get(), {}, nullptr};
  const auto until = [&](const auto& condition) {
    const Deadline deadline = Deadline::after_seconds(100);
    while (!condition() && !deadline.passed()) {
      if (!far_node->poll()) sched_yield();
    }
    return condition();
  };
  HMC_ASSERT_OK(open_endpoints(near, far));
  HMC_ASSERT_OK(connect_endpoints(near, far, until));
  const Area local(*near_node, bytes, true), target(*far_node, bytes, true);
  fill_pattern(local.span(), 5);
  const auto imported = import_area(near, far, target);
  for (int round = 0; round < 20; ++round) {
    for (const std::size_t size : {1000U, 1U}) {
      while (send_signal(near, Bytes(size)).ok()) {
      }
    }
    Transfer put(near, local, *imported);
    HMC_ASSERT_OK(put.put());
    usleep(round % 2 == 0 ? 0 : 5000);  // so that it may be asleep
    EXPECT_TRUE(until([&] { return put.done.done(); }));
    HMC_EXPECT_OK(put.done.status());
  }
  near.close();
  far.close();
}

}  // namespace
}  // namespace hmc::testing
