// A peer by hand: forged addresses and regions are refused, forged records end the link with `protocol`, and other links go on.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "transport/one_transport.h"
#include "transport/shm/address.h"
#include "transport/shm/bulk_ring.h"
#include "transport/shm/channel_memory.h"
#include "transport/shm/files.h"
#include "transport/shm/region.h"
#include "transport/shm/signal_ring.h"

namespace hmc::testing {
namespace {

using shm::ChannelMemory;

// A node with an honest link and a victim, whose peer is this test.
class ShmForged : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("HMC_SHM_PTRACE", "0", 1);
    setenv("HMC_SHM_RING_BYTES", std::to_string(shm::min_ring_bytes).c_str(), 1);
    std::string reason;
    honest_ = Pair::create(factory_of("shm"), reason);
    ASSERT_TRUE(honest_) << reason;
    renew();
  }
  void TearDown() override {
    if (honest_) {
      expect_link_works(*honest_);
      drop();
    }
    unsetenv("HMC_SHM_PTRACE");
    unsetenv("HMC_SHM_RING_BYTES");
  }
  void drop() {
    const auto lock = honest_->a().lock();
    victim_.reset();
  }
  // A fresh victim, not connected.
  void open() {
    drop();
    sink_ = std::make_unique<TestSink>();
    const auto lock = honest_->a().lock();
    Node& node = *honest_->a().node;
    auto endpoint = node.transport->create_endpoint(Pair::peer_domain(node.transport->domain()), *sink_);
    ASSERT_TRUE(endpoint.ok());
    victim_ = std::move(*endpoint);
    Blob address = victim_->address().value();
    const auto decoded = shm::decode_address(address.bytes);
    ASSERT_TRUE(decoded.ok());
    key_ = decoded->key;
    to_victim_ = ChannelMemory::attach(address.fds[0], decoded->sizes).value();
    victims_bell_ = std::move(address.fds[1]);
    from_victim_ = ChannelMemory::create(decoded->sizes).value();
  }
  void renew() {
    open();
    Done done;
    const auto lock = honest_->a().lock();
    HMC_ASSERT_OK(victim_->connect(own_address(), &done));
    EXPECT_TRUE(done.done());
    out_ = shm::BulkProducer(to_victim_);
    in_ = shm::BulkConsumer(from_victim_);
  }
  Blob own_address() {
    Blob blob;
    shm::AddressInfo info;
    info.key = 99;
    info.sizes = from_victim_.sizes();
    shm::encode_address(info, blob.bytes);
    blob.fds.push_back(from_victim_.fd().duplicate());
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends), 0);
    bell_ = UniqueFd(ends[0]);
    blob.fds.push_back(UniqueFd(ends[1]));
    return blob;
  }
  void expect_broken() {
    ASSERT_TRUE(honest_->until([&] { return !sink_->failure.ok(); }));
    EXPECT_EQ(sink_->failure.code(), Code::protocol) << sink_->failure.str();
    const auto lock = honest_->a().lock();
    EXPECT_EQ(victim_->signal(pattern(3, 1), {}).code(), Code::protocol);
  }
  // Takes the next slot that the victim filled.
  shm::SlotInfo next_from_victim() {
    shm::SlotInfo info;
    bool skipped = false;
    EXPECT_TRUE(honest_->until([&] { return in_.take(info, skipped) == shm::BulkConsumer::Next::slot; }));
    return info;
  }
  std::uint64_t exported_id(const Area& area) {
    const auto lock = honest_->a().lock();
    return shm::decode_region(area.region()->exported().value().bytes)->id;
  }
  void send(shm::SlotKind kind, const std::vector<shm::Piece>& pieces, std::uint32_t bytes, std::uint64_t token = 0,
            Code code = Code::ok) {
    ASSERT_TRUE(honest_->until([&] {
      std::uint64_t number = 0;
      Code outcome{};
      bool broken = false;
      while (out_.take_ack(number, outcome, broken)) outcomes_.push_back(outcome);
      return out_.has_free() || !sink_->failure.ok();
    }));
    if (!sink_->failure.ok()) return;
    shm::SlotInfo info;
    info.kind = kind;
    info.pieces = static_cast<std::uint32_t>(pieces.size());
    info.bytes = bytes;
    info.token = token;
    info.code = code;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (kind == shm::SlotKind::put) {
        out_.write_piece(i, pieces[i]);
      } else {
        std::memcpy(out_.payload() + i * sizeof(shm::Piece), &pieces[i], sizeof(shm::Piece));
      }
    }
    out_.publish(info);
  }

  std::unique_ptr<Pair> honest_;
  std::unique_ptr<TestSink> sink_;
  std::unique_ptr<Endpoint> victim_;
  std::uint64_t key_ = 0;
  ChannelMemory to_victim_, from_victim_;
  UniqueFd bell_;          // what the victim rings
  UniqueFd victims_bell_;  // rings the victim
  shm::BulkProducer out_;
  shm::BulkConsumer in_;
  std::vector<Code> outcomes_;
};

