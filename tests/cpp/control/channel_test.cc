// Channels between two Contexts of one process: every way to connect, messages, descriptors, ends.
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "control/node.h"

namespace hmc::test {
namespace {

struct Way {
  const char* name;
  const char* listen;
  bool key;
  bool insecure;
  bool upgrade;
  bool same_host;
  bool encrypted;
};

class ChannelTest : public ::testing::TestWithParam<Way> {
 protected:
  using Clock = std::chrono::steady_clock;

  // Heartbeats are an hour apart: what is slow here is the machine.
  ChannelTest() {
    const Way& way = GetParam();
    const std::string key = way.key ? generate_key() : std::string();
    server = std::make_unique<Node>(Node::Setup{key, way.insecure, 3600, way.upgrade, "server"});
    client = std::make_unique<Node>(Node::Setup{key, way.insecure, 3600, way.upgrade, "client"});
    address = server->listen(way.listen);
    const auto begun = Clock::now();
    auto connected = client->connect(address);
    const auto took = Clock::now() - begun;
    EXPECT_TRUE(connected.ok()) << connected.status().str();
    if (!connected.ok()) return;
    at_client = connected.value();
    at_server = server->accept();
    same_host = client->identity(at_client).same_host;
    // A connection that may stay on TCP gives the Unix socket 2 s.
    const bool stays = way.same_host && way.key && took >= std::chrono::seconds(2);
    EXPECT_TRUE(same_host == way.same_host || stays);
    encrypted = same_host == way.same_host ? way.encrypted : way.key;
  }
  void SetUp() override { ASSERT_TRUE(at_client != nullptr && at_server != nullptr); }
  std::unique_ptr<Node> server;
  std::unique_ptr<Node> client;
  std::string address;
  Link* at_client = nullptr;
  Link* at_server = nullptr;
  bool same_host = false;
  bool encrypted = false;
};

TEST_P(ChannelTest, TellsWhoIsThere) {
  const PeerIdentity seen = client->identity(at_client);
  const PeerIdentity other = server->identity(at_server);
  EXPECT_EQ(seen.context_id, server->id);
  EXPECT_EQ(other.context_id, client->id);
  EXPECT_EQ(seen.name, "server");
  EXPECT_EQ(other.name, "client");
  EXPECT_EQ(seen.address, address);
  EXPECT_NE(seen.epoch, 0U);
  EXPECT_EQ(seen.same_host, same_host);
  EXPECT_EQ(other.same_host, same_host);
  EXPECT_EQ(seen.encrypted, encrypted);
  EXPECT_EQ(other.encrypted, encrypted);
  EXPECT_EQ(seen.pid, same_host ? getpid() : 0);
  EXPECT_EQ(other.pid, same_host ? getpid() : 0);
}

TEST_P(ChannelTest, KeepsOrderAndBytesBothWays) {
  constexpr std::uint32_t count = 1000;
  const auto size_of = [](std::uint32_t i) -> std::size_t {
    if (i % 250 == 7) return max_control_payload;
    constexpr std::size_t sizes[] = {0, 1, 3, 8, 100, 4095, 4096, 4097, 16383, 16384, 16385, 65537};
    return sizes[i % std::size(sizes)];
  };
  const auto type_of = [](std::uint32_t i) { return static_cast<MessageType>(100 + i % 156); };
  for (std::uint32_t i = 0; i < count; ++i) {
    for (const bool forward : {true, false}) {
      Node& node = forward ? *client : *server;
      const Bytes payload = pattern(size_of(i), forward ? i : i + 77);
      const Status sent = node.send(forward ? at_client : at_server, type_of(i), payload);
      ASSERT_TRUE(sent.ok()) << sent.str();
    }
  }
  ASSERT_TRUE(server->until([&] { return at_server->messages.size() == count; }));
  ASSERT_TRUE(client->until([&] { return at_client->messages.size() == count; }));
  for (std::uint32_t i = 0; i < count; ++i) {
    EXPECT_EQ(at_server->messages[i].type, type_of(i));
    ASSERT_TRUE(at_server->messages[i].payload == pattern(size_of(i), i)) << i;
    ASSERT_TRUE(at_client->messages[i].payload == pattern(size_of(i), i + 77)) << i;
  }
}

TEST_P(ChannelTest, RefusesWhatIsOverTheLimits) {
  EXPECT_EQ(client->send(at_client, 100, pattern(max_control_payload + 1, 1)).code(), Code::invalid_argument);
  EXPECT_EQ(client->send(at_client, 5, {}).code(), Code::invalid_argument);
  std::vector<UniqueFd> many;
  for (std::size_t i = 0; i <= max_control_fds; ++i) many.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(client->send(at_client, 100, {}, std::move(many)).code(), Code::invalid_argument);
  EXPECT_TRUE(client->send(at_client, 100, pattern(3, 9)).ok());
  ASSERT_TRUE(server->until([&] { return at_server->messages.size() == 1; }));
  EXPECT_TRUE(at_server->messages[0].payload == pattern(3, 9));
}

TEST_P(ChannelTest, PassesDescriptorsWithTheirMessage) {
  if (!same_host) {
    std::vector<UniqueFd> fds;
    fds.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(client->send(at_client, 100, {}, std::move(fds)).code(), Code::unsupported);
    return;
  }
  const std::size_t before = open_fds();
  constexpr std::uint32_t count = 200;
  for (std::uint32_t i = 0; i < count; ++i) {
    std::vector<UniqueFd> fds;
    for (std::uint32_t k = 0; k < i % (max_control_fds + 1); ++k) {
      UniqueFd fd(memfd_create("test", MFD_CLOEXEC));
      const std::uint32_t label = i * 100 + k;
      ASSERT_EQ(pwrite(fd.get(), &label, sizeof label, 0), 4);
      fds.push_back(std::move(fd));
    }
    // Sizes that fill the socket and break messages apart between descriptors and payload.
    Status sent = client->send(at_client, 100, pattern(i % 5 == 0 ? 100'000 : i, i), std::move(fds));
    ASSERT_TRUE(sent.ok()) << sent.str();
  }
  ASSERT_TRUE(server->until([&] { return at_server->messages.size() == count; }));
  {
    const auto held = server->engine->lock();
    for (std::uint32_t i = 0; i < count; ++i) {
      auto& message = at_server->messages[i];
      ASSERT_TRUE(message.payload == pattern(i % 5 == 0 ? 100'000 : i, i)) << i;
      ASSERT_EQ(message.fds.size(), i % (max_control_fds + 1)) << i;
      for (std::uint32_t k = 0; k < message.fds.size(); ++k) {
        std::uint32_t label = 0;
        ASSERT_EQ(pread(message.fds[k].get(), &label, sizeof label, 0), 4);
        EXPECT_EQ(label, i * 100 + k);
        EXPECT_EQ(fcntl(message.fds[k].get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
      }
    }
    at_server->messages.clear();
  }
  // The client closes its own descriptors of a message after the server can have received it.
  EXPECT_TRUE(client->until([&] { return open_fds() == before; })) << open_fds() << " descriptors open, " << before << " before";
}

TEST_P(ChannelTest, GoodbyeComesAfterWhatWasQueued) {
  constexpr std::size_t count = 40;
  for (std::uint32_t i = 0; i < count; ++i) ASSERT_TRUE(client->send(at_client, 100, pattern(500'000, i)).ok());
  const auto closing = Clock::now();
  client->close(at_client);
  EXPECT_EQ(client->send(at_client, 100, {}).code(), Code::closed);
  EXPECT_EQ(client->end_of(at_client), Code::closed);
  const auto took = Clock::now() - closing;
  // Where the server reads too little within 2 s, the client drops what is queued, and so the goodbye.
  const Code end = server->end_of(at_server);
  EXPECT_TRUE(end == Code::closed || (end == Code::peer_lost && took >= std::chrono::seconds(2)));
  ASSERT_LE(at_server->messages.size(), count);
  EXPECT_EQ(at_server->messages.size() == count, end == Code::closed);
  for (std::uint32_t i = 0; i < at_server->messages.size(); ++i) {
    EXPECT_TRUE(at_server->messages[i].payload == pattern(500'000, i));
  }
  EXPECT_EQ(server->send(at_server, 100, {}).code(), end);
}

TEST(Channel, AReaderThatIsSlowGetsAllBeforeTheGoodbye) {
  using Clock = std::chrono::steady_clock;
  Node server, client;
  Link* at_client = client.connect(server.listen("unix")).value();
  Link* at_server = server.accept();
  auto last = Clock::now();
  Clock::duration longest{};
  {
    const auto held = server.engine->lock();
    at_server->react = [&](Link::Message&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      longest = std::max(longest, Clock::now() - std::exchange(last, Clock::now()));
    };
  }
  constexpr std::size_t count = 40;  // for twice as long as a peer is waited for that takes nothing
  for (std::uint32_t i = 0; i < count; ++i) ASSERT_TRUE(client.send(at_client, 100, pattern(500'000, i)).ok());
  client.close(at_client);
  const Code end = server.end_of(at_server);
  longest = std::max(longest, Clock::now() - last);
  EXPECT_TRUE(end == Code::closed || longest >= std::chrono::seconds(1));  // a machine that stood still is no slow reader
  EXPECT_TRUE(at_server->messages.size() == count || longest >= std::chrono::seconds(1));
  for (std::uint32_t i = 0; i < at_server->messages.size(); ++i) {
    EXPECT_TRUE(at_server->messages[i].payload == pattern(500'000, i));
  }
}

TEST_P(ChannelTest, BothSayGoodbyeAtOnce) {
  client->close(at_client);
  server->close(at_server);
  EXPECT_EQ(server->end_of(at_server), Code::closed);
  EXPECT_EQ(client->end_of(at_client), Code::closed);
}

TEST_P(ChannelTest, GoodbyeArrivesAlthoughTheChannelIsDestroyedAtOnce) {
  for (std::uint32_t i = 0; i < 10; ++i) ASSERT_TRUE(server->send(at_server, 100, pattern(300'000, i)).ok());
  {
    const auto held = client->engine->lock();
    at_client->channel->close();
    at_client->channel.reset();
  }
  EXPECT_EQ(server->end_of(at_server), Code::closed);
}

TEST_P(ChannelTest, DestructionWithoutGoodbyeIsALoss) {
  ASSERT_TRUE(client->send(at_client, 101, pattern(10, 3)).ok());
  {
    const auto held = client->engine->lock();
    at_client->channel.reset();
  }
  EXPECT_EQ(server->end_of(at_server), Code::peer_lost);
  ASSERT_EQ(at_server->messages.size(), 1U);
  EXPECT_EQ(at_client->endings, 0);
}

TEST_P(ChannelTest, MayBeDestroyedInsideItsOwnCallbacks) {
  {
    const auto held = server->engine->lock();
    at_server->react = [this](Link::Message& message) {
      const Bytes copy = message.payload;
      at_server->channel.reset();
      EXPECT_TRUE(copy == pattern(20, 1));
    };
    // Before the server reads: afterwards the client may know that the channel is over.
    for (std::uint32_t i = 1; i < 5; ++i) ASSERT_TRUE(client->send(at_client, 100, pattern(20, i)).ok());
  }
  EXPECT_EQ(client->end_of(at_client), Code::peer_lost);
  const auto held = server->engine->lock();
  EXPECT_EQ(at_server->messages.size(), 1U);
  EXPECT_EQ(at_server->endings, 0);
}

TEST_P(ChannelTest, MayBeDestroyedInsideOnClosed) {
  {
    const auto held = server->engine->lock();
    at_server->react_closed = [this] { at_server->channel.reset(); };
  }
  client->close(at_client);
  EXPECT_EQ(server->end_of(at_server), Code::closed);
  EXPECT_EQ(client->end_of(at_client), Code::closed);
}

TEST_P(ChannelTest, BoundsItsQueueAndRecovers) {
  // The server's engine is held, so nothing is read.
  std::size_t accepted = 0;
  {
    const auto held = server->engine->lock();
    for (;;) {
      const Status sent = client->send(at_client, 100, pattern(max_control_payload, static_cast<std::uint32_t>(accepted)));
      if (!sent.ok()) {
        EXPECT_EQ(sent.code(), Code::would_block);
        break;
      }
      ++accepted;
      ASSERT_LT(accepted, 200U);
    }
    EXPECT_GE(accepted, 62U);
  }
  ASSERT_TRUE(server->until([&] { return at_server->messages.size() == accepted; }));
  for (std::size_t i = 0; i < accepted; ++i) {
    const Bytes& payload = at_server->messages[i].payload;
    ASSERT_EQ(payload.size(), max_control_payload);
    const Bytes sent = pattern(max_control_payload, static_cast<std::uint32_t>(i));
    ASSERT_EQ(std::memcmp(payload.data(), sent.data(), sent.size()), 0) << i;
  }
  EXPECT_TRUE(client->send(at_client, 100, pattern(5, 5)).ok());
}

TEST_P(ChannelTest, AnswersFromInsideTheCallback) {
  {
    const auto held = server->engine->lock();
    at_server->react = [this](Link::Message& message) {
      EXPECT_TRUE(at_server->channel->send(static_cast<MessageType>(message.type + 1), message.payload).ok());
    };
  }
  for (std::uint32_t i = 0; i < 50; ++i) {
    ASSERT_TRUE(client->send(at_client, 100, pattern(i * 37, i)).ok());
    ASSERT_TRUE(client->until([&] { return at_client->messages.size() == i + 1; }));
    EXPECT_EQ(at_client->messages[i].type, 101);
    EXPECT_TRUE(at_client->messages[i].payload == pattern(i * 37, i));
  }
}

TEST_P(ChannelTest, LeavesNoDescriptorBehind) {
  const auto settle = [this] { return client->until([] { return true; }) && server->until([] { return true; }); };
  ASSERT_TRUE(settle());
  std::size_t before = 0;
  for (int round = 0; round < 6; ++round) {
    auto connected = client->connect(address);
    ASSERT_TRUE(connected.ok()) << connected.status().str();
    Link* accepted = server->accept();
    client->close(connected.value());
    EXPECT_EQ(server->end_of(accepted), Code::closed);
    EXPECT_EQ(client->end_of(connected.value()), Code::closed);
    if (round == 1) before = open_fds();
  }
  EXPECT_TRUE(server->until([&] { return open_fds() <= before; }));
}

constexpr Way ways[] = {
    {"Unix", "unix", false, false, true, true, false},
    {"UnixWithKey", "unix", true, false, true, true, false},
    {"Tcp4Moves", "tcp://127.0.0.1:0", false, false, true, true, false},
    {"Tcp6Moves", "tcp://[::1]:0", false, false, true, true, false},
    {"Tcp4KeyMoves", "tcp://127.0.0.1:0", true, false, true, true, false},
    {"Tcp4Key", "tcp://127.0.0.1:0", true, false, false, false, true},
    {"Tcp6Key", "tcp://[::1]:0", true, false, false, false, true},
    {"Tcp4Insecure", "tcp://127.0.0.1:0", false, true, false, false, false},
    {"Tcp6Insecure", "tcp://[::1]:0", false, true, false, false, false},
};
std::string way_name(const ::testing::TestParamInfo<Way>& way) { return way.param.name; }
INSTANTIATE_TEST_SUITE_P(Control, ChannelTest, ::testing::ValuesIn(ways), way_name);

}  // namespace
}  // namespace hmc::test
