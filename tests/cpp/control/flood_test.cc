// Another process opens handshakes as fast as it can and ends none of them: clients that mean it get in.
#include <signal.h>
#include <sys/wait.h>

#include <array>
#include <chrono>

#include "control/raw.h"
#include "progress/source.h"

namespace hmc::test {
namespace {

using control::HelloKind;

constexpr unsigned flood_seconds = 170;  // at the most

// A child that keeps its last 700 connections open. Between fork and _exit it only makes system calls.
class Flood {
 public:
  Flood(const std::string& address, const Bytes& said) {
    sockaddr_storage name{};
    socklen_t size = 0;
    if (address.starts_with("unix:")) {
      auto& path = reinterpret_cast<sockaddr_un&>(name);
      path.sun_family = AF_UNIX;
      address.copy(path.sun_path, sizeof path.sun_path - 1, 5);
      size = sizeof path;
    } else {
      auto& port = reinterpret_cast<sockaddr_in&>(name);
      port.sin_family = AF_INET;
      port.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      port.sin_port = htons(RawSocket::port_of(address));
      size = sizeof port;
    }
    child_ = fork();
    if (child_ != 0) return;
    alarm(flood_seconds);
    std::array<int, 700> held;
    held.fill(-1);
    for (std::size_t i = 0;; i = (i + 1) % held.size()) {
      if (held[i] >= 0) close(held[i]);
      held[i] = socket(name.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (connect(held[i], reinterpret_cast<sockaddr*>(&name), size) != 0) continue;
      usleep(20);  // and so about 12,000 a second
      static_cast<void>(!::send(held[i], said.data(), said.size(), MSG_NOSIGNAL));
    }
  }
  ~Flood() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  Flood(const Flood&) = delete;
  Flood& operator=(const Flood&) = delete;

 private:
  pid_t child_;
};

enum class Secured { key, insecure, nothing };

class FloodTest : public ::testing::TestWithParam<Secured> {
 protected:
  Node::Setup setup(const char* name) const {
    return {GetParam() == Secured::key ? key : "", GetParam() == Secured::insecure, 5, true, name};
  }
  void expect_joins(Node& server, const std::string& address, const std::string& flooded, const Bytes& said) {
    const Flood flood(flooded, said);
    ASSERT_TRUE(server.until([&] { return server.refused.size() > 300; })) << "no flood";
    for (int i = 0; i < 4; ++i) {
      Node client(setup("client"));
      const auto connected = client.connect(address, 40);
      ASSERT_TRUE(connected.ok()) << connected.status().str();
      Link* link = server.accept();
      ASSERT_NE(link, nullptr);
      ASSERT_TRUE(client.send(connected.value(), 100, pattern(1001, 3)).ok());
      ASSERT_TRUE(server.until([&] { return link->messages.size() == 1; }));
      EXPECT_TRUE(link->messages[0].payload == pattern(1001, 3));
    }
    EXPECT_TRUE(server.until([&] { return server.refused.size() > 600; })) << "the flood has ended";
  }
  std::string key = generate_key();
};

TEST_P(FloodTest, OfHellosKeepsNobodyOut) {
  Node server(setup("server"));
  const std::string tcp = server.listen("tcp://127.0.0.1:0");
  const std::uint8_t flags = GetParam() == Secured::key        ? control::hello_has_key
                             : GetParam() == Secured::insecure ? control::hello_insecure
                                                               : 0;
  expect_joins(server, tcp, tcp, raw_hello(HelloKind::connect, flags));
}

TEST_P(FloodTest, OfHalfAHelloKeepsNobodyOut) {
  Node server(setup("server"));
  const std::string tcp = server.listen("tcp://127.0.0.1:0");
  expect_joins(server, tcp, tcp, magic_and({}));
}

TEST_P(FloodTest, OverUnixKeepsNobodyOut) {
  if (GetParam() != Secured::nothing) GTEST_SKIP() << "the same with a key";
  Node server(setup("server"));
  const std::string local = server.listen("unix");
  expect_joins(server, local, local, raw_hello(HelloKind::connect));
}

std::string secured_name(const ::testing::TestParamInfo<Secured>& by) {
  return by.param == Secured::key ? "Key" : by.param == Secured::insecure ? "Insecure" : "Nothing";
}
INSTANTIATE_TEST_SUITE_P(Control, FloodTest, ::testing::Values(Secured::key, Secured::insecure, Secured::nothing), secured_name);

TEST(Sources, TheHeaviestGivesWay) {
  std::vector<Source> clients(100, 7);
  clients.insert(clients.begin() + 50, {1, 2, 3, 3, 3});
  std::array<unsigned, 105> chosen{};
  for (int i = 0; i < 20'000; ++i) ++chosen.at(choose_discarded(clients));
  for (std::size_t i = 0; i < chosen.size(); ++i) EXPECT_EQ(chosen[i] > 0, clients[i] == 7) << i;
  const std::vector<Source> all{1, 2, 3};
  std::array<unsigned, 3> any{};
  for (int i = 0; i < 1000; ++i) ++any.at(choose_discarded(all));
  for (const unsigned count : any) EXPECT_GT(count, 200U);
}

TEST(Sources, AddressesAndProcesses) {
  const auto address = [](const char* text) {
    return source_of_address(resolve_tcp(std::string("tcp://") + text, false).value().front());
  };
  EXPECT_EQ(address("10.1.2.3:1"), address("10.1.2.3:2"));
  EXPECT_NE(address("10.1.2.3:1"), address("10.1.2.4:1"));
  EXPECT_EQ(address("[::ffff:10.1.2.3]:1"), address("10.1.2.3:1"));
  EXPECT_EQ(address("[2001:db8::1]:1"), address("[2001:db8::2]:1"));
  EXPECT_NE(address("[2001:db8:0:1::1]:1"), address("[2001:db8:0:2::1]:1"));
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  EXPECT_EQ(source_of_process(ends[0]), source_of_process(ends[1]));
  EXPECT_NE(source_of_process(ends[0]), address("10.1.2.3:1"));
  for (const int end : ends) close(end);
}

}  // namespace
}  // namespace hmc::test