TEST_F(ShmForged, AddressesAreRefused) {
  const auto expect_refused = [&](const std::function<void(Blob&)>& change) {
    open();
    Blob blob = own_address();
    change(blob);
    Done done;
    const auto lock = honest_->a().lock();
    const Status status = victim_->connect(blob, &done);
    EXPECT_EQ(status.code(), Code::protocol) << status.str();
    EXPECT_EQ(done.count(), 0);
  };
  const std::size_t total = shm::sizes_for(shm::min_ring_bytes).total();
  expect_refused([](Blob& blob) { blob.fds.pop_back(); });
  expect_refused([](Blob& blob) { blob.fds.clear(); });
  expect_refused([](Blob& blob) { std::swap(blob.fds[0], blob.fds[1]); });
  expect_refused([&](Blob& blob) { blob.fds[0] = memfd(total, 0); });
  expect_refused([&](Blob& blob) { blob.fds[0] = memfd(total - 1, F_SEAL_SHRINK); });
  expect_refused([](Blob& blob) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd reader(ends[0]);
    blob.fds[1] = UniqueFd(ends[1]);
  });
}

// The descriptor blocks, and is full: its owner reads nothing.
TEST_F(ShmForged, ADoorbellThatBlocksDelaysNobody) {
  open();
  Blob blob = own_address();
  const UniqueFd shared = blob.fds[1].duplicate();
  ASSERT_EQ(fcntl(shared.get(), F_SETFL, fcntl(shared.get(), F_GETFL) & ~O_NONBLOCK), 0);
  char ring = 0;
  while (::send(shared.get(), &ring, 1, MSG_DONTWAIT) == 1) continue;
  Done done;
  {
    const auto lock = honest_->a().lock();
    HMC_ASSERT_OK(victim_->connect(blob, &done));
  }
  for (int i = 0; i < 3; ++i) {
    from_victim_.control().armed.store(1);
    const auto lock = honest_->a().lock();
    HMC_EXPECT_OK(victim_->signal(pattern(3, 1), {}));
    EXPECT_EQ(from_victim_.control().armed.load(), 0U);
  }
}

TEST_F(ShmForged, DoorbellsThatAreNoSocketsAreRefused) {
  open();
  Blob blob = own_address();
  blob.fds[1] = UniqueFd(eventfd(0, EFD_CLOEXEC));
  Done done;
  const auto lock = honest_->a().lock();
  EXPECT_EQ(victim_->connect(blob, &done).code(), Code::protocol);
}

TEST_F(ShmForged, RegionsAreRefused) {
  const auto prepare = [&](UniqueFd fd, std::uint64_t bytes, std::uint64_t offset) {
    Blob blob;
    shm::encode_region({1, 4096, bytes, Access::read_write, true, offset}, blob.bytes);
    blob.fds.push_back(std::move(fd));
    std::unique_ptr<RemoteRegion> region;
    {
      const auto lock = honest_->a().lock();
      auto imported = victim_->import_region(blob);
      if (!imported.ok()) return imported.status();
      region = std::move(*imported);
    }
    return region->prepare(Device::cpu());
  };
  HMC_EXPECT_OK(prepare(memfd(12288, F_SEAL_SHRINK), 4000, 4096 + 13));
  EXPECT_EQ(prepare(memfd(12288, 0), 4000, 0).code(), Code::protocol);
  EXPECT_EQ(prepare(memfd(12288, F_SEAL_SHRINK), 12289, 0).code(), Code::protocol);
  EXPECT_EQ(prepare(memfd(12288, F_SEAL_SHRINK), 1, 12288).code(), Code::protocol);
  EXPECT_EQ(prepare(memfd(12288, F_SEAL_SHRINK), std::uint64_t{1} << 61, std::uint64_t{1} << 62).code(), Code::protocol);
  EXPECT_EQ(prepare(UniqueFd(::open("/dev/zero", O_RDWR | O_CLOEXEC)), 100, 0).code(), Code::protocol);
  Blob none;
  shm::encode_region({1, 4096, 10, Access::read_write, true, 0}, none.bytes);
  const auto lock = honest_->a().lock();
  EXPECT_EQ(victim_->import_region(none).status().code(), Code::protocol);
}

