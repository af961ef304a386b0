// What was sent before an end arrives, also at a process that did not run from before it was sent until after the sender had ended.
#include <signal.h>

#include <chrono>
#include <cstring>
#include <span>
#include <sstream>
#include <thread>

#include "ways.h"

namespace hmc {
namespace {

using namespace testing;

// More messages than a round takes, where the wire holds so many of a process that does not poll.
std::size_t few(const std::string& transports) { return transports == "verbs" ? 8 : 150; }
std::size_t bytes_of_message(std::size_t i) { return i % 7 == 0 ? 0 : i % 601; }

Status send_all(const Peer& peer, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    auto out = pattern(bytes_of_message(i), i);
    HMC_TRY(peer.send(view(out), 3, soon()));
    HMC_TRY(peer.notify(4));
    const std::uint64_t number = i;
    HMC_TRY(peer.notify(std::as_bytes(std::span(&number, 1))));
  }
  return {};
}

// Empty, or what is missing or wrong.
std::string trouble_in_all(const Peer& peer, std::size_t count) {
  Guarded in(700);
  for (std::size_t i = 0; i < count; ++i) {
    const auto info = peer.recv(in.view(), 3, soon());
    if (!info.ok()) return "message " + std::to_string(i) + ": " + info.status().str();
    if (info->bytes != bytes_of_message(i) || !same_bytes(in.inner().first(info->bytes), pattern(info->bytes, i)))
      return "message " + std::to_string(i) + " is another one";
  }
  if (const Status counted = peer.wait_notify(4, count, soon()); !counted.ok()) return "notifications: " + counted.str();
  for (std::uint64_t i = 0; i < count;) {
    const auto found = peer.notifications(soon());
    if (!found.ok() || found->empty()) return "payload " + std::to_string(i) + ": " + found.status().str();
    for (const auto& each : *found) {
      std::uint64_t number = count;
      if (each.payload.size() == sizeof number) std::memcpy(&number, each.payload.data(), sizeof number);
      if (number != i++) return "payload " + std::to_string(i - 1) + " is another one";
    }
  }
  return {};
}

// "<transports> <address> <how>": sends all and ends.
TEST(Role, DISABLED_sends_and_ends) {
  std::istringstream words(role_arguments());
  std::string transports, address, how;
  words >> transports >> address >> how;
  const auto context = make_context(transports, {"unix"});
  const auto peer = *context.connect(address, soon());
  hear();
  HMC_ASSERT_OK(send_all(peer, few(transports)));
  if (how == "dies") {
    wait_until_tcp_has_delivered();  // what its kernel still had would die with it
    raise(SIGKILL);
  }
  if (how == "closes") HMC_EXPECT_OK(context.close(soon()));
}

// "<transports> <address> <count>": says what it receives once it was told to.
TEST(Role, DISABLED_receives_late) {
  std::istringstream words(role_arguments());
  std::string transports, address;
  std::size_t count = 0;
  words >> transports >> address >> count;
  const auto context = make_context(transports, {"unix"});
  const auto peer = *context.connect(address, soon());
  tell("ready");
  hear();
  tell(trouble_in_all(peer, count));
}

class UnreadAtEnd : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Ways, UnreadAtEnd, ::testing::ValuesIn(all_ways()), [](const auto& p) { return p.param; });

// Nothing moves here between the handshake and the sender's end.
void expect_all_of_a_sender_that(const std::string& how, const std::string& name) {
  SCOPED_TRACE(how);
  const Way way(name);
  ContextOptions manual;
  manual.progress = Progress::manual;
  const auto context = make_context(way.transports, {"unix"}, manual);
  Role role("sends_and_ends", way.transports + " " + context.addresses().front() + " " + how);
  const auto peer = *context.accept(soon());
  role.write_line("go");
  EXPECT_EQ(role.wait(), how == "dies" ? 128 + SIGKILL : 0);
  EXPECT_EQ(trouble_in_all(peer, few(way.transports)), "");
  Guarded in(700);
  const Code end = peer.recv(in.view(), 3, soon()).status().code();
  EXPECT_TRUE(end == Code::closed || (end == Code::peer_lost && how != "closes")) << static_cast<int>(end);
}

TEST_P(UnreadAtEnd, OfASenderThatCloses) { expect_all_of_a_sender_that("closes", GetParam()); }
TEST_P(UnreadAtEnd, OfASenderThatExits) { expect_all_of_a_sender_that("exits", GetParam()); }
TEST_P(UnreadAtEnd, OfASenderThatIsKilled) { expect_all_of_a_sender_that("dies", GetParam()); }

TEST_P(UnreadAtEnd, AtAProcessThatWasStopped) {
  const Way way(GetParam());
  auto context = make_context(way.transports, {"unix"});
  Role role("receives_late", way.transports + " " + context.addresses().front() + " " + std::to_string(few(way.transports)));
  const auto peer = *context.accept(soon());
  EXPECT_EQ(role.read_line(), "ready");
  role.signal(SIGSTOP);
  HMC_ASSERT_OK(send_all(peer, few(way.transports)));
  HMC_EXPECT_OK(context.close(soon()));  // waits for an answer for a second
  context = Context();
  role.signal(SIGCONT);
  role.write_line("go");
  EXPECT_EQ(role.read_line(), "");
  EXPECT_EQ(role.wait(), 0);
}

// What does not fit into the sockets of a stopped process waits for it.
TEST(UnreadAtEndOverTcp, IsWaitedForWhereTheWireIsFull) {
  constexpr std::size_t more = 240;  // the sockets hold two thirds, and HMC takes what is left
  setenv("HMC_TCP_BUFFER", "4096", 1);
  auto context = make_context("tcp", {"unix"});
  Role role("receives_late", "tcp " + context.addresses().front() + " " + std::to_string(more));
  const auto peer = *context.accept(soon());
  unsetenv("HMC_TCP_BUFFER");
  EXPECT_EQ(role.read_line(), "ready");
  role.signal(SIGSTOP);
  std::thread later([&role] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));  // longer than an answer is waited for
    role.signal(SIGCONT);
  });
  HMC_EXPECT_OK(send_all(peer, more));
  HMC_EXPECT_OK(context.close(soon()));
  later.join();
  context = Context();
  role.write_line("go");
  EXPECT_EQ(role.read_line(), "");
  EXPECT_EQ(role.wait(), 0);
}

}  // namespace
}  // namespace hmc
