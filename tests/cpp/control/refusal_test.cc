// Who is refused, and that both sides learn why.
#include <netinet/in.h>
#include <sys/resource.h>

#include <thread>

#include "control/raw.h"

namespace hmc::test {
namespace {

using control::FrameType;
using control::HelloKind;
using ::testing::AssertionResult;

AssertionResult says(const Status& status, Code code, std::initializer_list<std::string_view> words) {
  if (status.code() != code) return ::testing::AssertionFailure() << status.str();
  for (const std::string_view word : words) {
    if (status.message().find(word) == std::string_view::npos) {
      return ::testing::AssertionFailure() << '"' << word << "\" is missing in: " << status.str();
    }
  }
  return ::testing::AssertionSuccess();
}

Status first_refusal(Node& node) {
  EXPECT_TRUE(node.until([&] { return !node.refused.empty(); })) << "the server refused nobody";
  const auto held = node.engine->lock();
  return node.refused.empty() ? Status() : node.refused.front();
}

void expect_served(Node& server, const std::string& address, const Node::Setup& setup) {
  Node client(setup);
  auto connected = client.connect(address);
  ASSERT_TRUE(connected.ok()) << connected.status().str();
  Link* link = server.accept();
  ASSERT_NE(link, nullptr);
  ASSERT_TRUE(client.send(connected.value(), 100, pattern(1000, 5)).ok());
  ASSERT_TRUE(server.until([&] { return link->messages.size() == 1; }));
  EXPECT_TRUE(link->messages[0].payload == pattern(1000, 5));
}

struct Mismatch {
  const char* name;
  const char* server_key;  // "" none, else the index of a key
  const char* client_key;
  bool server_insecure;
  bool client_insecure;
  const char* word;  // what the client is told
};

class MismatchTest : public ::testing::TestWithParam<Mismatch> {};

TEST_P(MismatchTest, IsAuthenticationOnBothSides) {
  const Mismatch& way = GetParam();
  const std::string keys[] = {generate_key(), generate_key()};
  const auto key = [&](const char* which) { return *which == '\0' ? std::string() : keys[*which - '0']; };
  Node server({key(way.server_key), way.server_insecure, 5, false, "server"});
  Node client({key(way.client_key), way.client_insecure, 5, false, "client"});
  const auto connected = client.connect(server.listen("tcp://127.0.0.1:0"));
  ASSERT_FALSE(connected.ok());
  EXPECT_TRUE(says(connected.status(), Code::authentication, {way.word, "HMC_JOB_KEY", "tcp://127.0.0.1:"}));
  const Status refusal = first_refusal(server);
  EXPECT_TRUE(says(refusal, Code::authentication, {"key"}));
  for (const std::string& secret : keys) {
    EXPECT_EQ(connected.status().message().find(secret), std::string_view::npos);
    EXPECT_EQ(refusal.message().find(secret), std::string_view::npos);
  }
  EXPECT_TRUE(server.accepted.empty());
}

constexpr Mismatch mismatches[] = {
    {"WrongKey", "0", "1", false, false, "do not match"},
    {"ClientWithoutKey", "0", "", false, false, "the client has none"},
    {"InsecureClientWithoutKey", "0", "", false, true, "the client has none"},
    {"ServerWithoutKey", "", "0", false, false, "the server has none"},
    {"InsecureServerWithoutKey", "", "0", true, false, "the server has none"},
    {"NeitherHasKey", "", "", false, false, "insecure=True"},
    {"OnlyServerInsecure", "", "", true, false, "insecure=True"},
    {"OnlyClientInsecure", "", "", false, true, "insecure=True"},
};
std::string mismatch_name(const ::testing::TestParamInfo<Mismatch>& way) { return way.param.name; }
INSTANTIATE_TEST_SUITE_P(Control, MismatchTest, ::testing::ValuesIn(mismatches), mismatch_name);

TEST(Refusal, AnotherVersionOfAClientIsNamed) {
  Node server;
  RawSocket client(server.listen("unix"));
  ASSERT_TRUE(client.send(raw_hello(HelloKind::connect, 0, 99)));
  const control::Hello answer = receive_hello(client);
  EXPECT_EQ(answer.kind, HelloKind::refuse);
  EXPECT_EQ(answer.detail, static_cast<std::uint8_t>(Code::protocol));
  EXPECT_NE(answer.text.find("wire version 99"), std::string::npos) << answer.text;
  EXPECT_NE(answer.text.find("wire version " + std::to_string(wire_version)), std::string::npos) << answer.text;
  EXPECT_TRUE(client.receive_all().empty());
  client.close();
  EXPECT_TRUE(says(first_refusal(server), Code::protocol, {"wire version 99"}));
}

// Binds a socket to a free port of 127.0.0.1; its address.
std::string bind_to_loopback(int fd) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  socklen_t length = sizeof name;
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length), 0);
  return "tcp://127.0.0.1:" + std::to_string(ntohs(name.sin_port));
}

