// Raw sockets against a node that listens: whatever they send, honest links go on, and a link whose peer breaks the protocol fails.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <functional>
#include <optional>

#include "transport/kit/served_regions.h"
#include "transport/one_transport.h"
#include "transport/tcp/connect.h"
#include "transport/tcp/frames.h"

namespace hmc::testing {
namespace {

// A blocking connection to "tcp://127.0.0.1:PORT".
UniqueFd dial(const std::string& address) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval patience{5, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  return fd;
}

void say(const UniqueFd& fd, ByteSpan bytes) {
  EXPECT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

class Abuse : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    honest_ = Pair::create(factory_of("tcp"), reason);
    ASSERT_TRUE(honest_) << reason;
    Node& node = *honest_->a().node;
    // An endpoint whose peer is this test: it listens nowhere, so it dials.
    const auto lock = honest_->a().lock();
    auto endpoint = node.transport->create_endpoint(Pair::peer_domain(tcp::encode_domain({false})), sink_);
    ASSERT_TRUE(endpoint.ok()) << endpoint.status().str();
    victim_ = std::move(*endpoint);
    address_ = tcp::decode_address(victim_->address().value().bytes).value();
    ASSERT_FALSE(address_.listens.empty());
    tcp::Address own;
    own.link = 4711;
    own.order[0] = 1;
    own.tickets.resize(1);
    Blob blob;
    blob.bytes = tcp::encode_address(own);
    HMC_ASSERT_OK(victim_->connect(blob, &connected_));
  }
  void TearDown() override {
    if (honest_) {
      expect_link_works(*honest_);
      const auto lock = honest_->a().lock();
      victim_.reset();
    }
  }
  Bytes hello(std::uint64_t link, std::uint8_t stream, const tcp::Ticket& ticket) const {
    Bytes bytes(8 + tcp::hello_bytes);
    std::memcpy(bytes.data(), tcp::data_magic.data(), 8);
    tcp::encode_hello(bytes.data() + 8, {link, stream, ticket});
    return bytes;
  }
  // Everything the other side sends until it closes, or until `most` bytes.
  std::size_t read_until_closed(const UniqueFd& fd, std::size_t most = 1 << 20) {
    std::size_t total = 0;
    const Deadline deadline = Deadline::after_seconds(60);
    while (total < most && !deadline.passed()) {
      honest_->poll();
      std::byte bytes[4096];
      const ssize_t got = recv(fd.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return total;
      if (got > 0) total += static_cast<std::size_t>(got);
    }
    if (total < most) ADD_FAILURE() << "the connection stayed open";
    return total;
  }
  UniqueFd good_connection() {
    UniqueFd fd = dial(address_.listens.front());
    say(fd, hello(address_.link, 0, address_.tickets[0]));
    EXPECT_EQ(read_until_closed(fd, 1), 1U);  // welcome
    EXPECT_TRUE(honest_->until([&] { return connected_.done(); }));
    HMC_EXPECT_OK(Status(connected_.status()));
    return fd;
  }
  static Bytes frame(tcp::FrameType type, std::uint16_t extents, std::uint32_t length, std::uint64_t op, std::uint64_t a = 0,
                     std::uint64_t b = 0) {
    tcp::Header header;
    header.type = type;
    header.extents = extents;
    header.length = length;
    header.op = op;
    header.a = a;
    header.b = b;
    Bytes bytes(tcp::header_bytes);
    tcp::encode_header(bytes.data(), header);
    return bytes;
  }
  // Hands the victim to `side`, with a region of its peer's.
  std::unique_ptr<RemoteRegion> import_at(Side& side, std::size_t bytes) {
    Blob blob;
    blob.bytes = encode_served({42, bytes, Access::read_write});
    side.node = honest_->a().node;
    side.endpoint = std::move(victim_);
    const auto lock = side.lock();
    return side.endpoint->import_region(blob).value();
  }
  void expect_broken_by(const std::vector<Bytes>& frames) {
    const UniqueFd fd = good_connection();
    for (const Bytes& bytes : frames) say(fd, bytes);
    ASSERT_TRUE(honest_->until([&] { return !sink_.failure.ok(); }));
    EXPECT_EQ(sink_.failure.code(), Code::protocol) << sink_.failure.str();
  }

  std::unique_ptr<Pair> honest_;
  std::unique_ptr<Endpoint> victim_;
  TestSink sink_;
  Done connected_;
  tcp::Address address_;
};

TEST_F(Abuse, WrongTicketsAreRefused) {
  tcp::Ticket wrong = address_.tickets[0];
  wrong[3] ^= std::byte{1};
  for (const Bytes& bytes : {hello(address_.link, 0, wrong), hello(address_.link + 1, 0, address_.tickets[0]),
                             hello(address_.link, 1, address_.tickets[0]), hello(address_.link, 15, address_.tickets[0])}) {
    const UniqueFd fd = dial(address_.listens.front());
    say(fd, bytes);
    EXPECT_EQ(read_until_closed(fd), 0U);
  }
  EXPECT_FALSE(connected_.done());
  const UniqueFd fd = good_connection();
  const UniqueFd twice = dial(address_.listens.front());
  say(twice, hello(address_.link, 0, address_.tickets[0]));
  EXPECT_EQ(read_until_closed(twice), 0U) << "a ticket is good once";
}

// More than there are places, while the engine does not run: each hello is read, and its sender answered.
TEST_F(Abuse, ManyThatArriveAtOnceAreAllAnswered) {
  tcp::Ticket wrong = address_.tickets[0];
  wrong[3] ^= std::byte{1};
  std::vector<UniqueFd> many;
  for (int i = 0; i < 200; ++i) {
    many.push_back(dial(address_.listens.front()));
    say(many.back(), hello(address_.link, 0, wrong));
  }
  for (std::size_t i = 0; i < many.size(); ++i) {
    std::byte byte{};
    ssize_t got = -1;
    for (const Deadline deadline = Deadline::after_seconds(60); !deadline.passed();) {
      honest_->poll();
      got = recv(many[i].get(), &byte, 1, MSG_DONTWAIT);
      if (got >= 0 || errno != EAGAIN) break;
    }
    EXPECT_EQ(got, 0) << "connection " << i << " was closed with its hello unread: " << std::strerror(errno);
  }
  good_connection();
}

// A flood of silent ones costs another one of their host a place only by chance, also where its hello comes in two parts.
TEST_F(Abuse, SilentOnesDoNotKeepOthersOut) {
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 150; ++i) {
    silent.push_back(dial(address_.listens.front()));
    say(silent.back(), ByteSpan(hello(address_.link, 0, {})).first(8));
  }
  const Bytes whole = hello(address_.link, 0, address_.tickets[0]);
  std::size_t welcomed = 0;
  for (int attempt = 0; attempt < 10 && welcomed == 0; ++attempt) {
    const UniqueFd fd = dial(address_.listens.front());
    say(fd, ByteSpan(whole).first(20));
    for (int i = 0; i < 50; ++i) honest_->poll();
    if (send(fd.get(), whole.data() + 20, whole.size() - 20, MSG_NOSIGNAL) > 0) welcomed = read_until_closed(fd, 1);
  }
  EXPECT_EQ(welcomed, 1U);
}

// Listens as a peer would, and answers dials as the test says.
class SlowPeer {
 public:
  SlowPeer() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_in own{};
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof own;
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&own), size), 0);
    EXPECT_EQ(listen(listener_.get(), 8), 0);
    EXPECT_EQ(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&own), &size), 0);
    address = "tcp://127.0.0.1:" + std::to_string(ntohs(own.sin_port));
  }
  // The stream that the next dial is of, once it has said so.
  std::optional<std::uint8_t> next(const std::function<void()>& poll, UniqueFd& socket) {
    std::array<std::byte, 8 + tcp::hello_bytes> bytes{};
    std::size_t have = 0;
    const Deadline deadline = Deadline::after_seconds(60);
    while (have < bytes.size() && !deadline.passed()) {
      poll();
      if (!socket) socket = UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      const ssize_t got = socket ? recv(socket.get(), bytes.data() + have, bytes.size() - have, 0) : -1;
      if (got > 0) have += static_cast<std::size_t>(got);
    }
    tcp::Hello hello;
    if (have < bytes.size() || !tcp::decode_hello(bytes.data() + 8, hello)) return std::nullopt;
    return hello.stream;
  }
  std::string address;

 private:
  UniqueFd listener_;
};

