#include "progress/listener.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "hmc/deadline.h"
#include "testing.h"

namespace hmc {
namespace {

constexpr Magic data_magic{'H', 'M', 'C', '-', 'D', 'A', 'T', '\n'};
constexpr auto magic_time = std::chrono::seconds(5);  // that a client has: Listener::route()

std::string_view view(const Magic& magic) { return {magic.data(), magic.size()}; }

// Waits for `fd`; true if it became ready in time.
bool ready(int fd, short events, int milliseconds = 60'000) {
  pollfd entry{fd, events, 0};
  return poll(&entry, 1, milliseconds) == 1;
}

class ListenerTest : public ::testing::TestWithParam<Progress> {
 protected:
  void SetUp() override {
    setenv("XDG_RUNTIME_DIR", runtime_.path().c_str(), 1);
    engine_ = Engine::create(GetParam()).value();
    const auto lock = engine_->lock();
    listener_ = Listener::create(engine_).value();
    route(control_magic, control_);
  }

  void TearDown() override {
    {
      const auto lock = engine_->lock();
      control_.clear();
      data_.clear();
      listener_.reset();
    }
    engine_->stop();
    unsetenv("XDG_RUNTIME_DIR");
  }

  void route(const Magic& magic, std::vector<AcceptedSocket>& to) {
    listener_->route(magic, [&to](AcceptedSocket socket) { to.push_back(std::move(socket)); });
  }

  std::string listen(std::string_view address) {
    const auto lock = engine_->lock();
    auto result = listener_->listen(address);
    EXPECT_TRUE(result.ok()) << result.status().str();
    return result.ok() ? result.value() : "";
  }

