// Clients that mean harm or nonsense: they disturb nobody and leave nothing behind.
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <random>
#include <thread>

#include "control/raw.h"

namespace hmc::test {
namespace {

using control::FrameType;
using control::HelloKind;

class AbuseTest : public ::testing::TestWithParam<bool> {
 protected:
  AbuseTest() : server(Node::Setup{GetParam() ? key : std::string(), !GetParam(), 5, true, "server"}) {
    tcp = server.listen("tcp://127.0.0.1:0");
    local = server.listen("unix");
  }
  // An honest client gets through, and afterwards nothing is left open that was not open before.
  void expect_unharmed(const std::string& address) {
    Node client({GetParam() ? key : std::string(), !GetParam(), 5, true, "client"});
    auto connected = client.connect(address);
    ASSERT_TRUE(connected.ok()) << connected.status().str();
    Link* link = server.accept();
    ASSERT_NE(link, nullptr);
    ASSERT_TRUE(client.send(connected.value(), 100, pattern(70'001, 3)).ok());
    ASSERT_TRUE(server.until([&] { return link->messages.size() == 1; }));
    EXPECT_TRUE(link->messages[0].payload == pattern(70'001, 3));
    client.close(connected.value());
    EXPECT_EQ(server.end_of(link), Code::closed);
  }
  std::string key = generate_key();
  Node server;
  std::string tcp;
  std::string local;
};

Bytes text(std::string_view words) {
  const auto bytes = std::as_bytes(std::span(words));
  return Bytes(bytes.begin(), bytes.end());
}

std::vector<Bytes> scanners() {
  Bytes client_hello = text("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
  const Bytes noise = pattern(500, 11);
  client_hello.insert(client_hello.end(), noise.begin(), noise.end());
  std::vector<Bytes> all{text("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), client_hello, pattern(4096, 3), pattern(1, 9), {}};
  all.push_back(magic_and({}));
  all.push_back(magic_and(pattern(2000, 5)));
  all.push_back(magic_and(Bytes(3000, std::byte{0xff})));
  all.push_back(magic_and(Bytes(3000, std::byte{0})));
  Bytes behind = raw_hello(HelloKind::connect, control::hello_has_key | control::hello_insecure);
  all.push_back(behind);
  behind.insert(behind.end(), noise.begin(), noise.end());
  all.push_back(behind);
  behind = raw_hello(HelloKind::connect, control::hello_insecure);
  behind.insert(behind.end(), client_hello.begin(), client_hello.end());
  all.push_back(behind);
  all.push_back(raw_hello(HelloKind::accept));
  all.push_back(raw_hello(HelloKind::refuse, 6));
  all.push_back(raw_hello(HelloKind::move));
  return all;
}

TEST_P(AbuseTest, PortScannersAreDropped) {
  const std::size_t before = open_fds();
  for (const std::string& address : {tcp, local}) {
    for (const Bytes& bytes : scanners()) {
      RawSocket scanner(address);
      if (!bytes.empty()) scanner.send(bytes);
      shutdown(scanner.fd(), SHUT_WR);
      scanner.receive_all();
      EXPECT_TRUE(scanner.ended());
    }
  }
  EXPECT_TRUE(server.until([&] { return open_fds() <= before; })) << open_fds() << " descriptors open, " << before << " before";
  EXPECT_TRUE(server.accepted.empty());
  expect_unharmed(tcp);
  expect_unharmed(local);
}

TEST_P(AbuseTest, ScannersThatNeverHangUpAreHungUpOn) {
  for (const std::string& address : {tcp, local}) {
    std::vector<std::unique_ptr<RawSocket>> held;
    for (const Bytes& bytes : scanners()) {
      held.push_back(std::make_unique<RawSocket>(address));
      if (!bytes.empty()) held.back()->send(bytes);
    }
    expect_unharmed(address);
  }
}

TEST_P(AbuseTest, HalfOpenConnectionsAreBoundedAndDoNotKeepOthersOut) {
  std::vector<std::unique_ptr<RawSocket>> held;
  for (int i = 0; i < 300; ++i) {
    held.push_back(std::make_unique<RawSocket>(tcp));
    ASSERT_TRUE(held.back()->send(magic_and({})));
  }
  expect_unharmed(tcp);
  // Some had to go.
  std::size_t open = 0;
  for (const auto& each : held) {
    char byte = 0;
    open += recv(each->fd(), &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN ? 1U : 0U;
  }
  EXPECT_LE(open, 256U);
  const auto locked = server.engine->lock();
  EXPECT_GE(server.refused.size(), 44U);
}

TEST_P(AbuseTest, MutatedTranscriptsNeverGetIn) {
  std::mt19937 random(20240607);
  Bytes transcript = raw_hello(HelloKind::connect, GetParam() ? control::hello_has_key : control::hello_insecure);
  control::Identity identity;
  identity.name = "mutant";
  const Bytes frame = raw_frame(FrameType::identity, control::encode_identity(identity));
  transcript.insert(transcript.end(), frame.begin(), frame.end());
  for (int round = 0; round < 150; ++round) {
    Bytes bytes = transcript;
    for (auto n = random() % 4 + 1; n > 0; --n) bytes[8 + random() % (bytes.size() - 8)] = static_cast<std::byte>(random());
    if (random() % 3 == 0) bytes.resize(8 + random() % (bytes.size() - 8));
    RawSocket mutant(round % 4 == 3 ? local : tcp);
    mutant.send(bytes);
    shutdown(mutant.fd(), SHUT_WR);
    mutant.receive_all();
    EXPECT_TRUE(mutant.ended());
  }
  {
    const auto held = server.engine->lock();
    EXPECT_TRUE(server.accepted.empty());
  }
  expect_unharmed(tcp);
}

std::string secured_name(const ::testing::TestParamInfo<bool>& with_key) { return with_key.param ? "Key" : "Insecure"; }
INSTANTIATE_TEST_SUITE_P(Control, AbuseTest, ::testing::Bool(), secured_name);

TEST(Abuse, SlowLorisIsCutOff) {
  Node server;
  const std::string address = server.listen("unix");
  const auto start = std::chrono::steady_clock::now();
  RawSocket loris(address);
  const Bytes hello = raw_hello(HelloKind::connect);
  ASSERT_TRUE(loris.send(ByteSpan(hello).first(9)));
  Bytes long_hello(1100, std::byte{1});
  long_hello[0] = std::byte{0xff};
  long_hello[1] = std::byte{0x03};
  bool served = true;
  for (std::size_t sent = 1; served && sent < 1000; ++sent) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    served = loris.send(ByteSpan(long_hello).subspan(sent, 1));
  }
  EXPECT_FALSE(served) << "still served after 50 s";
  EXPECT_GT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  const auto held = server.engine->lock();
  ASSERT_EQ(server.refused.size(), 1U);
  EXPECT_EQ(server.refused[0].code(), Code::timeout);
}

TEST(Abuse, DescriptorsBesideAHelloAreRefused) {
  Node server;
  RawSocket hoarder(server.listen("unix"));
  const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::vector<int> many(32, null.get());
  const std::size_t before = open_fds();
  ASSERT_TRUE(hoarder.send(magic_and({})));
  // The length of a long hello, byte for byte with more than a message may bring.
  for (const std::byte byte : {std::byte{0xff}, std::byte{0x03}, std::byte{0}, std::byte{0}}) {
    if (!hoarder.send(ByteSpan(&byte, 1), many)) break;
  }
  ASSERT_TRUE(server.until([&] { return !server.refused.empty(); }));
  EXPECT_EQ(server.refused[0].code(), Code::protocol) << server.refused[0].str();
  hoarder.close();
  EXPECT_TRUE(server.until([&] { return open_fds() < before; })) << open_fds() << " descriptors open, " << before << " before";
}

// What a peer that is in may still do wrong. Every case ends its own channel only.
struct Sin {
  const char* name;
  std::function<void(RawClient&)> commit;
};

TEST(Abuse, AMisbehavingPeerLosesItsChannel) {
  Node server;
  const std::string address = server.listen("unix");
  const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::vector<int> one{null.get()};
  const std::vector<Sin> sins{
      {"payload beyond the limit",
       [](RawClient& peer) {
         const auto header = control::encode_frame_header({max_control_payload + 1, 100, 0});
         peer.socket.send(header);
       }},
      {"length of all ones", [](RawClient& peer) { peer.socket.send(control::encode_frame_header({0xffffffffU, 100, 0})); }},
      {"type zero", [](RawClient& peer) { peer.socket.send(control::encode_frame_header({0, 0, 0})); }},
      {"unknown type of control's", [](RawClient& peer) { peer.socket.send(raw_frame(MessageType{50}, {})); }},
      {"identity again", [](RawClient& peer) { peer.socket.send(raw_frame(FrameType::identity, {})); }},
      {"commit again", [](RawClient& peer) { peer.socket.send(raw_frame(FrameType::commit, {})); }},
      {"reserved bits", [](RawClient& peer) { peer.socket.send(text(std::string_view("\0\0\0\0\x64\0\x01\0", 8))); }},
      {"more descriptors than allowed", [](RawClient& peer) { peer.socket.send(control::encode_frame_header({0, 100, 17})); }},
      {"descriptors that do not come", [](RawClient& peer) { peer.socket.send(raw_frame(MessageType{100}, {}, 2)); }},
      {"descriptors nobody announced", [&](RawClient& peer) { peer.socket.send(raw_frame(MessageType{100}, pattern(5, 1)), one); }},
      {"fewer descriptors than announced", [&](RawClient& peer) { peer.socket.send(raw_frame(MessageType{100}, {}, 3), one); }},
      {"more descriptors than announced",
       [&](RawClient& peer) { peer.socket.send(raw_frame(MessageType{100}, {}, 1), {null.get(), null.get()}); }},
      {"descriptors amid a payload",
       [&](RawClient& peer) {
         const Bytes frame = raw_frame(MessageType{100}, pattern(100, 2));
         peer.socket.send(ByteSpan(frame).first(50));
         peer.socket.send(ByteSpan(frame).subspan(50), one);
       }},
  };
  RawClient good(address);
  good.establish();
  Link* bystander = server.accept();
  const std::size_t before = open_fds();
  for (const Sin& sin : sins) {
    SCOPED_TRACE(sin.name);
    {
      RawClient peer(address);
      peer.establish();
      Link* link = server.accept();
      ASSERT_NE(link, nullptr);
      sin.commit(peer);
      EXPECT_EQ(server.end_of(link), Code::protocol) << link->end.str();
      peer.socket.receive_all();
      EXPECT_TRUE(peer.socket.ended());
    }
    EXPECT_TRUE(server.until([&] {
      for (auto& link : server.links) link->messages.clear();
      return open_fds() <= before;
    })) << open_fds()
        << " descriptors open, " << before << " before";
  }
  ASSERT_TRUE(good.socket.send(raw_frame(MessageType{111}, pattern(10, 1))));
  ASSERT_TRUE(server.until([&] { return bystander->messages.size() == 1; }));
}

TEST(Abuse, DescriptorsBeyondTheLimitOfTheProcessCostOnlyThemselves) {
  Node server;
  Node client;
  const auto connected = client.connect(server.listen("unix"));
  ASSERT_TRUE(connected.ok());
  Link* link = server.accept();
  rlimit usual{};
  getrlimit(RLIMIT_NOFILE, &usual);
  std::vector<UniqueFd> fds;
  for (int i = 0; i < 3; ++i) fds.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  {
    const auto held = server.engine->lock();
    ASSERT_TRUE(client.send(connected.value(), 100, pattern(9, 1), std::move(fds)).ok());
    const UniqueFd lowest(open("/dev/null", O_RDONLY | O_CLOEXEC));
    const rlimit tight{static_cast<rlim_t>(lowest.get()), usual.rlim_max};
    setrlimit(RLIMIT_NOFILE, &tight);
  }
  const bool came = server.until([&] { return link->messages.size() == 1; });
  setrlimit(RLIMIT_NOFILE, &usual);
  ASSERT_TRUE(came);
  EXPECT_TRUE(link->messages[0].fds.empty());
  EXPECT_TRUE(link->messages[0].payload == pattern(9, 1));
  std::vector<UniqueFd> later;
  later.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(client.send(connected.value(), 100, pattern(9, 2), std::move(later)).ok());
  ASSERT_TRUE(server.until([&] { return link->messages.size() == 2; }));
  EXPECT_EQ(link->messages[1].fds.size(), 1U);
}

}  // namespace
}  // namespace hmc::test
