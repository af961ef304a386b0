// The common part of endpoints, on a wire that moves nothing by itself.
#include <memory>
#include <vector>

#include "transport/kit/endpoint_base.h"
#include "transport/pair.h"

namespace hmc::testing {
namespace {

using kit::Operation;
using kit::OperationTable;

class PlainLocal final : public LocalRegion {
 public:
  explicit PlainLocal(std::span<std::byte> bytes) : LocalRegion({{bytes.data(), bytes.size(), Device::cpu()}}) {}
  Result<Blob> exported() override { return Blob{}; }
};
class PlainRemote final : public RemoteRegion {
 public:
  explicit PlainRemote(std::size_t bytes) noexcept : RemoteRegion(bytes) {}
};

class FakeEndpoint final : public kit::EndpointBase {
 public:
  FakeEndpoint(std::shared_ptr<Engine> engine, EndpointSink& sink)
      : EndpointBase({"fake", 64, kit::operation_type<Operation>()}, std::move(engine), sink) {}

  Result<Blob> address() { return Blob{}; }
  Status connect(const Blob&, Completion* done) { return begin_connect(done); }
  Result<std::unique_ptr<RemoteRegion>> import_region(const Blob&) { return Status(Code::unsupported, "none"); }
  Status signal(ByteSpan, ByteSpan) {
    if (breaks) fail(Status(Code::peer_lost, "gone"));
    return ready() ? Status() : not_ready();
  }
  void receive_rest() {}
  [[nodiscard]] bool has_unsent() const { return false; }

  using EndpointBase::connected;
  using EndpointBase::fail;
  OperationTable& operations() { return operations_; }
  using EndpointBase::send_waiting;
  void begin(std::uint64_t number) { operations().find(number)->started = true; }
  void end(std::uint64_t number) { finish(*operations().find(number)); }

  bool takes = true;    // runs
  bool accepts = true;  // operations
  bool breaks = false;  // within a post
  std::size_t room = 1000;
  std::vector<Bytes> sent;
  int stops = 0;

 private:
  Status check(const Run&, bool) const override { return takes ? Status() : Status(Code::invalid_argument, "not that run"); }
  Status start(Operation&) override {
    if (breaks) fail(Status(Code::peer_lost, "gone"));
    return accepts ? Status() : Status(Code::unsupported, "not that operation");
  }
  bool send(ByteSpan signal, std::uint64_t) override {
    if (room == 0) return false;
    --room;
    sent.emplace_back(signal.begin(), signal.end());
    return true;
  }
  void stop() override { ++stops; }
};

class EndpointBaseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    engine = Engine::create(Progress::manual).value();
    base = std::make_shared<FakeEndpoint>(engine, sink);
    handle = kit::make_handle(base);
    Done done;
    const auto lock = engine->lock();
    HMC_ASSERT_OK(handle->connect({}, &done));
    EXPECT_EQ(done.count(), 0);
    base->connected({});
    EXPECT_EQ(done.count(), 1);
  }
  void TearDown() override {
    handle.reset();
    base.reset();
    engine->stop();
  }
  Status put(Done& done, ByteSpan signal = {}, std::size_t block = 10) {
    runs.push_back(std::make_unique<hmc::Run>(hmc::Run{&local, &remote, &offset, &offset, 1, block}));
    TransferOp op;
    op.runs = {runs.back().get(), 1};
    op.bytes = block;
    op.signal = signal;
    const Posting posting(sink);
    return handle->put(op, &done);
  }
  Status signal() {
    const Posting posting(sink);
    return handle->signal(pattern(9, 1), {});
  }
  void poll() {
    const auto lock = engine->lock();
    engine->poll_once();
  }

  std::shared_ptr<Engine> engine;
  TestSink sink;
  std::shared_ptr<FakeEndpoint> base;
  std::unique_ptr<Endpoint> handle;
  Bytes memory = Bytes(100);
  PlainLocal local{memory};
  PlainRemote remote{100};
  const std::uint64_t offset = 0;
  std::vector<std::unique_ptr<hmc::Run>> runs;
};