TEST_F(Abuse, AConnectionThatIsNotAnsweredIsDialledAgainBesideOneThatIs) {
  SlowPeer peer;
  tcp::Address own;
  own.link = 4712;
  own.order[0] = ~0ULL;  // the other side dials
  own.tickets.resize(2);
  own.listens = {peer.address};
  Blob blob;
  blob.bytes = tcp::encode_address(own);
  TestSink sink;
  Done connected;
  std::unique_ptr<Endpoint> endpoint;
  {
    const auto lock = honest_->a().lock();
    endpoint = *honest_->a().node->transport->create_endpoint(Pair::peer_domain(tcp::encode_domain({false})), sink);
    if (tcp::decode_address(endpoint->address().value().bytes)->tickets.size() < 2) GTEST_SKIP() << "one stream";
    HMC_ASSERT_OK(endpoint->connect(blob, &connected));
  }
  const auto poll = [&] { honest_->poll(); };
  std::vector<UniqueFd> welcomed;
  int refused = 0;
  for (int dial = 0; dial < 5 && welcomed.size() < 2; ++dial) {
    UniqueFd socket;
    const auto stream = peer.next(poll, socket);
    ASSERT_TRUE(stream.has_value()) << "after " << dial << " dials";
    if (!welcomed.empty() && refused < 2) {
      ++refused;  // the second stream is turned down twice
      continue;
    }
    say(socket, ByteSpan(&tcp::welcome, 1));
    welcomed.push_back(std::move(socket));
    for (int i = 0; i < 100; ++i) honest_->poll();
  }
  EXPECT_EQ(refused, 2);
  EXPECT_TRUE(honest_->until([&] { return connected.done(); }));
  HMC_EXPECT_OK(Status(connected.status()));
  const auto lock = honest_->a().lock();
  endpoint.reset();
}

