// How Contexts meet and part.
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "comm/context_state.h"
#include "comm/onesided/notifier.h"
#include "comm/session/group_events.h"
#include "comm/session/rank_scopes.h"
#include "support.h"

namespace hmc {
namespace {

using namespace testing;

void expect_works(const Context& a, const Context& b, const Peer& ab, const Peer& ba) {
  const auto source = *a.buffer(10000);
  const auto target = *b.buffer(10000);
  fill_pattern(span_of(source), 5);
  const auto remote = ab.import(*target.descriptor(), soon());
  ASSERT_TRUE(remote.ok()) << remote.status().str();
  const auto work = ab.put(source, *remote, {1, Complete::remote});
  ASSERT_TRUE(work.ok()) << work.status().str();
  HMC_ASSERT_OK(work->wait(soon()));
  HMC_ASSERT_OK(ba.wait_notify(1, 1, soon()));
  EXPECT_EQ(first_mismatch(span_of(target), 5), -1);
}

TEST(Peers, ByUnixTcpAndKey) {
  const auto b = make_context("", {"unix", "tcp://127.0.0.1:0", "tcp://[::1]:0"});
  const auto a = make_context();
  ASSERT_GE(b.addresses().size(), 2U);
  for (const auto& address : b.addresses()) {
    SCOPED_TRACE(address);
    const auto ab = a.connect(address, soon());
    ASSERT_TRUE(ab.ok()) << ab.status().str();
    const auto ba = b.accept(soon());
    ASSERT_TRUE(ba.ok()) << ba.status().str();
    EXPECT_EQ(ab->name(), b.name());
    EXPECT_TRUE(ab->same_host());
    EXPECT_NE(ab->epoch(), 0U);
    expect_works(a, b, *ab, *ba);
    ab->close();
    EXPECT_FALSE(ab->alive());
    while (!b.peers().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ContextOptions options;
  options.key = generate_job_key();
  const auto c = make_context("", {"tcp://127.0.0.1:0"}, options);
  const auto d = make_context("", {}, options);
  const auto dc = d.connect(c.addresses().back(), soon());
  ASSERT_TRUE(dc.ok()) << dc.status().str();
  expect_works(d, c, *dc, *c.accept(soon()));
  ContextOptions wrong;
  wrong.key = generate_job_key();
  const auto e = make_context("", {}, wrong);
  const auto refused = e.connect(c.addresses().back(), soon());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::authentication) << refused.status().str();
}

TEST(Peers, ConnectErrors) {
  const auto a = make_context();
  EXPECT_EQ(a.connect("carrier-pigeon:7", soon()).status().code(), Code::invalid_argument);
  EXPECT_EQ(a.connect("unix:/nonexistent/socket", soon(5)).status().code(), Code::peer_lost);
  EXPECT_EQ(a.accept(soon(0.02)).status().code(), Code::timeout);
  EXPECT_EQ(Context().connect("unix").status().code(), Code::invalid_argument);
  ContextOptions options;
  options.listen = {"tcp://0.0.0.0:0"};
  const auto open = Context::create(options);
  ASSERT_FALSE(open.ok());
  EXPECT_EQ(open.status().code(), Code::authentication) << open.status().str();
  options = {};
  for (const double seconds : {0.01, 3601.0, 1e9, std::nan("")}) {
    options.heartbeat_seconds = seconds;
    const Status refused = Context::create(options).status();
    EXPECT_EQ(refused.code(), Code::invalid_argument);
    EXPECT_NE(refused.message().find("0.1 to 3600"), std::string_view::npos) << refused.str();
  }
  options = {};
  options.name = std::string(256, 'n');
  EXPECT_EQ(Context::create(options).status().code(), Code::invalid_argument);
}

TEST(Peers, ConnectingAgainReturnsThePeer) {
  const auto a = make_context(), b = make_context();
  const auto first = *a.connect(b.addresses().front(), soon());
  const auto second = *a.connect(b.addresses().front(), soon());
  EXPECT_TRUE(first == second);
  const auto back = *b.connect(a.addresses().front(), soon());
  EXPECT_EQ(b.peers().size(), 1U);
  EXPECT_TRUE(b.peers().front() == back);
  EXPECT_EQ(b.accept(soon(0.02)).status().code(), Code::timeout);  // b wanted it itself
}

TEST(Peers, SimultaneousConnectsEndInOnePeer) {
  for (int round = 0; round < 30; ++round) {
    const auto a = make_context(), b = make_context();
    std::atomic<int> at_start{0};
    Result<Peer> ab = Status(Code::timeout, ""), ba = Status(Code::timeout, "");
    const auto start = [&] {
      ++at_start;
      while (at_start.load() < 2) {
      }
    };
    std::thread other([&] {
      start();
      ba = b.connect(a.addresses().front(), soon());
    });
    start();
    ab = a.connect(b.addresses().front(), soon());
    other.join();
    ASSERT_TRUE(ab.ok()) << ab.status().str();
    ASSERT_TRUE(ba.ok()) << ba.status().str();
    EXPECT_EQ(a.peers().size(), 1U);
    EXPECT_EQ(b.peers().size(), 1U);
    expect_works(a, b, *ab, *ba);
    expect_works(b, a, *ba, *ab);
  }
}

TEST(Peers, ManyThreadsConnectTheSameTwo) {
  const auto a = make_context(), b = make_context();
  std::vector<Result<Peer>> found(8, Status(Code::timeout, ""));
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < found.size(); ++t) {
    threads.emplace_back(
        [&, t] { found[t] = t % 2 == 0 ? a.connect(b.addresses().front(), soon()) : b.connect(a.addresses().front(), soon()); });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& peer : found) ASSERT_TRUE(peer.ok()) << peer.status().str();
  EXPECT_EQ(a.peers().size(), 1U);
  EXPECT_EQ(b.peers().size(), 1U);
  for (std::size_t t = 2; t < found.size(); ++t) EXPECT_TRUE(*found[t] == *found[t % 2]);
}

TEST(Peers, LeavingAndComingBack) {
  const auto a = make_context(), b = make_context();
  for (int round = 0; round < 10; ++round) {
    const auto ab = a.connect(b.addresses().front(), soon());
    ASSERT_TRUE(ab.ok()) << ab.status().str();
    const auto ba = b.accept(soon());
    ASSERT_TRUE(ba.ok()) << ba.status().str();
    HMC_ASSERT_OK(ab->notify(9));
    HMC_ASSERT_OK(ba->wait_notify(9, 1, soon()));
    (round % 2 == 0 ? *ab : *ba).close();
  }
}

TEST(Peers, JoinedAndLeft) {
  std::mutex mutex;
  std::vector<std::string> joined, left;
  ContextOptions options;
  options.on_joined = [&](const Peer& peer) {
    const std::scoped_lock lock(mutex);
    joined.push_back(peer.name());
  };
  options.on_left = [&](const Peer& peer, const Status& reason) {
    const std::scoped_lock lock(mutex);
    left.push_back(peer.name() + " " + reason.str());
  };
  const auto a = make_context("", {}, options);
  ContextOptions named;
  named.name = "visitor";
  {
    const auto b = make_context("", {}, named);
    ASSERT_TRUE(b.connect(a.addresses().front(), soon()).ok());
    ASSERT_TRUE(a.accept(soon()).ok());
  }
  const auto has_left = [&] {
    const std::scoped_lock lock(mutex);
    return !left.empty();
  };
  const auto limit = soon();
  while (!has_left() && !limit.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const std::scoped_lock lock(mutex);
  ASSERT_EQ(joined, std::vector<std::string>{"visitor"});
  ASSERT_EQ(left, std::vector<std::string>{"visitor ok"});
}

TEST(Peers, ExpectedPeersConnectAtFirstUse) {
  const auto a = make_context(), b = make_context();
  std::shared_ptr<PeerState> ab, ba;
  {
    const auto lock = a.state()->engine()->lock();
    ab = a.state()->expect_peer(b.state()->id(), {"unix:/nonexistent", b.addresses().front()}, "rank 1");
  }
  {
    const auto lock = b.state()->engine()->lock();
    ba = b.state()->expect_peer(a.state()->id(), {a.addresses().front()}, "rank 0");
  }
  const Envelope to{7, 0, 1};
  HMC_ASSERT_OK(a.state()->notifier().notify(ab, 3, to, soon()));  // queued, and connects
  HMC_ASSERT_OK(b.state()->notifier().wait_notify(ba, to, 3, 1, soon()));
  EXPECT_EQ(b.accept(soon(0.02)).status().code(), Code::timeout);
  std::shared_ptr<PeerState> nowhere;
  {
    const auto lock = a.state()->engine()->lock();
    nowhere = a.state()->expect_peer({1, 2}, {"unix:/nonexistent"}, "rank 2");
  }
  EXPECT_EQ(a.state()->notifier().wait_notify(nowhere, to, 1, 1, soon()).code(), Code::peer_lost);
  {
    const auto lock = a.state()->engine()->lock();
    nowhere = a.state()->expect_peer({1, 3}, {b.addresses().front()}, "rank 3");  // somebody else lives there
  }
  EXPECT_EQ(a.state()->notifier().wait_notify(nowhere, to, 1, 1, soon()).code(), Code::peer_lost);
}

TEST(Peers, ScopesTellWhoseRankItIs) {
  const auto a = make_context(), b = make_context();
  const auto ab = *a.connect(b.addresses().front(), soon());
  const auto ba = *b.accept(soon());
  {
    const auto lock = b.state()->engine()->lock();
    b.state()->scopes().add(5, {ba.state(), b.state()->self()});
    EXPECT_TRUE(b.state()->scopes().has(5, 0, *ba.state()));
    EXPECT_FALSE(b.state()->scopes().has(5, 1, *ba.state()));
    EXPECT_FALSE(b.state()->scopes().has(5, 2, *ba.state()));
    EXPECT_FALSE(b.state()->scopes().has(6, 0, *ba.state()));
  }
  const auto payload = pattern(5, 1);
  HMC_ASSERT_OK(
      a.state()->notifier().notify(ab.state(), std::span<const std::byte>(payload), {5, 1, 1}, soon()));  // claims b's own rank
  HMC_ASSERT_OK(a.state()->notifier().notify(ab.state(), std::span<const std::byte>(payload), {5, 0, 1}, soon()));
  const auto got = b.state()->notifier().notifications(nullptr, {5, any_rank, 1}, soon());
  ASSERT_TRUE(got.ok());
  ASSERT_EQ(got->size(), 1U);
  EXPECT_EQ((*got)[0].source, 0);
  const auto lock = b.state()->engine()->lock();
  b.state()->scopes().remove(5);
}

TEST(Peers, ControlMessagesWaitForTheirHandler) {
  const auto a = make_context(), b = make_context();
  const auto ab = *a.connect(b.addresses().front(), soon());
  const auto ba = *b.accept(soon());
  {
    const auto lock = a.state()->engine()->lock();
    HMC_ASSERT_OK(ab.state()->send_control(200, pattern(10, 1)));
    std::vector<UniqueFd> fds;
    fds.push_back(make_memfd("test"));
    HMC_ASSERT_OK(ab.state()->send_control(255, pattern(20, 2), std::move(fds)));
  }
  HMC_ASSERT_OK(ab.notify(1));
  HMC_ASSERT_OK(ba.wait_notify(1, 1, soon()));
  std::vector<std::tuple<int, std::size_t, std::size_t>> seen;  // type, bytes, descriptors
  {
    const auto lock = b.state()->engine()->lock();
    const auto handler = [&](PeerState& peer, MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) {
      EXPECT_EQ(&peer, ba.state().get());
      seen.emplace_back(type, payload.size(), fds.size());
    };
    b.state()->group_events().set_message_handler(handler);
  }
  EXPECT_TRUE(b.state()->engine()->drive(soon(), [&] { return seen.size() == 2; }));
  EXPECT_EQ(seen, (std::vector<std::tuple<int, std::size_t, std::size_t>>{{200, 10, 0}, {255, 20, 1}}));
  const auto lock = b.state()->engine()->lock();
  b.state()->group_events().set_message_handler(nullptr);
}

TEST(Peers, ManualProgress) {
  ContextOptions options;
  options.progress = Progress::manual;
  const auto a = make_context("", {}, options);
  const auto b = make_context();
  const auto ab = a.connect(b.addresses().front(), soon());
  ASSERT_TRUE(ab.ok()) << ab.status().str();
  const auto ba = *b.accept(soon());
  HMC_ASSERT_OK(ba.notify(4));
  while (!ab->wait_notify(4, 1, soon(0)).ok()) a.progress();
}

TEST(Peers, ClosedContextRefusesEverything) {
  Pair pair;
  const auto buffer = *pair.a.buffer(10);
  const auto remote = *pair.ab.import(*pair.b.buffer(10)->descriptor(), soon());
  HMC_ASSERT_OK(pair.a.close(soon()));
  HMC_ASSERT_OK(pair.a.close(soon()));
  EXPECT_TRUE(pair.a.closed());
  EXPECT_TRUE(buffer.closed());
  EXPECT_FALSE(remote.alive());
  EXPECT_FALSE(pair.ab.alive());
  const auto code = [](const auto& result) { return result.status().code(); };
  EXPECT_EQ(code(pair.a.connect("unix:/x")), Code::closed);
  EXPECT_EQ(code(pair.a.accept()), Code::closed);
  EXPECT_EQ(code(pair.a.buffer(1)), Code::closed);
  EXPECT_EQ(pair.a.publish("x", buffer).code(), Code::closed);
  EXPECT_EQ(code(pair.ab.put(buffer, remote)), Code::closed);
  EXPECT_EQ(code(pair.ab.lookup("x")), Code::closed);
  EXPECT_EQ(pair.ab.notify(1).code(), Code::closed);
  EXPECT_EQ(pair.ab.fence().code(), Code::closed);
  EXPECT_EQ(code(pair.ab.path()), Code::closed);
  EXPECT_EQ(code(buffer.descriptor()), Code::closed);
  HMC_EXPECT_OK(buffer.close());
  EXPECT_TRUE(pair.a.peers().empty());
  EXPECT_TRUE(pair.a.addresses().empty());
  EXPECT_FALSE(pair.a.progress());
  while (pair.ba.alive()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(pair.ba.notify(1).code(), Code::closed);
}

TEST(Peers, LastHandleClosesEvenInACallback) {
  auto b = make_context();
  auto holder = std::make_shared<Context>(make_context());
  const auto ab = *holder->connect(b.addresses().front(), soon());
  const auto ba = *b.accept(soon());
  const auto source = *holder->buffer(8);
  const auto target = *b.buffer(8);  // one that nobody held would close under the put
  const auto remote = *ab.import(*target.descriptor(), soon());
  std::atomic<bool> ran{false};
  const auto work = *ab.put(source, remote);
  work.then([&ran, holder](const Status&) mutable {
    HMC_EXPECT_OK(holder->close(soon()));
    holder.reset();
    ran = true;
  });
  holder.reset();
  while (!ran.load() || ba.alive()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(Peers, NoDescriptorIsLeft) {
  {
    Pair warm_up;
  }
  const int before = open_descriptors();
  for (int round = 0; round < 5; ++round) {
    Pair pair;
    const auto source = *pair.a.buffer(100000);
    const auto target = *pair.b.buffer(100000);
    const auto remote = *pair.ab.import(*target.descriptor(), soon());
    HMC_ASSERT_OK(pair.ab.put(source, remote, {1, Complete::remote})->wait(soon()));
    HMC_ASSERT_OK(pair.ba.wait_notify(1, 1, soon()));
    if (round % 2 == 0) HMC_ASSERT_OK(target.close(soon()));
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Peers, GarbageDoesNotDisturbOthers) {
  Pair pair;
  std::string path = pair.b.addresses().front();
  ASSERT_TRUE(path.starts_with("unix:"));
  path.erase(0, 5);
  std::vector<int> sockets;
  for (int i = 0; i < 20; ++i) {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const auto junk = pattern(static_cast<std::size_t>(i) * 40, static_cast<std::uint64_t>(i));
    if (i % 2 == 0) static_cast<void>(::send(fd, "HMC-CTL\n", 8, MSG_NOSIGNAL));
    static_cast<void>(::send(fd, junk.data(), junk.size(), MSG_NOSIGNAL));
    sockets.push_back(fd);
  }
  expect_works(pair.a, pair.b, pair.ab, pair.ba);
  for (const int fd : sockets) ::close(fd);
}

TEST(Peers, AForkedChildIsRefused) {
  Pair pair;
  const auto buffer = *pair.a.buffer(10);
  auto held = pair.a.state()->engine()->lock();  // as by another thread: nobody releases it in the child
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    bool ok = pair.a.connect("unix:/x").status().code() == Code::closed;
    ok = ok && pair.ab.notify(1).code() == Code::closed;
    ok = ok && buffer.close().code() == Code::closed;
    ok = ok && pair.a.buffer(4).status().code() == Code::closed;
    ok = ok && pair.a.closed() && !pair.ab.alive() && pair.a.counters().empty();
    ok = ok && pair.a.close().code() == Code::closed;
    ok = ok && buffer.native("tcp").status().code() == Code::closed;
    ok = ok && pair.a.connect_native("tcp", {}).status().code() == Code::closed;
    {
      const auto peer = std::move(pair.ab);
      const auto context = std::move(pair.a);
    }
    _exit(ok ? 0 : 1);
  }
  held.unlock();
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  expect_works(pair.a, pair.b, pair.ab, pair.ba);
}

}  // namespace
}  // namespace hmc