  // A client that has sent `bytes` before it is accepted: then its time for the magic begins.
  UniqueFd client(const std::string& address, std::string_view bytes) {
    const auto lock = engine_->lock();
    const auto found = address.starts_with("tcp") ? resolve_tcp(address, false).value() : std::vector<SocketAddress>();
    std::span<const SocketAddress> targets = found;
    auto fd = found.empty() ? start_connect(address) : start_connect(targets, address);
    EXPECT_TRUE(fd.ok()) << fd.status().str();
    if (!fd.ok()) return {};
    EXPECT_TRUE(ready(fd->get(), POLLOUT));
    if (!bytes.empty()) {
      EXPECT_EQ(send(fd->get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    }
    return std::move(fd).value();
  }

  bool wait_for(std::vector<AcceptedSocket>& sockets, std::size_t count, double seconds = 60) {
    return engine_->drive(Deadline::after_seconds(seconds), [&] { return sockets.size() >= count; });
  }

  // True if the listener closed the connection within the time.
  bool closed_by_peer(int fd, double seconds = 60) {
    return engine_->drive(Deadline::after_seconds(seconds), [fd] {
      char byte = 0;
      const ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT);
      return n == 0 || (n < 0 && errno != EAGAIN);
    });
  }

  // Nobody polls by itself in manual mode.
  void turn(double seconds) {
    engine_->drive(Deadline::after_seconds(seconds), [] { return false; });
  }

  testing::TemporaryFolder runtime_;
  std::shared_ptr<Engine> engine_;
  std::unique_ptr<Listener> listener_;
  std::vector<AcceptedSocket> control_;
  std::vector<AcceptedSocket> data_;
};

INSTANTIATE_TEST_SUITE_P(Modes, ListenerTest, ::testing::Values(Progress::background, Progress::manual),
                         [](const auto& mode) { return mode.param == Progress::manual ? "manual" : "background"; });

TEST_P(ListenerTest, RoutesByMagicAndLeavesTheRestUnread) {
  const std::string address = listen("unix");
  EXPECT_EQ(address.rfind("unix:" + runtime_.path().string() + "/hmc/", 0), 0U) << address;
  {
    const auto lock = engine_->lock();
    route(data_magic, data_);
    EXPECT_EQ(listener_->addresses(), std::vector<std::string>{address});
  }
  const UniqueFd one = client(address, std::string(view(control_magic)) + "hello");
  const UniqueFd two = client(address, std::string(view(data_magic)) + "world");
  ASSERT_TRUE(wait_for(control_, 1));
  ASSERT_TRUE(wait_for(data_, 1));
  char text[16] = "";
  EXPECT_EQ(recv(control_[0].fd.get(), text, sizeof text, 0), 5);
  EXPECT_EQ(std::string(text, 5), "hello");
  EXPECT_EQ(recv(data_[0].fd.get(), text, sizeof text, 0), 5);
  EXPECT_EQ(std::string(text, 5), "world");
  EXPECT_TRUE(control_[0].unix_socket);
  EXPECT_EQ(control_[0].remote, "unix");
  EXPECT_NE(fcntl(control_[0].fd.get(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(fcntl(control_[0].fd.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_P(ListenerTest, TcpOnBothFamilies) {
  const std::string v4 = listen("tcp://127.0.0.1:0");
  EXPECT_EQ(v4.rfind("tcp://127.0.0.1:", 0), 0U);
  const UniqueFd one = client(v4, view(control_magic));
  ASSERT_TRUE(wait_for(control_, 1));
  EXPECT_FALSE(control_[0].unix_socket);
  EXPECT_EQ(control_[0].remote.rfind("tcp://127.0.0.1:", 0), 0U) << control_[0].remote;
  int no_delay = 0;
  socklen_t size = sizeof no_delay;
  ASSERT_EQ(getsockopt(control_[0].fd.get(), IPPROTO_TCP, TCP_NODELAY, &no_delay, &size), 0);
  EXPECT_NE(no_delay, 0);
  no_delay = 0;
  ASSERT_EQ(getsockopt(one.get(), IPPROTO_TCP, TCP_NODELAY, &no_delay, &size), 0);
  EXPECT_NE(no_delay, 0);

  const std::string every = listen("tcp://[::]:0");
  const std::string port = every.substr(every.rfind(':'));
  const UniqueFd two = client("tcp://127.0.0.1" + port, view(control_magic));
  ASSERT_TRUE(wait_for(control_, 2));
  EXPECT_EQ(control_[1].remote.rfind("tcp://127.0.0.1:", 0), 0U) << control_[1].remote;
  if (every.rfind("tcp://[::]:", 0) != 0) GTEST_SKIP() << "no IPv6 on this host";
  auto lock = engine_->lock();
  auto six = start_connect("tcp://[::1]" + port);
  if (!six.ok()) GTEST_SKIP() << "no IPv6 loopback: " << six.status().str();
  ASSERT_TRUE(ready(six->get(), POLLOUT));
  ASSERT_EQ(send(six->get(), control_magic.data(), 8, MSG_NOSIGNAL), 8);
  lock.unlock();
  ASSERT_TRUE(wait_for(control_, 3));
  EXPECT_EQ(control_[2].remote.rfind("tcp://[::1]:", 0), 0U) << control_[2].remote;
}

TEST_P(ListenerTest, NamesOfSeveralAddressesFallThroughToTheOneThatListens) {
  const std::string v4 = listen("tcp://127.0.0.1:0");
  const UniqueFd one = client("tcp://localhost" + v4.substr(v4.rfind(':')), view(control_magic));
  EXPECT_TRUE(wait_for(control_, 1));
}

TEST_P(ListenerTest, GarbageIsClosedAtItsFirstWrongByteAndDisturbsNobody) {
  const std::string address = listen("tcp://127.0.0.1:0");
  const UniqueFd scanner = client(address, "GET / HTTP/1.1\r\n\r\n");
  const UniqueFd unknown = client(address, "HMC-XYZ\n");
  const UniqueFd one_byte = client(address, std::string_view("\0", 1));
  const UniqueFd gone = client(address, "");
  shutdown(gone.get(), SHUT_RDWR);
  const UniqueFd good = client(address, view(control_magic));
  ASSERT_TRUE(wait_for(control_, 1));
  turn(0.1);
  EXPECT_TRUE(closed_by_peer(scanner.get()));
  EXPECT_TRUE(closed_by_peer(unknown.get()));
  EXPECT_TRUE(closed_by_peer(one_byte.get()));
  turn(0.05);
  EXPECT_EQ(control_.size(), 1U);
}

TEST_P(ListenerTest, SlowMagicArrivesByteByByte) {
  const auto start = std::chrono::steady_clock::now();
  const UniqueFd slow = client(listen("unix"), "");
  bool in_time = true;
  for (const char byte : control_magic) {
    auto lock = engine_->lock();  // the listener reads what is sent under it before it looks at the clock
    in_time = std::chrono::steady_clock::now() - start < magic_time;
    if (!in_time) break;
    ASSERT_EQ(send(slow.get(), &byte, 1, MSG_NOSIGNAL), 1);
    lock.unlock();
    turn(0.02);
  }
  EXPECT_TRUE(in_time ? wait_for(control_, 1) : closed_by_peer(slow.get()));
}

TEST_P(ListenerTest, SilentClientsAreDroppedAtTheirDeadline) {
  const std::string address = listen("tcp://127.0.0.1:0");
  const auto start = std::chrono::steady_clock::now();
  const UniqueFd half_open = client(address, "");
  const UniqueFd slow_loris = client(address, "HMC-");
  turn(0.1);
  char byte = 0;
  const bool open = recv(half_open.get(), &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN;
  EXPECT_TRUE(open || std::chrono::steady_clock::now() - start >= magic_time);
  turn(5.5);
  EXPECT_TRUE(closed_by_peer(half_open.get()));
  EXPECT_TRUE(closed_by_peer(slow_loris.get()));
  const UniqueFd good = client(address, view(control_magic));
  EXPECT_TRUE(wait_for(control_, 1));
}

TEST_P(ListenerTest, ThreeHundredSilentClientsKeepNobodyOut) {
  const std::string address = listen("unix");
  const auto start = std::chrono::steady_clock::now();
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 300; ++i) {
    silent.push_back(client(address, ""));
    if (i % 50 == 0) turn(0.02);
  }
  // Clients are accepted in turn: when this one has been, so have all the others.
  const UniqueFd good = client(address, view(control_magic));
  ASSERT_TRUE(wait_for(control_, 1));
  auto lock = engine_->lock();
  std::vector<int> open;
  for (const UniqueFd& each : silent) {
    char byte = 0;
    if (recv(each.get(), &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN) open.push_back(each.get());
  }
  EXPECT_LE(open.size(), 256U);
  const bool in_time = std::chrono::steady_clock::now() - start < magic_time;
  if (in_time) {  // the clients that are still connected may send their magic
    EXPECT_EQ(send(open.at(0), control_magic.data(), 8, MSG_NOSIGNAL), 8);
  }
  lock.unlock();
  EXPECT_TRUE(!in_time || wait_for(control_, 2));
}

TEST_P(ListenerTest, ThreeHundredGoodClientsAllArrive) {
  const std::string address = listen("unix");
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 300; ++i) clients.push_back(client(address, view(control_magic)));
  EXPECT_TRUE(wait_for(control_, 300));
}

TEST_P(ListenerTest, RouteMayUnrouteItself) {
  const std::string address = listen("unix");
  int calls = 0;
  {
    const auto lock = engine_->lock();
    listener_->route(data_magic, [&](AcceptedSocket) {
      ++calls;
      listener_->unroute(data_magic);
    });
  }
  const UniqueFd first = client(address, view(data_magic));
  ASSERT_TRUE(engine_->drive(Deadline::after_seconds(60), [&] { return calls == 1; }));
  const UniqueFd second = client(address, view(data_magic));
  turn(0.1);
  EXPECT_TRUE(closed_by_peer(second.get()));
  EXPECT_EQ(calls, 1);
}

TEST_P(ListenerTest, DescriptorLimitPausesAcceptingWithoutBurningCpu) {
  const std::string address = listen("unix");
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  // Connected before descriptors run out, so that it waits in the accept queue.
  UniqueFd waiting(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::strcpy(name.sun_path, address.substr(5).c_str());
  std::vector<UniqueFd> hoard;
  {
    const auto lock = engine_->lock();  // nobody accepts meanwhile
    ASSERT_EQ(connect(waiting.get(), reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
    const rlimit tight{256, before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &tight);
    for (;;) {
      UniqueFd fd(dup(waiting.get()));
      if (!fd) break;
      hoard.push_back(std::move(fd));
    }
  }
  ASSERT_EQ(send(waiting.get(), control_magic.data(), 8, MSG_NOSIGNAL), 8);
  timespec start{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
  EXPECT_FALSE(wait_for(control_, 1, 0.5));
  timespec end{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
  const double cpu = static_cast<double>(end.tv_sec - start.tv_sec) + 1e-9 * static_cast<double>(end.tv_nsec - start.tv_nsec);
  EXPECT_LT(cpu, 0.25);
  hoard.clear();
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(wait_for(control_, 1));
}

TEST_P(ListenerTest, ChildAfterForkLeavesTheFileAndTheParentAlone) {
  const std::string address = listen("unix");
  const pid_t child = fork();
  if (child == 0) {
    listener_.reset();
    _exit(access(address.substr(5).c_str(), F_OK) == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  const UniqueFd good = client(address, view(control_magic));
  EXPECT_TRUE(wait_for(control_, 1));
}

TEST_P(ListenerTest, TakenPortIsAnError) {
  const std::string address = listen("tcp://127.0.0.1:0");
  const auto lock = engine_->lock();
  const auto again = listener_->listen(address);
  EXPECT_EQ(again.status().code(), Code::invalid_argument) << again.status().str();
  EXPECT_EQ(listener_->addresses().size(), 1U);
}

}  // namespace
}  // namespace hmc