// A server made by hand: `connections`, one after the other, handled on a thread.
class RawServer {
 public:
  explicit RawServer(std::function<void(RawSocket&)> serve, int connections = 1)
      : listening_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    address = bind_to_loopback(listening_.get());
    EXPECT_EQ(::listen(listening_.get(), 4), 0);
    thread_ = std::thread([this, serve = std::move(serve), connections] {
      for (int i = 0; i < connections; ++i) {
        RawSocket client(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (i + 1 == connections) listening_.reset();
        serve(client);
      }
    });
  }
  ~RawServer() { thread_.join(); }
  std::string address;

 private:
  UniqueFd listening_;
  std::thread thread_;
};

TEST(Refusal, AnotherVersionOfAServerIsNamed) {
  for (const HelloKind kind : {HelloKind::refuse, HelloKind::accept}) {
    RawServer server([kind](RawSocket& socket) {
      socket.receive(8);
      socket.send(raw_hello(kind, static_cast<std::uint8_t>(Code::protocol), 42));
      socket.receive_all();
    });
    Node client;
    const auto connected = client.connect(server.address);
    ASSERT_FALSE(connected.ok());
    EXPECT_TRUE(says(connected.status(), Code::protocol, {"wire version 42", "wire version " + std::to_string(wire_version)}));
  }
}

TEST(Refusal, WhatIsNoHmcServerIsSaidToBeNone) {
  RawServer server([](RawSocket& socket) { socket.send("HTTP/1.1 400 Bad Request\r\n\r\n"), socket.receive_all(); });
  Node client;
  EXPECT_TRUE(says(client.connect(server.address).status(), Code::protocol, {"is not HMC", server.address}));
}

TEST(Refusal, AServerThatHangsUpIsLost) {
  RawServer server([](RawSocket& socket) { socket.receive(8); });
  Node client;
  EXPECT_EQ(client.connect(server.address).status().code(), Code::peer_lost);
}

TEST(Refusal, AServerThatGoesOnHangingUpIsLost) {
  RawServer server([](RawSocket& socket) { socket.receive(8); }, 13);
  Node client;
  EXPECT_EQ(client.connect(server.address).status().code(), Code::peer_lost);
}

TEST(Refusal, AServerThatHangsUpIsAskedAgainUntilTheDeadline) {
  RawServer server([](RawSocket& socket) { socket.receive(8), socket.send(raw_hello(HelloKind::accept, control::hello_insecure)); },
                   3);
  Node client;
  EXPECT_EQ(client.connect(server.address).status().code(), Code::peer_lost);  // when nobody listens any more
}

TEST(Refusal, ASilentServerRunsIntoTheDeadline) {
  RawServer server([](RawSocket& socket) { socket.receive_all(); });
  Node client;
  EXPECT_TRUE(says(client.connect(server.address, 1).status(), Code::timeout, {server.address, "hello"}));
}

TEST(Refusal, NobodyListens) {
  Node client;
  const UniqueFd bound(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));  // not listening; no other process gets the port
  EXPECT_EQ(client.connect(bind_to_loopback(bound.get())).status().code(), Code::peer_lost);
  EXPECT_EQ(client.connect("unix:/nonexistent/socket").status().code(), Code::peer_lost);
  for (const char* address : {"", "tcp://", "tcp://host", "tcp://127.0.0.1:99999", "http://127.0.0.1:1", "unix:"}) {
    EXPECT_EQ(client.connect(address).status().code(), Code::invalid_argument) << address;
  }
}