TEST_F(ShmForged, SignalRecords) {
  for (const std::uint32_t bytes : {std::uint32_t{shm::max_signal} + 1, ~std::uint32_t{0}, std::uint32_t{1} << 31}) {
    for (const std::uint32_t kind : {0U, 1U, 2U, ~0U}) {
      renew();
      auto* header = reinterpret_cast<shm::RecordHeader*>(to_victim_.signals());
      header->bytes = bytes;
      header->kind = kind;
      header->tag.store(shm::record_tag(key_, 0));
      expect_broken();
    }
  }
}

TEST_F(ShmForged, ChunksThatLie) {
  Area area(*honest_->a().node, 5000, false);
  fill_pattern(area.span(), 3);
  const std::uint64_t id = exported_id(area);
  // Refused, and the link lives: a foreign region, a range beyond the end, one that wraps around.
  send(shm::SlotKind::put, {{id + 1, 0, 10}}, 10);
  send(shm::SlotKind::put, {{id, 4991, 10}}, 10);
  send(shm::SlotKind::put, {{id, ~std::uint64_t{0} - 4, 10}}, 10);
  send(shm::SlotKind::get_stop, {}, 0, 12345);
  send(shm::SlotKind::get_data, {}, 500, 12345);
  send(shm::SlotKind::put, {}, 0);
  EXPECT_TRUE(honest_->until([&] {
    std::uint64_t number = 0;
    Code outcome{};
    bool broken = false;
    while (out_.take_ack(number, outcome, broken)) outcomes_.push_back(outcome);
    return outcomes_.size() == 6;
  }));
  EXPECT_EQ(outcomes_,
            (std::vector<Code>{Code::stale, Code::invalid_argument, Code::invalid_argument, Code::ok, Code::ok, Code::ok}));
  EXPECT_TRUE(sink_->failure.ok());
  EXPECT_EQ(first_mismatch(area.span(), 3), -1);
  // Broken: a table that says more or less than the payload, empty requests.
  send(shm::SlotKind::put, {{id, 0, 11}}, 10);
  expect_broken();
  renew();
  send(shm::SlotKind::put, {{id, 0, 9}}, 10);
  expect_broken();
  renew();
  send(shm::SlotKind::put, {{id, 0, ~std::uint64_t{0}}}, 10);
  expect_broken();
  renew();
  send(shm::SlotKind::get_request, {{id, 0, 0}}, sizeof(shm::Piece), 1);
  expect_broken();
  renew();
  send(shm::SlotKind::get_request, {}, 0, 1);
  expect_broken();
  EXPECT_TRUE(area.guards_intact());
}

TEST_F(ShmForged, TooManyRequests) {
  const Area area(*honest_->a().node, 5000, false);
  const std::uint64_t id = exported_id(area);
  // None of the answers is taken, so they pile up.
  for (std::uint64_t i = 0; i < 200 && sink_->failure.ok(); ++i)
    send(shm::SlotKind::get_request, {{id, 0, 5000}}, sizeof(shm::Piece), i);
  expect_broken();
}

TEST_F(ShmForged, GetsBeyondTheRegionAreRefused) {
  const Area area(*honest_->a().node, 5000, false);
  fill_pattern(area.span(), 3);
  const std::uint64_t id = exported_id(area);
  for (const shm::Piece& piece : {shm::Piece{id, 4991, 10}, shm::Piece{id, ~std::uint64_t{0} - 4, 10},
                                  shm::Piece{id, 0, ~std::uint64_t{0}}, shm::Piece{id + 1, 0, 10}}) {
    send(shm::SlotKind::get_request, {piece}, sizeof piece, 7);
    const shm::SlotInfo info = next_from_victim();
    EXPECT_EQ(info.kind, shm::SlotKind::get_data);
    EXPECT_EQ(info.bytes, 0U);
    EXPECT_NE(info.code, Code::ok);
    in_.finish(Code::ok);
  }
  send(shm::SlotKind::get_request, {{id, 100, 4900}, {id, 0, 1}}, 2 * sizeof(shm::Piece), 8);
  const shm::SlotInfo info = next_from_victim();
  ASSERT_EQ(info.bytes, 4901U);
  EXPECT_EQ(std::memcmp(in_.payload(), area.data() + 100, 4900), 0);
  EXPECT_EQ(in_.payload()[4900], area.data()[0]);
  in_.finish(Code::ok);
  EXPECT_TRUE(sink_->failure.ok());
}