TEST_F(Abuse, ScannersAndSilentOnes) {
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 90; ++i) {
    silent.push_back(dial(address_.listens.front()));
    if (i % 2 == 0) say(silent.back(), ByteSpan(hello(1, 0, address_.tickets[0])).first(20));
    honest_->poll();
  }
  const UniqueFd scanner = dial(address_.listens.front());
  say(scanner, pattern(4000, 1));
  honest_->settle();
  expect_link_works(*honest_);
}

TEST_F(Abuse, GarbageEndsTheLink) { expect_broken_by({pattern(3000, 200)}); }
TEST_F(Abuse, AckForNothing) { expect_broken_by({frame(tcp::FrameType::ack, 0, 0, 1, 1)}); }
TEST_F(Abuse, RefusalOfNothing) { expect_broken_by({frame(tcp::FrameType::refuse, 0, 0, 1, 1)}); }
TEST_F(Abuse, DataNobodyAskedFor) { expect_broken_by({frame(tcp::FrameType::get_data, 0, 100, 1)}); }
TEST_F(Abuse, EndNobodyAskedFor) { expect_broken_by({frame(tcp::FrameType::get_end, 0, 0, 1)}); }
TEST_F(Abuse, TwoEndsOfOnePut) {
  const Bytes end = frame(tcp::FrameType::put_end, 0, 0, 1, 100);
  expect_broken_by({end, end});
}
TEST_F(Abuse, MoreThanAPutHas) {
  expect_broken_by({frame(tcp::FrameType::put, 1, 200, 1, 5), pattern(200, 1), frame(tcp::FrameType::put_end, 0, 0, 1, 100)});
}
TEST_F(Abuse, EndlessBeginnings) {
  std::vector<Bytes> frames;
  for (std::uint64_t op = 0; op < 5000; ++op) frames.push_back(frame(tcp::FrameType::put_end, 0, 0, op, 100));
  Bytes all;
  for (const Bytes& one : frames) all.insert(all.end(), one.begin(), one.end());
  expect_broken_by({all});
}

// A put and a get of regions that do not exist, or beyond their end: refused, and the link lives.
TEST_F(Abuse, ForeignRegionsAreRefused) {
  Area area(*honest_->a().node, 5000, false);
  fill_pattern(area.span(), 3);
  std::uint64_t id = 0;
  {
    const auto lock = honest_->a().lock();
    id = decode_served(area.region()->exported().value().bytes)->id;
  }
  const UniqueFd fd = good_connection();
  say(fd, frame(tcp::FrameType::put, 1, 100, 1, id + 1, 0));
  say(fd, pattern(100, 9));
  say(fd, frame(tcp::FrameType::put_end, 0, 3, 1, 100));
  say(fd, pattern(3, 9));
  say(fd, frame(tcp::FrameType::put, 1, 100, 2, id, 4901));
  say(fd, pattern(100, 9));
  say(fd, frame(tcp::FrameType::put_end, 0, 0, 2, 100));
  say(fd, frame(tcp::FrameType::get, 1, 100, 3, id, ~std::uint64_t{0} - 5));
  EXPECT_EQ(read_until_closed(fd, 3 * tcp::header_bytes), 3 * tcp::header_bytes);  // two refusals and an end with one
  EXPECT_TRUE(sink_.failure.ok()) << sink_.failure.str();
  EXPECT_TRUE(sink_.signals.empty());
  EXPECT_EQ(first_mismatch(area.span(), 3), -1);
  EXPECT_TRUE(area.guards_intact());
}

