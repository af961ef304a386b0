// Connecting by numeric address and by a host name whose lookup takes long.
#include "progress/connecting.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <string>
#include <utility>

#include "held_lookup.h"
#include "progress/address.h"
#include "testing.h"

namespace {
std::atomic<bool> answers_are_late{false};
}  // namespace

// Instead of the C library's: another host's refusal is not there yet when a connection was begun.
extern "C" int poll(pollfd* fds, nfds_t count, int milliseconds) {
  if (answers_are_late && milliseconds == 0) return 0;
  timespec limit{milliseconds / 1000, milliseconds % 1000 * 1'000'000L};
  return static_cast<int>(syscall(SYS_ppoll, fds, count, milliseconds < 0 ? nullptr : &limit, nullptr, 0));
}

namespace hmc {
namespace {

using hmc::testing::HeldLookup;

class ConnectingTest : public ::testing::Test {
 protected:
  // Has that port of 127.0.0.2 refuse connections. False: another program has it.
  bool refuses_elsewhere(const std::string& port) {
    const SocketAddress there = numeric_tcp("tcp://127.0.0.2:" + port, true).value().front();
    refusing_ = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));  // bound, and does not listen
    if (bind(refusing_.get(), there.get(), there.size) != 0) refusing_.reset();
    return static_cast<bool>(refusing_);
  }
  // A listening socket on 127.0.0.1; its port as text.
  std::string listen_there() {
    SocketAddress any = numeric_tcp("tcp://127.0.0.1:0", true).value().front();
    listening_ = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(listening_.get(), any.get(), any.size), 0);
    EXPECT_EQ(listen(listening_.get(), 1), 0);
    EXPECT_EQ(getsockname(listening_.get(), any.get(), &any.size), 0);
    const std::string text = tcp_text(any);
    return text.substr(text.rfind(':') + 1);
  }
  static bool ready(const Connecting& connecting, int milliseconds) {
    pollfd state{connecting.fd(), static_cast<short>(connecting.events() == EPOLLIN ? POLLIN : POLLOUT), 0};
    return poll(&state, 1, milliseconds) > 0;
  }

  UniqueFd listening_;
  UniqueFd refusing_;
};

constexpr int patience = 60'000;  // milliseconds

TEST_F(ConnectingTest, NumericAddressStartsNoLookup) {
  auto connecting = Connecting::start("tcp://127.0.0.1:" + listen_there());
  HMC_ASSERT_OK(connecting.status());
  EXPECT_FALSE(connecting->looking_up());
  ASSERT_TRUE(ready(*connecting, patience));
  const auto done = connecting->advance();
  HMC_ASSERT_OK(done.status());
  EXPECT_TRUE(*done);
  EXPECT_TRUE(connecting->take());
}

TEST_F(ConnectingTest, NameIsLookedUpWithoutBlocking) {
  HeldLookup held;
  auto connecting = Connecting::start("tcp://" + std::string(held.name) + ":" + listen_there());
  HMC_ASSERT_OK(connecting.status());
  held.wait_for_lookup();
  EXPECT_TRUE(connecting->looking_up());
  EXPECT_FALSE(ready(*connecting, 0));
  held.release();
  ASSERT_TRUE(ready(*connecting, patience));
  const auto found = connecting->advance();
  HMC_ASSERT_OK(found.status());
  EXPECT_FALSE(*found);
  EXPECT_FALSE(connecting->looking_up());
  ASSERT_TRUE(ready(*connecting, patience));
  const auto done = connecting->advance();
  HMC_ASSERT_OK(done.status());
  EXPECT_TRUE(*done);
}

TEST_F(ConnectingTest, AnAddressThatRefusesLateIsFollowedByTheNext) {
  for (const bool nobody_listens : {false, true}) {
    HeldLookup held(true);
    held.release();
    std::string port = listen_there();
    for (int tries = 0; !refuses_elsewhere(port) && tries < 20; ++tries) port = listen_there();
    ASSERT_TRUE(refusing_);
    if (nobody_listens) listening_.reset();
    auto connecting = Connecting::start("tcp://" + std::string(held.name) + ":" + port);
    HMC_ASSERT_OK(connecting.status());
    ASSERT_TRUE(ready(*connecting, patience));
    answers_are_late = true;
    const auto found = connecting->advance();
    HMC_EXPECT_OK(found.status());
    ASSERT_TRUE(ready(*connecting, patience));
    const auto refused = connecting->advance();  // by 127.0.0.2
    HMC_EXPECT_OK(refused.status());
    EXPECT_FALSE(*refused);
    ASSERT_TRUE(ready(*connecting, patience));
    const auto last = connecting->advance();
    answers_are_late = false;
    EXPECT_EQ(last.status().code(), nobody_listens ? Code::peer_lost : Code::ok);
  }
}

TEST_F(ConnectingTest, AbandonedLookupEndsByItself) {
  HeldLookup held;
  HMC_ASSERT_OK(Connecting::start("tcp://" + std::string(held.name) + ":1").status());
  held.wait_for_lookup();
}

TEST_F(ConnectingTest, RefusalAfterTheLookupIsReported) {
  HeldLookup held;
  held.release();
  auto connecting = Connecting::start("tcp://" + std::string(held.name) + ":1");
  HMC_ASSERT_OK(connecting.status());
  ASSERT_TRUE(ready(*connecting, patience));
  auto outcome = connecting->advance();
  if (outcome.ok()) {  // the connection request is not answered yet
    ASSERT_TRUE(ready(*connecting, patience));
    outcome = connecting->advance();
  }
  EXPECT_EQ(outcome.status().code(), Code::peer_lost);
}

TEST(HostLookup, KeepsTheDeadline) {
  HeldLookup held;
  const std::string address = "tcp://" + std::string(held.name) + ":1";
  EXPECT_EQ(resolve_tcp_until(address, Deadline::after_seconds(0)).status().code(), Code::timeout);
  held.release();
  const auto found = resolve_tcp_until(address, Deadline::never());
  HMC_ASSERT_OK(found.status());
  EXPECT_EQ(tcp_text(found->front()), "tcp://127.0.0.1:1");
}

}  // namespace
}  // namespace hmc
