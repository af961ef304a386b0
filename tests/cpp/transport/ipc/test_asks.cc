// CPU memory here and a device there: the peer's end is asked, and checks every word of it. The device is simulated; between real
// processes: tests/python/test_peers_devices.py.
#include <fcntl.h>
#include <sys/mman.h>

#include <array>

#include "base/wire.h"
#include "transport/any_area.h"
#include "transport/ipc/descriptor_channel.h"
#include "transport/ipc/messages.h"
#include "transport/kit/carrier.h"
#include "transport/one_transport.h"

namespace hmc::testing {
namespace {

constexpr std::size_t bytes = 300'007;

Device card() {
  setenv("HMC_CUDA_LIBRARY", HMC_SIM_CUDA, 1);
  setenv("HMC_SIM_DELAY_US", "300", 1);  // so that copies are under way for a while
  return Device::parse("cuda:0").value();
}

Bytes text(std::string_view words) {
  const ByteSpan span = std::as_bytes(std::span(words));
  return {span.begin(), span.end()};
}

class Asks : public ::testing::Test {
 protected:
  void SetUp() override {
    for (Side* side : {&near, &far}) {
      nodes.push_back(Node::create(factory_of("ipc")).value());
      side->node = nodes.back().get();
    }
    HMC_ASSERT_OK(open_endpoints(near, far));
    HMC_ASSERT_OK(connect_endpoints(near, far, [this](const auto& condition) { return until(condition); }));
  }
  void TearDown() override {
    for (Side* side : {&near, &far}) {
      if (side->endpoint) side->close();
    }
  }
  bool until(const std::function<bool()>& condition) {
    const Deadline deadline = Deadline::after_seconds(100);
    while (!condition()) {
      if (deadline.passed()) return false;
      for (const auto& node : nodes) node->poll();
    }
    return true;
  }
  void ends(Move& move, Code code = Code::ok) {
    ASSERT_TRUE(until([&] { return move.done.done(); }));
    EXPECT_EQ(move.done.status().code(), code) << move.done.status().str();
    EXPECT_EQ(move.done.count(), 1);
  }