TEST_F(ShmForged, AnswersOfAnotherSize) {
  for (const int how : {0, 1, 2}) {
    renew();
    Side side;  // to post at the victim
    side.node = honest_->a().node;
    const Area local(*honest_->a().node, 3000, false);
    fill_pattern(local.span(), 1);
    Blob blob;
    shm::encode_region({42, 4096, 3000, Access::read_write, false, 0}, blob.bytes);
    std::unique_ptr<RemoteRegion> imported;
    {
      const auto lock = side.lock();
      imported = victim_->import_region(blob).value();
      side.endpoint = std::move(victim_);
    }
    Transfer get(side, local, *imported);
    HMC_ASSERT_OK(get.get());
    victim_ = std::move(side.endpoint);
    const shm::SlotInfo request = next_from_victim();
    EXPECT_EQ(request.kind, shm::SlotKind::get_request);
    EXPECT_EQ(in_.payload_piece(0).region, 42U);
    in_.finish(Code::ok);
    if (how == 0) send(shm::SlotKind::get_data, {}, 3001, request.token);
    if (how == 1) send(shm::SlotKind::get_data, {}, 0, request.token);
    if (how == 2) {
      send(shm::SlotKind::get_data, {}, 2999, request.token);
      send(shm::SlotKind::get_data, {}, 2, request.token);
    }
    expect_broken();
    EXPECT_EQ(get.done.count(), 1);
    EXPECT_EQ(get.done.status().code(), Code::protocol);
    EXPECT_TRUE(local.guards_intact());
  }
}

TEST_F(ShmForged, CountsAndStates) {
  to_victim_.control().bulk_tail.store(77);
  expect_broken();
  renew();
  to_victim_.control().bulk_tail.store(1);  // an empty slot
  expect_broken();
}

// Any bytes anywhere: broken or ignored, never worse.
TEST_F(ShmForged, AnyBytesAnywhere) {
  std::mt19937_64 random(41);
  const std::size_t total = to_victim_.sizes().total();
  for (int round = 0; round < 60; ++round) {
    renew();
    // Honest beginnings reach deeper.
    auto* header = reinterpret_cast<shm::RecordHeader*>(to_victim_.signals());
    header->bytes = 10;
    header->kind = 0;
    header->tag.store(shm::record_tag(key_, 0));
    send(static_cast<shm::SlotKind>(round % 4), {{random(), random(), random() % 100}}, 24, random());
    auto* base = reinterpret_cast<std::byte*>(&to_victim_.control());
    for (int i = 0; i < 3000; ++i) {
      const std::size_t at = i % 3 == 0   ? random() % shm::control_bytes
                             : i % 3 == 1 ? static_cast<std::size_t>(to_victim_.slot(random() % 4) - base) + random() % 96
                                          : random() % total;
      base[at] = static_cast<std::byte>(random());
      auto* own = reinterpret_cast<std::byte*>(&from_victim_.control());
      if (i % 50 == 0) own[random() % shm::control_bytes] = static_cast<std::byte>(random());
      if (i % 20 == 0) honest_->poll();
      if (i % 100 == 0) {
        const auto lock = honest_->a().lock();
        static_cast<void>(victim_->signal(pattern(30, 1), {}));
      }
    }
    EXPECT_TRUE(sink_->failure.ok() || sink_->failure.code() == Code::protocol) << sink_->failure.str();
  }
}

TEST_F(ShmForged, FailedEndpointClosesItsDoorbellsAtOnce) {
  const auto rings = [](const UniqueFd& bell) { return ::send(bell.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1; };
  EXPECT_TRUE(rings(bell_));
  EXPECT_TRUE(rings(victims_bell_));
  send(shm::SlotKind::get_request, {}, 0, 1);  // of nothing
  expect_broken();
  EXPECT_FALSE(rings(bell_));
  EXPECT_FALSE(rings(victims_bell_));
}

}  // namespace
}  // namespace hmc::testing