// A get of ours that is answered wrongly: ends before its bytes, with another name or length, twice.
TEST_F(Abuse, GetsAnsweredWrongly) {
  constexpr std::uint32_t bytes = 1000;
  using Frames = std::function<std::vector<Bytes>(std::uint64_t)>;
  const auto data = [&](std::uint64_t id, std::uint32_t length) { return frame(tcp::FrameType::get_data, 0, length, id); };
  const auto end = [&](std::uint64_t id, std::uint64_t refusal = 0) { return frame(tcp::FrameType::get_end, 0, 0, id, refusal); };
  for (const Frames& answer : std::vector<Frames>{
           [&](std::uint64_t id) { return std::vector<Bytes>{end(id)}; },
           [&](std::uint64_t id) { return std::vector<Bytes>{end(id + 1, 1)}; },
           [&](std::uint64_t id) { return std::vector<Bytes>{data(id + 1, bytes)}; },
           [&](std::uint64_t id) { return std::vector<Bytes>{data(id, bytes - 1)}; },
           [&](std::uint64_t id) { return std::vector<Bytes>{data(id, bytes + 1)}; },
           [&](std::uint64_t id) { return std::vector<Bytes>{data(id, bytes), pattern(bytes, 8), end(id, 1)}; },
           [&](std::uint64_t id) { return std::vector<Bytes>{data(id, bytes), pattern(bytes, 8), data(id, bytes)}; },
           [&](std::uint64_t id) { return std::vector<Bytes>{frame(tcp::FrameType::ack, 0, 0, id, 1)}; },
           [&](std::uint64_t id) { return std::vector<Bytes>{frame(tcp::FrameType::refuse, 0, 0, id, 1)}; }}) {
    TearDown();
    connected_.~Done();
    new (&connected_) Done;
    sink_.failure = Status();
    SetUp();
    const UniqueFd fd = good_connection();
    Side side;
    const auto imported = import_at(side, bytes);
    const Area local(*side.node, bytes, false);
    Transfer get(side, local, *imported);
    HMC_ASSERT_OK(get.get());
    victim_ = std::move(side.endpoint);
    Bytes request(tcp::header_bytes);
    std::size_t have = 0;
    ASSERT_TRUE(honest_->until([&] {
      const ssize_t got = recv(fd.get(), request.data() + have, request.size() - have, MSG_DONTWAIT);
      if (got > 0) have += static_cast<std::size_t>(got);
      return have == request.size();
    }));
    tcp::Header header;
    ASSERT_TRUE(tcp::decode_header(request.data(), header));
    ASSERT_EQ(header.type, tcp::FrameType::get);
    for (const Bytes& bytes_out : answer(header.op)) say(fd, bytes_out);
    ASSERT_TRUE(honest_->until([&] { return !sink_.failure.ok(); }));
    EXPECT_EQ(sink_.failure.code(), Code::protocol) << sink_.failure.str();
    EXPECT_EQ(get.done.count(), 1);
    EXPECT_EQ(get.done.status().code(), Code::protocol);
    EXPECT_TRUE(local.guards_intact());
  }
}

// What comes behind a frame out of place is not read while the link is closed either.
TEST_F(Abuse, NothingIsReadBehindABrokenFrameAtTheEnd) {
  const UniqueFd fd = good_connection();
  Side side;
  const auto imported = import_at(side, 10);
  const Area local(*side.node, 10, false), area(*side.node, 100'000, false);
  fill_pattern(area.span(), 3);
  std::uint64_t id = 0;
  {
    const auto lock = side.lock();
    id = decode_served(area.region()->exported().value().bytes)->id;
  }
  Transfer put(side, local, *imported);
  HMC_ASSERT_OK(put.put());
  Bytes all;
  for (std::uint64_t op = 0; op < 1024; ++op) tcp::append(all, frame(tcp::FrameType::put_end, 0, 0, op, 100));
  tcp::append(all, frame(tcp::FrameType::put, 1, 24'000, 5000, id));  // one too many, of unchecked ranges
  tcp::append(all, pattern(24'000, 9));
  say(fd, all);
  wait_until_tcp_has_delivered();
  side.close();
  EXPECT_EQ(put.done.status().code(), Code::closed);
  EXPECT_EQ(first_mismatch(area.span(), 3), -1);
}

TEST_F(Abuse, AVanishedPeerIsLost) {
  UniqueFd fd = good_connection();
  say(fd, frame(tcp::FrameType::signal, 0, 50, 0));  // half of it never comes
  fd.reset();
  ASSERT_TRUE(honest_->until([&] { return !sink_.failure.ok(); }));
  EXPECT_EQ(sink_.failure.code(), Code::peer_lost) << sink_.failure.str();
}

}  // namespace
}  // namespace hmc::testing
