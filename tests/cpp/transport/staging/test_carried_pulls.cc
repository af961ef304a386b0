// A peer that pulls through a carrier, and asks by a slot again while the bytes of its last answer are on their way.
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/wire.h"
#include "transport/kit/carrier.h"
#include "transport/kit/served_regions.h"
#include "transport/one_transport.h"
#include "transport/staging/messages.h"
#include "transport/staging/ring.h"

namespace hmc::testing {
namespace {

// What the raw end hears.
struct Puller final : CarrierLink::Owner {
  void on_user_signal(ByteSpan) override {}
  void on_own_signal(ByteSpan signal) override {
    const auto message = staging::decode(signal);
    ASSERT_TRUE(message);
    if (const auto* found = std::get_if<staging::Rings>(&*message)) rings = *found;
    if (std::holds_alternative<staging::Finished>(*message)) ++finished;
  }
  void on_carrier_failed(const Status&) override {}
  std::optional<staging::Rings> rings;
  int finished = 0;
};

// The raw end says by itself what a staging endpoint would say; tcp acknowledges its bytes when it is polled.
class CarriedPulls : public ::testing::Test {
 protected:
  static constexpr std::size_t bytes = 1003;

  void SetUp() override {
    setenv("HMC_STAGING_CHUNK_BYTES", "4096", 1);
    setenv("HMC_STAGING_SHARED", "0", 1);
    raw_ = Node::create(factory_of("tcp")).value();
    node_ = Node::create(factory_of("tcp")).value();
    fill_pattern(memory_, 3);
    const Bytes domain = Carriers({raw_->transport.get()}).domain();
    Blob to_node;
    {
      const auto lock = node_->engine->lock();
      staging_ = factory_of("staging").create({node_->engine, nullptr, {}, {node_->transport.get()}}).value();
      node_->engine->add(*staging_);
      region_ = staging_->register_region({{memory_.data(), memory_.size(), Device::cpu()}}).value();
      endpoint_ = staging_->create_endpoint(same_process_domain(domain), sink_).value();
      to_node = endpoint_->address().value();
    }
    unsetenv("HMC_STAGING_CHUNK_BYTES");
    unsetenv("HMC_STAGING_SHARED");
    connect(to_node);
    write_table();
  }
  void TearDown() override {
    {
      const auto lock = raw_->engine->lock();
      mirror_.reset();
      link_.reset();
      ring_region_.reset();
    }
    {
      const auto lock = node_->engine->lock();
      endpoint_.reset();
      region_.reset();
      node_->engine->remove(*staging_);
      staging_.reset();
    }
  }
  void connect(const Blob& to_node) {
    Done connected[2];
    Blob to_raw;
    {
      const auto lock = raw_->engine->lock();
      const Bytes domain = staging_->domain();
      link_ = CarrierLink::create(Carriers({raw_->transport.get()}), same_process_domain(domain), puller_).value();
      Blob extra;
      WireWriter(extra.bytes).u8(2).u32(geometry_.slots).u32(geometry_.chunk_bytes);
      to_raw = link_->address(std::move(extra)).value();
      HMC_ASSERT_OK(link_->connect(to_node, &connected[0]).status());
    }
    {
      const auto lock = node_->engine->lock();
      HMC_ASSERT_OK(endpoint_->connect(to_raw, &connected[1]));
    }
    ASSERT_TRUE(until([&] { return connected[0].done() && connected[1].done(); }));
    const auto lock = raw_->engine->lock();
    ring_ = staging::Ring::allocate(geometry_, false).value();
    HMC_ASSERT_OK(ring_->reserve(0));
    ring_region_ = raw_->transport->register_region({.span = ring_->span()}).value();
    const Bytes exported = ring_region_->exported().value().bytes;
    HMC_ASSERT_OK(link_->signal_own(staging::encode(staging::Rings{exported, exported})));
  }
  // Slot 0 holds `bytes` of the region.
  void write_table() {
    ASSERT_TRUE(until([&] { return puller_.rings.has_value(); }));
    Done done;
    const std::uint64_t offset = 0;
    hmc::Run run{ring_region_.get(), nullptr, &offset, &offset, 1, geometry_.slot_bytes()};
    TransferOp put;
    put.runs = {&run, 1};
    put.bytes = run.block;
    {
      const auto lock = raw_->engine->lock();
      Blob exported;
      exported.bytes = puller_.rings->mirror;
      mirror_ = link_->endpoint().import_region(exported).value();
      ring_->write_entry(0, 0, {decode_served(region_->exported().value().bytes).value().id, 7, bytes});
      run.remote = mirror_.get();
      HMC_ASSERT_OK(link_->endpoint().put(put, &done));
      ASSERT_FALSE(done.done());
    }
    ASSERT_TRUE(until([&] { return done.done(); }));
    HMC_ASSERT_OK(done.status());
  }
  void pull() const {
    const auto lock = raw_->engine->lock();
    HMC_ASSERT_OK(link_->signal_own(staging::encode(staging::Chunk{false, 0, 1, bytes})));
  }
  // The end that answers runs, the raw one does not.
  void answer() const {
    for (int i = 0; i < 100; ++i) node_->poll();
  }
  bool until(const std::function<bool()>& condition) const {
    const Deadline deadline = Deadline::after_seconds(100);
    while (!condition()) {
      if (deadline.passed()) return false;
      raw_->poll();
      node_->poll();
    }
    return true;
  }

  const staging::Geometry geometry_{.chunk_bytes = 4096};
  Bytes memory_ = Bytes(bytes + 10);
  std::unique_ptr<Node> raw_, node_;
  std::unique_ptr<Transport> staging_;
  std::unique_ptr<LocalRegion> region_;
  TestSink sink_;
  std::unique_ptr<Endpoint> endpoint_;
  Puller puller_;
  std::unique_ptr<CarrierLink> link_;
  std::unique_ptr<staging::Ring> ring_;
  std::unique_ptr<LocalRegion> ring_region_;
  std::unique_ptr<RemoteRegion> mirror_;
};

TEST_F(CarriedPulls, AnAnswerWaitsForTheBytesOfTheLastOne) {
  for (int i = 0; i < 2; ++i) {
    pull();
    answer();
  }
  {
    const auto lock = node_->engine->lock();
    EXPECT_TRUE(staging_->arm());  // nothing to do until the raw end runs
  }
  ASSERT_TRUE(until([&] { return puller_.finished == 2; }));
  EXPECT_EQ(std::memcmp(ring_->payload(0), memory_.data() + 7, bytes), 0);
  EXPECT_TRUE(sink_.failure.ok()) << sink_.failure.str();
}

TEST_F(CarriedPulls, AsksWithoutAcknowledgingAreBounded) {
  for (int i = 0; i < 50 && sink_.failure.ok(); ++i) {
    pull();
    answer();
  }
  EXPECT_EQ(sink_.failure.code(), Code::protocol) << sink_.failure.str();
}

}  // namespace
}  // namespace hmc::testing