TEST_F(EndpointBaseTest, PostChecksBeforeItAccepts) {
  Done done;
  EXPECT_EQ(put(done, {}, 101).code(), Code::invalid_argument);  // outside the regions
  EXPECT_EQ(put(done, Bytes(65)).code(), Code::invalid_argument);
  base->takes = false;
  EXPECT_EQ(put(done).code(), Code::invalid_argument);
  base->takes = true;
  base->accepts = false;
  EXPECT_EQ(put(done).code(), Code::unsupported);
  EXPECT_TRUE(base->operations().empty());
  HMC_EXPECT_OK(put(done, {}, 0));  // zero bytes and no signal: no operation
  EXPECT_EQ(done.count(), 1);
  EXPECT_TRUE(base->operations().empty());
  Done flush;
  HMC_EXPECT_OK(handle->flush(&flush));  // what was not accepted is not waited for
  EXPECT_EQ(flush.count(), 1);
}

TEST_F(EndpointBaseTest, NothingIsPostedBeforeOrAfterTheConnection) {
  auto fresh = std::make_shared<FakeEndpoint>(engine, sink);
  auto unconnected = kit::make_handle(fresh);
  Done done;
  EXPECT_EQ(unconnected->flush(&done).code(), Code::invalid_argument);
  HMC_EXPECT_OK(unconnected->connect({}, &done));
  EXPECT_EQ(unconnected->connect({}, &done).code(), Code::invalid_argument);
  unconnected.reset();
  EXPECT_EQ(done.count(), 1);
  EXPECT_EQ(done.status().code(), Code::closed);
  base->fail(Status(Code::peer_lost, "gone"));
  poll();
  EXPECT_EQ(put(done).code(), Code::peer_lost);
  EXPECT_EQ(handle->flush(&done).code(), Code::peer_lost);
}

TEST_F(EndpointBaseTest, CancelEndsWhatHasNotStarted) {
  Done queued, started, flush, unknown;
  HMC_ASSERT_OK(put(queued));
  HMC_ASSERT_OK(put(started));
  base->begin(2);
  HMC_ASSERT_OK(handle->flush(&flush));
  EXPECT_EQ(handle->cancel(&unknown).code(), Code::unsupported);
  EXPECT_EQ(handle->cancel(&started).code(), Code::unsupported);
  EXPECT_EQ(started.count(), 0);
  HMC_EXPECT_OK(handle->cancel(&queued));
  EXPECT_EQ(queued.count(), 1);
  EXPECT_EQ(queued.status().code(), Code::cancelled);
  EXPECT_EQ(handle->cancel(&queued).code(), Code::unsupported);
  EXPECT_EQ(flush.count(), 0);
  base->end(2);
  HMC_EXPECT_OK(Status(started.status()));
  EXPECT_EQ(flush.count(), 1);
}

TEST_F(EndpointBaseTest, CancelledPutSendsNoSignal) {
  Done done;
  HMC_ASSERT_OK(put(done, pattern(9, 1)));
  HMC_EXPECT_OK(handle->cancel(&done));
  EXPECT_TRUE(base->sent.empty());
}

TEST_F(EndpointBaseTest, SignalsWaitForRoomInOrderAndPushBack) {
  std::vector<Done> done(65);
  base->room = 0;
  for (std::size_t i = 0; i < 64; ++i) {
    HMC_ASSERT_OK(put(done[i], pattern(9, static_cast<unsigned>(i))));
    base->end(i + 1);
    EXPECT_EQ(done[i].count(), 1);
  }
  EXPECT_EQ(put(done[64], pattern(9, 64)).code(), Code::would_block);
  HMC_EXPECT_OK(put(done[64]));  // without one it may go
  base->room = 10;
  EXPECT_TRUE(base->send_waiting());
  EXPECT_EQ(base->sent.size(), 10U);
  base->room = 1000;
  EXPECT_TRUE(base->send_waiting());
  ASSERT_EQ(base->sent.size(), 64U);
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(base->sent[i], pattern(9, static_cast<unsigned>(i)));
  handle.reset();  // ends the last put, whose Done is this test's
}

