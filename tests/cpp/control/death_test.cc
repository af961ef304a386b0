// The end of a peer: killed, stopped, silent, polite. Peers are processes of their own: this program, run again.
#include <netinet/in.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "control/raw.h"
#include "testing.h"

extern char** environ;

namespace hmc::test {
namespace {

constexpr MessageType ready = 120;
constexpr MessageType echo = 121;
constexpr MessageType leave = 122;  // say goodbye
constexpr MessageType quit = 123;   // exit(3) without one

// The child's life: connect to HMC_CONTROL_CHILD, answer until told otherwise.
TEST(ControlChild, Main) {
  const char* address = std::getenv("HMC_CONTROL_CHILD");
  if (address == nullptr) GTEST_SKIP() << "runs only as a child of the other tests";
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const char* key = std::getenv("HMC_CONTROL_CHILD_KEY");
  Node node({key != nullptr ? key : "", false, 3600, std::getenv("HMC_CONTROL_CHILD_REMOTE") == nullptr, "child"});
  const auto connected = node.connect(address);
  ASSERT_TRUE(connected.ok()) << connected.status().str();
  Link* link = connected.value();
  bool leaving = false;
  {
    const auto held = node.engine->lock();
    link->react = [&](Link::Message& message) {
      if (message.type == quit) _exit(3);
      if (message.type == leave) {
        leaving = true;
        link->channel->close();
        return;
      }
      EXPECT_TRUE(link->channel->send(echo, message.payload).ok());
    };
  }
  pid_t grandchild = 0;
  if (std::getenv("HMC_CONTROL_CHILD_FORKS") != nullptr) {
    // Past every fork handler, so that it keeps the sockets open as a careless child does.
    grandchild = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
    if (grandchild == 0) {
      for (;;) pause();
    }
  }
  Bytes payload(sizeof grandchild);
  std::memcpy(payload.data(), &grandchild, sizeof grandchild);
  ASSERT_TRUE(node.send(link, ready, payload).ok());
  node.until([&] { return link->endings > 0; }, 170);
  EXPECT_TRUE(leaving);
}

class Child {
 public:
  Child(const std::string& address, std::vector<std::string> settings = {}) {
    std::vector<std::string> environment{"HMC_CONTROL_CHILD=" + address};
    for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
    environment.insert(environment.end(), settings.begin(), settings.end());
    std::vector<char*> pointers;
    for (std::string& entry : environment) pointers.push_back(entry.data());
    pointers.push_back(nullptr);
    std::string program = "/proc/self/exe";
    std::string filter = "--gtest_filter=ControlChild.Main";
    std::string brief = "--gtest_brief=1";
    char* arguments[] = {program.data(), filter.data(), brief.data(), nullptr};
    EXPECT_EQ(posix_spawn(&pid, program.c_str(), nullptr, nullptr, arguments, pointers.data()), 0);
  }
  ~Child() {
    if (grandchild > 0) kill(grandchild, SIGKILL);
    if (pid > 0) kill(pid, SIGKILL);
    wait();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  int wait() {
    int status = 0;
    if (pid > 0) waitpid(pid, &status, 0);
    pid = 0;
    return status;
  }
  // Until the process has ended: its sockets close a little earlier. How it ended can still be asked for.
  void await_end() const {
    siginfo_t info;
    while (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
    }
  }
  Link* join(Node& node) {
    Link* link = node.accept();
    if (link == nullptr) return nullptr;
    EXPECT_TRUE(node.until([&] { return !link->messages.empty(); }));
    const auto held = node.engine->lock();
    if (!link->messages.empty()) std::memcpy(&grandchild, link->messages[0].payload.data(), sizeof grandchild);
    return link;
  }
  pid_t pid = 0;
  pid_t grandchild = 0;
};

// Heartbeats are an hour apart: only the kernel can bring the news.
Node::Setup patient(std::string key = {}) { return {std::move(key), false, 3600, true, "parent"}; }

std::string message_of(Node& node, Link* link) {
  const auto held = node.engine->lock();
  return std::string(link->end.message());
}

TEST(Death, AKilledPeerIsLostAtOnce) {
  for (const char* way : {"unix", "tcp://127.0.0.1:0"}) {
    Node node(patient());
    Child child(node.listen(way));
    Link* link = child.join(node);
    ASSERT_NE(link, nullptr);
    EXPECT_EQ(node.identity(link).pid, child.pid);
    {
      const auto held = node.engine->lock();
      kill(child.pid, SIGKILL);
      child.await_end();
    }
    EXPECT_EQ(node.end_of(link), Code::peer_lost);
    const std::string message = message_of(node, link);
    EXPECT_NE(message.find("process " + std::to_string(child.pid) + " was killed by signal 9"), std::string::npos) << message;
    EXPECT_EQ(node.send(link, 100, {}).code(), Code::peer_lost);
  }
}

TEST(Death, AGrandchildThatHoldsTheSocketsHidesNothing) {
  Node node(patient());
  Child child(node.listen("unix"), {"HMC_CONTROL_CHILD_FORKS=1"});
  Link* link = child.join(node);
  ASSERT_NE(link, nullptr);
  ASSERT_GT(child.grandchild, 0);
  kill(child.pid, SIGKILL);
  EXPECT_EQ(node.end_of(link), Code::peer_lost);
  EXPECT_EQ(kill(child.grandchild, 0), 0) << "the grandchild was to outlive its parent";
  const std::string message = message_of(node, link);
  EXPECT_NE(message.find("was killed by signal 9"), std::string::npos) << message;
}

TEST(Death, AReapedPeerIsLostToo) {
  Node node(patient());
  Child child(node.listen("unix"), {"HMC_CONTROL_CHILD_FORKS=1"});
  Link* link = child.join(node);
  ASSERT_NE(link, nullptr);
  {
    const auto held = node.engine->lock();
    kill(child.pid, SIGKILL);
    child.wait();
  }
  EXPECT_EQ(node.end_of(link), Code::peer_lost);
}

TEST(Death, ExitWithoutGoodbyeIsALoss) {
  Node node(patient());
  Child child(node.listen("unix"));
  Link* link = child.join(node);
  ASSERT_NE(link, nullptr);
  {
    const auto held = node.engine->lock();
    ASSERT_TRUE(link->channel->send(quit, {}).ok());
    child.await_end();
  }
  EXPECT_EQ(node.end_of(link), Code::peer_lost);
  EXPECT_NE(message_of(node, link).find("exited with status 3"), std::string::npos) << message_of(node, link);
}

TEST(Death, GoodbyeOfAProcessThatEndsIsHeard) {
  for (const bool remote : {false, true}) {
    // Without a key it has to be the Unix socket, however long the way there takes.
    const std::string key = remote ? generate_key() : std::string();
    Node node(patient(key));
    std::vector<std::string> settings;
    if (remote) settings = {"HMC_CONTROL_CHILD_KEY=" + key, "HMC_CONTROL_CHILD_REMOTE=1"};
    Child child(node.listen("tcp://127.0.0.1:0"), settings);
    Link* link = child.join(node);
    ASSERT_NE(link, nullptr);
    EXPECT_EQ(node.identity(link).same_host, !remote);
    ASSERT_TRUE(node.send(link, leave, {}).ok());
    EXPECT_EQ(node.end_of(link), Code::closed);
    const int status = child.wait();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

TEST(Death, AKilledPeerOverTcpIsLostByItsReset) {
  const std::string key = generate_key();
  Node node(patient(key));
  Child child(node.listen("tcp://127.0.0.1:0"), {"HMC_CONTROL_CHILD_KEY=" + key, "HMC_CONTROL_CHILD_REMOTE=1"});
  Link* link = child.join(node);
  ASSERT_NE(link, nullptr);
  EXPECT_FALSE(node.identity(link).same_host);
  kill(child.pid, SIGKILL);
  EXPECT_EQ(node.end_of(link), Code::peer_lost);
}

TEST(Death, AStoppedPeerOfThisHostIsNotLost) {
  Node node({"", false, 0.1, true, "parent"});
  Child child(node.listen("unix"));
  Link* link = child.join(node);
  ASSERT_NE(link, nullptr);
  hmc::testing::stop_process(child.pid);
  ASSERT_TRUE(node.send(link, 100, pattern(20, 1)).ok());
  EXPECT_FALSE(node.until([&] { return link->endings > 0 || link->messages.size() > 1; }, 1.5));
  kill(child.pid, SIGCONT);
  ASSERT_TRUE(node.until([&] { return link->messages.size() == 2; }));
  EXPECT_TRUE(link->messages[1].payload == pattern(20, 1));
}

TEST(Death, KilledBeforeTheSinkIsSetIsToldAfterwards) {
  Node node(patient());
  std::unique_ptr<Channel> channel;
  {
    const auto held = node.engine->lock();
    node.plane->on_accept([&](std::unique_ptr<Channel> made) { channel = std::move(made); });
  }
  Child child(node.listen("unix"));
  ASSERT_TRUE(node.until([&] { return channel != nullptr; }));
  kill(child.pid, SIGKILL);
  child.wait();
  Link link;
  {
    const auto held = node.engine->lock();
    channel->set_sink(link);
  }
  EXPECT_EQ(node.end_of(&link), Code::peer_lost);
  const auto held = node.engine->lock();
  channel.reset();
}

// Carries bytes between a client and a server until told to fall silent, as a dead host or a cut cable does. It does not pass on
// that one of them has closed its connection.
class Relay {
 public:
  explicit Relay(std::uint16_t port) : target_(port), listening_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listening_.get(), reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
    EXPECT_EQ(::listen(listening_.get(), 4), 0);
    socklen_t length = sizeof name;
    getsockname(listening_.get(), reinterpret_cast<sockaddr*>(&name), &length);
    address = "tcp://127.0.0.1:" + std::to_string(ntohs(name.sin_port));
    thread_ = std::thread([this] { run(); });
  }
  ~Relay() {
    over = true;
    thread_.join();
  }
  std::string address;
  std::atomic<bool> silent{false};
  std::atomic<bool> damage{false};  // flips a bit of the next bytes from the client
  std::atomic<bool> over{false};

 private:
  void run() {
    pollfd waiting{listening_.get(), POLLIN, 0};
    while (poll(&waiting, 1, 20) == 0) {
      if (over) return;
    }
    const UniqueFd client(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    RawSocket server("tcp://127.0.0.1:" + std::to_string(target_));
    const int ends[2] = {client.get(), server.fd()};
    pollfd both[2] = {{ends[0], POLLIN, 0}, {ends[1], POLLIN, 0}};
    while (!over) {
      if (silent) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        continue;
      }
      if (poll(both, 2, 20) <= 0) continue;
      for (const int from : {0, 1}) {
        if (both[from].revents == 0) continue;
        std::byte buffer[65536];
        const ssize_t n = recv(ends[from], buffer, sizeof buffer, 0);
        if (n <= 0) both[from].fd = -1;  // poll() leaves it out
        if (n > 0 && from == 0 && damage.exchange(false)) buffer[n - 1] ^= std::byte{4};
        for (ssize_t at = 0; at < n;) {
          const ssize_t sent = ::send(ends[1 - from], buffer + at, static_cast<std::size_t>(n - at), MSG_NOSIGNAL);
          if (sent <= 0) break;
          at += sent;
        }
      }
    }
  }
  std::uint16_t target_;
  UniqueFd listening_;
  std::thread thread_;
};

class RelayTest : public ::testing::Test {
 protected:
  void start(double server_heartbeat, double client_heartbeat) {
    const std::string key = generate_key();
    server = std::make_unique<Node>(Node::Setup{key, false, server_heartbeat, false, "server"});
    client = std::make_unique<Node>(Node::Setup{key, false, client_heartbeat, false, "client"});
    relay = std::make_unique<Relay>(RawSocket::port_of(server->listen("tcp://127.0.0.1:0")));
    const auto connected = client->connect(relay->address);
    ASSERT_TRUE(connected.ok()) << connected.status().str();
    at_client = connected.value();
    at_server = server->accept();
    ASSERT_NE(at_server, nullptr);
  }
  std::unique_ptr<Node> server;
  std::unique_ptr<Node> client;
  std::unique_ptr<Relay> relay;
  Link* at_client = nullptr;
  Link* at_server = nullptr;
};

TEST_F(RelayTest, SilenceIsALossOnBothSides) {
  start(0.3, 0.3);
  relay->silent = true;
  EXPECT_EQ(server->end_of(at_server), Code::peer_lost);
  EXPECT_EQ(client->end_of(at_client), Code::peer_lost);
  EXPECT_NE(message_of(*server, at_server).find("heartbeat"), std::string::npos) << message_of(*server, at_server);
}

TEST_F(RelayTest, IdlePeersKeepEachOtherAlive) {
  // The patient side must ping often enough for the impatient one.
  bool alive = false;
  for (int attempt = 0; attempt < 4 && !alive; ++attempt) {  // a busy machine may be silent by itself, though not each time
    relay.reset();
    client.reset();
    server.reset();
    start(1, 3600);
    ASSERT_FALSE(HasFatalFailure());
    if (server->until([&] { return at_server->endings > 0; }, 3.5)) continue;
    ASSERT_TRUE(client->send(at_client, 100, pattern(40, 2)).ok());
    ASSERT_TRUE(server->until([&] { return !at_server->messages.empty() || at_server->endings > 0; }));
    const auto held = server->engine->lock();
    alive = !at_server->messages.empty();
  }
  ASSERT_TRUE(alive);
  EXPECT_EQ(at_client->endings, 0);
}

TEST_F(RelayTest, DamagedBytesEndTheChannel) {
  start(3600, 3600);  // no ping is damaged instead
  relay->damage = true;
  ASSERT_TRUE(client->send(at_client, 100, pattern(4000, 2)).ok());
  EXPECT_EQ(server->end_of(at_server), Code::protocol);
  EXPECT_TRUE(at_server->messages.empty());
}

TEST_F(RelayTest, ACutConnectionIsALoss) {
  start(5, 5);
  relay->over = true;
  EXPECT_EQ(server->end_of(at_server), Code::peer_lost);
  EXPECT_EQ(client->end_of(at_client), Code::peer_lost);
}

}  // namespace
}  // namespace hmc::test