TEST(Refusal, ListeningBeyondTheHostNeedsAKey) {
  for (const char* address : {"tcp://0.0.0.0:0", "tcp://[::]:0"}) {
    Node open;
    {
      const auto held = open.engine->lock();
      EXPECT_TRUE(says(open.plane->listen(address).status(), Code::authentication,
                       {"hmc keygen", "HMC_JOB_KEY", "insecure=True", address}));
    }
    Node keyed({generate_key(), false, 5, true, "keyed"});
    keyed.listen(address);
    Node insecure({"", true, 5, true, "insecure"});
    insecure.listen(address);
  }
}

TEST(Refusal, WithoutTheUnixSocketKeysStayOnTcpAndTheKeylessAreTold) {
  for (const bool with_key : {true, false}) {
    const std::string key = with_key ? generate_key() : std::string();
    Node server({key, false, 5, true, "server"});
    const std::string address = server.listen("tcp://127.0.0.1:0");
    {
      const auto held = server.engine->lock();
      for (const std::string& bound : server.listener->addresses()) {
        if (bound.starts_with("unix:")) std::filesystem::remove(bound.substr(5));
      }
    }
    Node client({key, false, 5, true, "client"});
    const auto connected = client.connect(address);
    if (with_key) {
      ASSERT_TRUE(connected.ok()) << connected.status().str();
      EXPECT_FALSE(client.identity(connected.value()).same_host);
      EXPECT_FALSE(server.identity(server.accept()).same_host);
    } else {
      EXPECT_TRUE(says(connected.status(), Code::authentication, {"hmc keygen", "insecure=True"}));
      EXPECT_EQ(first_refusal(server).code(), Code::authentication);
    }
  }
}

TEST(Refusal, ForgedAndSpentTickets) {
  Node server;
  const std::string address = server.listen("unix");
  RawClient client(address);
  EXPECT_EQ(client.greet(HelloKind::move).kind, HelloKind::accept);
  random_bytes(client.identity.ticket.emplace());
  const RawFrame answer = client.identify();
  ASSERT_EQ(answer.header.type, static_cast<MessageType>(FrameType::refusal));
  EXPECT_TRUE(says(control::decode_refusal(answer.payload), Code::authentication, {"ticket"}));

  RawClient without(address);
  without.greet(HelloKind::move);
  EXPECT_EQ(without.identify().header.type, static_cast<MessageType>(FrameType::refusal));
  RawClient surplus(address);
  surplus.greet(HelloKind::connect);
  random_bytes(surplus.identity.ticket.emplace());
  EXPECT_EQ(surplus.identify().header.type, static_cast<MessageType>(FrameType::refusal));
  EXPECT_TRUE(server.accepted.empty());
}

TEST(Refusal, ATicketIsGoodOnceAndForOneContext) {
  Node server({"", true, 5, true, "server"});
  const std::string address = server.listen("tcp://127.0.0.1:0");
  RawSocket tcp(address);
  ASSERT_TRUE(tcp.send(raw_hello(HelloKind::connect, control::hello_insecure)));
  EXPECT_EQ(receive_hello(tcp).kind, HelloKind::accept);
  control::Identity own;
  own.context_id = {1, 2};
  ASSERT_TRUE(tcp.send(raw_frame(FrameType::identity, control::encode_identity(own))));
  const auto identity = control::decode_identity(receive_frame(tcp).payload);
  ASSERT_TRUE(identity.ok() && identity->ticket && identity->move_address.starts_with("unix:"));

  const auto move = [&](ContextId id) {
    RawClient client(identity->move_address);
    client.greet(HelloKind::move);
    client.identity.context_id = id;
    client.identity.ticket = identity->ticket;
    return client.identify().header.type;
  };
  EXPECT_EQ(move({1, 2}), static_cast<MessageType>(FrameType::identity));  // never commits
  EXPECT_EQ(move({1, 2}), static_cast<MessageType>(FrameType::refusal));
  // The TCP connection still stands, and may be chosen.
  ASSERT_TRUE(tcp.send(raw_frame(FrameType::commit, {})));
  Link* link = server.accept();
  ASSERT_NE(link, nullptr);
  EXPECT_FALSE(server.identity(link).same_host);

  RawSocket second(address);
  ASSERT_TRUE(second.send(raw_hello(HelloKind::connect, control::hello_insecure)));
  receive_hello(second);
  ASSERT_TRUE(second.send(raw_frame(FrameType::identity, control::encode_identity(own))));
  const auto again = control::decode_identity(receive_frame(second).payload);
  RawClient thief(again->move_address);
  thief.greet(HelloKind::move);
  thief.identity.ticket = again->ticket;  // with a context id of its own
  EXPECT_EQ(thief.identify().header.type, static_cast<MessageType>(FrameType::refusal));
}