TEST_F(EndpointBaseTest, CallbackOfAnEndMayDestroyTheEndpoint) {
  Done put_done, flush;
  HMC_ASSERT_OK(put(put_done));
  HMC_ASSERT_OK(handle->flush(&flush));
  put_done.then = [&] { handle.reset(); };
  base->end(1);
  EXPECT_EQ(put_done.count(), 1);
  HMC_EXPECT_OK(Status(put_done.status()));
  EXPECT_EQ(flush.count(), 1);
  EXPECT_TRUE(base->closed());
}

TEST_F(EndpointBaseTest, CallbackOfAFailureMayDestroyTheEndpoint) {
  std::vector<Done> done(3);
  for (Done& each : done) HMC_ASSERT_OK(put(each));
  FakeEndpoint* const raw = base.get();
  base.reset();  // nothing but the handle holds it
  done[1].then = [&] { handle.reset(); };
  raw->fail(Status(Code::peer_lost, "gone"));
  poll();
  for (const Done& each : done) {
    EXPECT_EQ(each.count(), 1);
    EXPECT_EQ(each.status().code(), Code::peer_lost);
  }
  HMC_EXPECT_OK(Status(sink.failure));  // closed: the sink is not called any more
}

TEST_F(EndpointBaseTest, FailureEndsOperationsBeforeTheSinkLearnsOfIt) {
  Done done;
  HMC_ASSERT_OK(put(done));
  done.then = [&] { HMC_EXPECT_OK(Status(sink.failure)); };
  base->fail(Status(Code::peer_lost, "gone"));
  base->fail(Status(Code::protocol, "again"));
  poll();
  EXPECT_EQ(sink.failure.code(), Code::peer_lost);
  EXPECT_EQ(base->stops, 1);
  handle.reset();
  EXPECT_EQ(base->stops, 2);
}

// Who posts may be in the middle of an operation that the sink would end.
TEST_F(EndpointBaseTest, AFailureWithinAPostIsReportedAfterIt) {
  for (const bool by_signal : {false, true}) {
    Done before, within, refused;
    HMC_ASSERT_OK(put(before));
    base->breaks = true;
    if (by_signal) {
      EXPECT_EQ(signal().code(), Code::would_block);
      within.complete(Status(Code::peer_lost, "not posted"));
    } else {
      HMC_EXPECT_OK(put(within));
    }
    for (const Done* done : {&before, &within}) {
      EXPECT_EQ(done->count(), 1);
      EXPECT_EQ(done->status().code(), Code::peer_lost);
    }
    HMC_EXPECT_OK(Status(sink.failure));
    // Not lost for good: its owner posts it elsewhere once it knows.
    EXPECT_EQ(put(refused).code(), Code::would_block);
    EXPECT_EQ(signal().code(), Code::would_block);
    EXPECT_EQ(handle->flush(&refused).code(), Code::would_block);
    EXPECT_EQ(refused.count(), 0);
    poll();
    EXPECT_EQ(sink.failure.code(), Code::peer_lost);
    EXPECT_EQ(put(refused).code(), Code::peer_lost);
    EXPECT_EQ(signal().code(), Code::peer_lost);
    TearDown();
    sink.failure = {};
    SetUp();
  }
}

TEST_F(EndpointBaseTest, AnEndpointThatIsClosedMeanwhileReportsNoFailure) {
  base->fail(Status(Code::peer_lost, "gone"));
  handle.reset();
  poll();
  HMC_EXPECT_OK(Status(sink.failure));
}

TEST_F(EndpointBaseTest, CallbackMayPostAgain) {
  std::vector<Done> done(20);
  for (std::size_t i = 0; i + 1 < done.size(); ++i) {
    done[i].then = [&, i] { HMC_EXPECT_OK(put(done[i + 1])); };
  }
  HMC_ASSERT_OK(put(done[0]));
  for (std::size_t i = 0; i < done.size(); ++i) base->end(i + 1);
  for (const Done& each : done) EXPECT_EQ(each.count(), 1);
  // While everything ends nothing more is accepted.
  Done last, refused;
  HMC_ASSERT_OK(put(last));
  last.then = [&] { EXPECT_EQ(put(refused).code(), Code::closed); };
  base->close();
  EXPECT_EQ(last.count(), 1);
  EXPECT_EQ(refused.count(), 0);
}

}  // namespace
}  // namespace hmc::testing