  std::vector<std::unique_ptr<Node>> nodes;
  Side near, far;
};

TEST_F(Asks, PutAndGetByThePeersDevice) {
  const AnyArea host(*near.node, bytes, Device::cpu());
  const AnyArea device(*far.node, bytes, card());
  auto remote = device.imported(near).value();
  HMC_ASSERT_OK(remote->prepare(Device::cpu()));
  host.fill(3);
  device.fill(4);
  Move put(near, host, *remote, 100'001, 77, 5);
  HMC_ASSERT_OK(put.put(text("told")));
  ends(put);
  ASSERT_TRUE(until([&] { return !far.sink.signals.empty(); }));
  EXPECT_EQ(far.sink.signals.front(), text("told"));
  auto wanted = pattern(bytes, 4);
  std::copy_n(pattern(bytes, 3).begin() + 77, 100'001, wanted.begin() + 5);
  EXPECT_EQ(device.bytes(), wanted);
  Move get(near, host, *remote, 50'000, 11, 100'000);
  HMC_ASSERT_OK(get.get());
  ends(get);
  auto back = pattern(bytes, 3);
  std::copy_n(wanted.begin() + 100'000, 50'000, back.begin() + 11);
  EXPECT_EQ(host.bytes(), back);
  EXPECT_EQ(far.sink.signals.size(), 1U);
}

TEST_F(Asks, ManyBlocksTakeSeveralAsksAndOneSignal) {
  const AnyArea host(*near.node, bytes, Device::cpu());
  const AnyArea device(*far.node, bytes, card());
  auto remote = device.imported(near).value();
  host.fill(5);
  device.fill(6);
  constexpr std::size_t count = 3000, block = 93;
  std::vector<std::uint64_t> from, to;
  auto wanted = pattern(bytes, 6);
  const auto sent = pattern(bytes, 5);
  for (std::size_t i = 0; i < count; ++i) {
    from.push_back(3 + (i * 7 % count) * block);
    to.push_back(1 + i * block);
    std::copy_n(sent.begin() + static_cast<std::ptrdiff_t>(from[i]), block, wanted.begin() + static_cast<std::ptrdiff_t>(to[i]));
  }
  const hmc::Run run{host.region(), remote.get(), from.data(), to.data(), count, block};
  const Bytes signal = text("all");
  TransferOp op;
  op.runs = {&run, 1};
  op.bytes = count * block;
  op.signal = signal;
  Done done, flushed;
  {
    const auto lock = near.lock();
    HMC_ASSERT_OK(near.endpoint->put(op, &done));
    EXPECT_EQ(near.endpoint->cancel(&done).code(), Code::unsupported);
    HMC_ASSERT_OK(near.endpoint->flush(&flushed));
  }
  ASSERT_TRUE(until([&] { return done.done() && flushed.done() && !far.sink.signals.empty(); }));
  HMC_EXPECT_OK(Status(done.status()));
  EXPECT_EQ(device.bytes(), wanted);
  EXPECT_EQ(far.sink.signals, std::vector<Bytes>{signal});
}

TEST_F(Asks, WhatItsOwnerClosedIsClosed) {
  const AnyArea host(*near.node, bytes, Device::cpu());
  AnyArea device(*far.node, bytes, card());
  const AnyArea shown(*far.node, bytes, card(), Access::read);
  auto remote = device.imported(near).value();
  auto shown_remote = shown.imported(near).value();
  device.fill(7);
  shown.fill(8);
  host.fill(9);
  Move into_shown(near, host, *shown_remote, bytes);
  HMC_ASSERT_OK(into_shown.put(text("never")));
  ends(into_shown, Code::invalid_argument);
  device.deregister();
  Move put(near, host, *remote, bytes);
  HMC_ASSERT_OK(put.put(text("never")));
  ends(put, Code::stale);
  EXPECT_EQ(device.bytes(), pattern(bytes, 7));
  EXPECT_EQ(shown.bytes(), pattern(bytes, 8));
  EXPECT_TRUE(far.sink.signals.empty());
}

TEST_F(Asks, EndsWithEitherEndpoint) {
  const AnyArea host(*near.node, bytes, Device::cpu());
  const AnyArea device(*far.node, bytes, card());
  auto remote = device.imported(near).value();
  for (Side* closing : {&far, &near}) {
    if (!near.endpoint) {
      HMC_ASSERT_OK(open_endpoints(near, far));
      HMC_ASSERT_OK(connect_endpoints(near, far, [this](const auto& condition) { return until(condition); }));
      near.sink.failure = far.sink.failure = {};
    }
    Move put(near, host, *remote, bytes);
    HMC_ASSERT_OK(put.put());
    for (int i = 0; i < 20; ++i) nodes[1]->poll();
    closing->close();
    (closing == &far ? near : far).close();
    EXPECT_EQ(put.done.count(), 1);
    const auto before = device.bytes();
    host.fill(11);
    for (int i = 0; i < 100; ++i) nodes[1]->poll();
    EXPECT_EQ(device.bytes(), before);
  }
}

TEST_F(Asks, AFullCarrierIsWaitedForAsleep) {
  const AnyArea host(*near.node, bytes, Device::cpu());
  const AnyArea device(*far.node, bytes, card());
  auto remote = device.imported(near).value();
  host.fill(21);
  const Bytes large(1000);
  while (send_signal(near, large).ok()) {
  }
  const Bytes small(1);
  while (send_signal(near, small).ok()) {
  }
  Move put(near, host, *remote, bytes);
  HMC_ASSERT_OK(put.put());
  for (int i = 0; i < 10; ++i) near.node->poll();
  {
    const auto lock = near.lock();
    EXPECT_TRUE(near.node->transport->arm());
    near.node->transport->disarm();
  }
  ends(put);
  EXPECT_EQ(device.bytes(), host.bytes());
}

// A peer that says what it likes.
class Raw final : public CarrierLink::Owner {
 public:
  Raw(Node& own, Node& other) {
    std::vector<Transport*> each;
    for (const auto& one : own.carriers) each.push_back(one.get());
    const Bytes domain = other.transport->domain();
    carrier = CarrierLink::create(Carriers(each), same_process_domain(domain), *this).value();
  }
  void on_user_signal(ByteSpan) override {}
  void on_own_signal(ByteSpan signal) override {
    if (auto message = ipc::decode(signal)) heard.push_back(std::move(*message));
  }
  void on_carrier_failed(const Status& reason) override { failure = reason; }

  std::unique_ptr<CarrierLink> carrier;
  ipc::DescriptorChannel channel = ipc::DescriptorChannel::create().value();
  std::vector<ipc::Message> heard;
  Status failure;
};

class Intruder : public Asks {
 protected:
  void SetUp() override {
    for (int i = 0; i < 2; ++i) nodes.push_back(Node::create(factory_of("ipc")).value());
    far.node = nodes[1].get();
    device = std::make_unique<AnyArea>(*far.node, bytes, card());
    device->fill(1);
    const Bytes domain = nodes[0]->transport->domain();
    const auto lock = far.lock();
    far.endpoint = far.node->transport->create_endpoint(same_process_domain(domain), far.sink).value();
    raw = std::make_unique<Raw>(*nodes[0], *nodes[1]);
    Blob extra;
    extra.fds.push_back(raw->channel.far_end().value());
    const Blob mine = raw->carrier->address(std::move(extra)).value();
    const Blob theirs = far.endpoint->address().value();
    static Done near_done, far_done;
    raw->channel.connect(std::move(raw->carrier->connect(theirs, &near_done).value().fds.front()));
    HMC_ASSERT_OK(far.endpoint->connect(mine, &far_done));
    Blob exported = device->region()->exported().value();
    WireReader reader(exported.bytes);
    reader.u8();
    reader.text(32);
    reader.bytes(4096);
    reader.u64();
    ask.region = reader.u64();
    ask.block = 100;
    ask.memory = 1;
    ask.memory_offsets = {0};
    ask.region_offsets = {0};
  }
  void TearDown() override {
    if (far.endpoint) far.close();
    const auto lock = nodes[0]->engine->lock();
    raw.reset();
  }
  void say(ByteSpan message) {
    ASSERT_TRUE(until([&] {
      const auto lock = nodes[0]->engine->lock();
      return raw->carrier->signal_own(message).ok();
    }));
  }
  // A memfd of so many bytes, announced as `claimed`.
  void announce(std::uint64_t id, std::size_t size, std::uint64_t claimed, bool sealed = true, Access access = Access::read_write) {
    UniqueFd fd = make_memfd("hmc-test", MFD_ALLOW_SEALING);
    ASSERT_EQ(ftruncate(fd.get(), static_cast<off_t>(size)), 0);
    if (sealed) {
      ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
    }
    Bytes exported;
    WireWriter(exported).u8(3).u8(static_cast<std::uint8_t>(access)).u64(0).u64(claimed);
    HMC_ASSERT_OK(raw->channel.send(encode(ipc::Announcement{id, exported}), {&fd, 1}));
  }
  void answered(Code code) {
    say(encode(ask));
    ASSERT_TRUE(until([&] { return !raw->heard.empty(); }));
    const auto answer = std::get<ipc::Answer>(raw->heard.front());
    raw->heard.clear();
    EXPECT_EQ(answer.code, code) << answer.message;
    EXPECT_EQ(answer.number, ask.number);
  }
  void refused(ByteSpan message) {
    say(message);
    ASSERT_TRUE(until([&] { return !far.sink.failure.ok(); }));
    EXPECT_EQ(far.sink.failure.code(), Code::protocol) << far.sink.failure.str();
    EXPECT_EQ(device->bytes(), pattern(bytes, 1));
  }

  std::unique_ptr<Raw> raw;
  std::unique_ptr<AnyArea> device;
  ipc::Ask ask;
};

TEST_F(Intruder, WhatIsRightIsDone) {
  announce(1, 4096, 4096);
  answered(Code::ok);
  auto wanted = pattern(bytes, 1);
  std::fill_n(wanted.begin(), 100, std::byte{0});
  EXPECT_EQ(device->bytes(), wanted);
}

TEST_F(Intruder, WhatIsOutsideIsRefused) {
  announce(1, 8192, 4096);
  announce(2, 4096, 4096, true, Access::read);
  constexpr std::uint64_t most = ~std::uint64_t{0};
  const auto with = [&](auto change, Code code) {
    const ipc::Ask kept = ask;
    change(ask);
    answered(code);
    ask = kept;
  };
  with([](ipc::Ask& a) { a.region_offsets = {bytes - 99}; }, Code::invalid_argument);
  with([](ipc::Ask& a) { a.region_offsets = {most - 50}; }, Code::invalid_argument);
  with([](ipc::Ask& a) { a.block = most; }, Code::invalid_argument);
  with([](ipc::Ask& a) { a.memory_offsets = {4096 - 99}; }, Code::invalid_argument);
  with([](ipc::Ask& a) { a.memory_offsets = {most - 50}; }, Code::invalid_argument);
  with([](ipc::Ask& a) { a.block = bytes + 1; }, Code::invalid_argument);
  with([](ipc::Ask& a) { ++a.region; }, Code::stale);
  with([](ipc::Ask& a) { a.region = 0; }, Code::stale);
  with([](ipc::Ask& a) { a.put = false, a.memory = 2; }, Code::invalid_argument);  // it may only be read
  EXPECT_EQ(device->bytes(), pattern(bytes, 1));
  EXPECT_TRUE(far.sink.failure.ok());
}

TEST_F(Intruder, FilesThatCannotBeTrusted) {
  announce(1, 4096, 8192);
  answered(Code::protocol);
  announce(2, 4096, 4096, false);
  ask.memory = 2;
  answered(Code::protocol);
  Bytes exported;
  WireWriter(exported).u8(3).u8(1).u64(0).u64(4096);
  HMC_ASSERT_OK(raw->channel.send(encode(ipc::Announcement{3, exported}), {}));
  ask.memory = 3;
  answered(Code::protocol);
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  HMC_ASSERT_OK(raw->channel.send(encode(ipc::Announcement{4, exported}), {&null, 1}));
  ask.memory = 4;
  answered(Code::protocol);
  EXPECT_EQ(device->bytes(), pattern(bytes, 1));
}

TEST_F(Intruder, MemoryThatWasForgotten) {
  announce(1, 4096, 4096);
  answered(Code::ok);
  device->fill(1);
  say(encode(ipc::Forget{1}));
  refused(encode(ask));
}

TEST_F(Intruder, MemoryThatWasNeverAnnounced) { refused(encode(ask)); }

TEST_F(Intruder, MemoryAnnouncedTwice) {
  announce(1, 4096, 4096);
  announce(1, 4096, 4096);
  refused(encode(ask));
}

TEST_F(Intruder, AnAnnouncementOfNonsense) {
  HMC_ASSERT_OK(raw->channel.send(text("nonsense"), {}));
  refused(encode(ask));
}

TEST_F(Intruder, OneNumberTwice) {
  announce(1, 4096, 4096);
  say(encode(ask));
  say(encode(ask));
  ASSERT_TRUE(until([&] { return !far.sink.failure.ok() || raw->heard.size() == 2; }));
}

// Its carrier takes no answers any more, yet it goes on asking: what it does not take in is kept within bounds.
TEST_F(Intruder, AsksWithoutTakingTheAnswers) {
  ask.region = 0;  // refused at once
  announce(1, 4096, 4096);
  constexpr std::uint32_t many = 200'000;
  const auto only_far = [&] {
    const auto lock = far.lock();
    far.node->engine->poll_once();
  };
  std::uint32_t asked = 0;
  while (asked < many && far.sink.failure.ok()) {
    ask.number = asked % ipc::max_asks;
    {
      const auto lock = nodes[0]->engine->lock();
      if (raw->carrier->signal_own(encode(ask)).ok()) ++asked;
    }
    only_far();
  }
  EXPECT_EQ(far.sink.failure.code(), Code::protocol) << far.sink.failure.str() << " after " << asked;
}

TEST_F(Intruder, AnAnswerToNothing) { refused(encode(ipc::Answer{5, Code::ok, {}})); }

TEST_F(Intruder, Nonsense) { refused(text("nonsense")); }

}  // namespace
}  // namespace hmc::testing