TEST(Refusal, AClientWithoutAValidProof) {
  Node server;
  const std::string address = server.listen("unix");
  const std::size_t before = open_fds();
  const auto attempt = [&](const std::vector<int>& fds, std::uint8_t announced, bool honest) {
    RawClient client(address);
    client.greet();
    if (!honest) client.identity.proof.reset();
    EXPECT_TRUE(client.socket.send(raw_frame(FrameType::identity, control::encode_identity(client.identity), announced), fds));
    const RawFrame answer = receive_frame(client.socket);
    EXPECT_EQ(answer.header.type, static_cast<MessageType>(FrameType::refusal));
    EXPECT_TRUE(client.socket.receive_all().empty());
  };
  {
    control::Secret other;
    random_bytes(other);
    const UniqueFd wrong = control::make_proof(other).value();
    const UniqueFd file(open("/dev/null", O_RDONLY | O_CLOEXEC));
    int pipes[2];
    ASSERT_EQ(pipe2(pipes, O_CLOEXEC), 0);
    const UniqueFd reading(pipes[0]);
    const UniqueFd writing(pipes[1]);
    attempt({}, 0, true);
    attempt({}, 1, true);
    attempt({wrong.get()}, 1, true);
    attempt({file.get()}, 1, true);
    attempt({reading.get()}, 1, true);
    attempt({wrong.get(), wrong.get()}, 2, true);
    attempt({wrong.get(), wrong.get()}, 1, true);
    attempt({wrong.get()}, 0, true);
    attempt({wrong.get()}, 1, false);
  }
  EXPECT_TRUE(server.accepted.empty());
  EXPECT_TRUE(server.until([&] { return open_fds() <= before; }));
  expect_served(server, address, {});
}

TEST(Refusal, ThePlaneGoesWhileAHandshakeIsUnderWay) {
  const UniqueFd silent(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const std::string address = bind_to_loopback(silent.get());
  ASSERT_EQ(::listen(silent.get(), 4), 0);
  Node client;
  std::optional<Status> told;
  const auto held = client.engine->lock();
  client.plane->connect(address, Deadline::never(), [&](Result<std::unique_ptr<Channel>> result) { told = result.status(); });
  client.plane.reset();
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(told->code(), Code::closed);
}

TEST(Refusal, OptionsThatCannotBe) {
  const auto engine = Engine::create(Progress::manual).value();
  const auto held = engine->lock();
  const auto listener = Listener::create(engine).value();
  const auto create = [&](auto change) {
    ControlOptions options;
    change(options);
    return ControlPlane::create(engine, *listener, std::move(options)).status();
  };
  EXPECT_EQ(create([](auto& options) { options.name = std::string(256, 'x'); }).code(), Code::invalid_argument);
  EXPECT_EQ(create([](auto& options) { options.heartbeat_seconds = 0.05; }).code(), Code::invalid_argument);
  EXPECT_EQ(create([](auto& options) { options.heartbeat_seconds = std::numeric_limits<double>::quiet_NaN(); }).code(),
            Code::invalid_argument);
  EXPECT_EQ(create([](auto& options) { options.key = "too short"; }).code(), Code::invalid_argument);
  EXPECT_TRUE(create([](auto& options) { options.key = "a passphrase that is long enough"; }).ok());
}

}  // namespace
}  // namespace hmc::test
