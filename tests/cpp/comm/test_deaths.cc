// Other processes: real work, kills in every phase, stops, restarts.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <sstream>
#include <thread>

#include "support.h"

namespace hmc {
namespace {

using namespace testing;

// ---- roles: "<transports> <address> ..." ----

struct RoleContext {
  RoleContext() : words(role_arguments()) {
    words >> transports >> address;
    if (transports == "all") transports = "";
    context = make_context(transports);
    auto connected = context.connect(address, soon());
    EXPECT_TRUE(connected.ok()) << connected.status().str();
    if (connected.ok()) peer = *connected;
  }
  std::istringstream words;
  std::string transports, address;
  Context context;
  Peer peer;
};

// Publishes a buffer, raises 1, then does as it is told.
TEST(Role, DISABLED_target) {
  RoleContext role;
  const auto buffer = *role.context.buffer(16 << 20);
  fill_pattern(span_of(buffer), 1);
  HMC_ASSERT_OK(role.context.publish("target", buffer));
  tell("ready");
  for (std::string word = hear(); word != "end"; word = hear()) {
    if (word == "check") tell(std::to_string(first_mismatch(span_of(buffer), 2)));
    if (word == "notify") HMC_ASSERT_OK(role.peer.notify(5));
    if (word == "wait") {
      HMC_ASSERT_OK(role.peer.wait_notify(6, 1, soon()));
      tell("got it");
    }
  }
}

// Imports "mine" and holds it, or writes into it without end.
TEST(Role, DISABLED_importer) {
  RoleContext role;
  std::string how;
  role.words >> how;
  const auto remote = role.peer.lookup("mine", soon());
  ASSERT_TRUE(remote.ok()) << remote.status().str();
  const auto source = *role.context.buffer(remote->size());
  fill_pattern(span_of(source), 9);
  tell("imported");
  if (how == "write") {
    while (role.peer.alive()) {
      const auto work = role.peer.put(source, *remote);
      if (!work.ok() || !work->wait(soon()).ok()) break;
    }
  }
  hear();
}

// Connects and leaves properly after a message.
TEST(Role, DISABLED_visitor) {
  RoleContext role;
  HMC_ASSERT_OK(role.peer.notify(5));
  HMC_ASSERT_OK(role.context.close(soon()));
}

// Connects over and over until killed.
TEST(Role, DISABLED_connector) {
  std::istringstream words(role_arguments());
  std::string transports, address;
  words >> transports >> address;
  tell("ready");
  for (;;) {
    const auto context = make_context(transports);
    static_cast<void>(context.connect(address, soon()));
  }
}

class Processes : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Transports, Processes, ::testing::ValuesIn(peer_transports()), [](const auto& p) { return p.param; });

TEST_P(Processes, PutGetNotify) {
  const auto context = make_context(GetParam());
  Role role("target", GetParam() + " " + context.addresses().front());
  const auto peer = context.accept(soon());
  ASSERT_TRUE(peer.ok()) << peer.status().str();
  ASSERT_EQ(role.read_line(), "ready");
  const auto remote = peer->lookup("target", soon());
  ASSERT_TRUE(remote.ok()) << remote.status().str();
  const auto local = *context.buffer(remote->size());
  HMC_ASSERT_OK(peer->get(local, *remote)->wait(soon()));
  EXPECT_EQ(first_mismatch(span_of(local), 1), -1);
  fill_pattern(span_of(local), 2);
  HMC_ASSERT_OK(peer->put(local, *remote, {6, Complete::remote})->wait(soon()));
  role.write_line("wait");
  EXPECT_EQ(role.read_line(), "got it");
  role.write_line("check");
  EXPECT_EQ(role.read_line(), "-1");
  role.write_line("notify");
  HMC_ASSERT_OK(peer->wait_notify(5, 1, soon()));
  role.write_line("end");
  EXPECT_EQ(role.wait(), 0);
  while (peer->alive()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_P(Processes, KilledWhileWaitedFor) {
  const auto context = make_context(GetParam());
  Role victim("target", GetParam() + " " + context.addresses().front());
  const auto peer = *context.accept(soon());
  Role survivor("target", GetParam() + " " + context.addresses().front());
  const auto other = *context.accept(soon());
  ASSERT_EQ(victim.read_line(), "ready");
  ASSERT_EQ(survivor.read_line(), "ready");
  const auto remote = *peer.lookup("target", soon());
  const auto local = *context.buffer(remote.size());
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    victim.signal(SIGKILL);
  });
  const Status waited = peer.wait_notify(99, 1, soon());
  EXPECT_EQ(waited.code(), Code::peer_lost) << waited.str();
  killer.join();
  EXPECT_FALSE(peer.alive());
  EXPECT_FALSE(remote.alive());
  EXPECT_EQ(peer.notify(1).code(), Code::peer_lost);
  EXPECT_EQ(peer.put(local, remote).status().code(), Code::peer_lost);
  EXPECT_EQ(peer.lookup("target", soon(1)).status().code(), Code::peer_lost);
  EXPECT_EQ(context.peers().size(), 1U);
  // The others go on, and the dead one may come back as somebody new.
  const auto alive = *other.lookup("target", soon());
  HMC_EXPECT_OK(other.put(local, alive)->wait(soon()));
  Role reborn("target", GetParam() + " " + context.addresses().front());
  const auto again = context.accept(soon());
  ASSERT_TRUE(again.ok());
  ASSERT_EQ(reborn.read_line(), "ready");
  EXPECT_FALSE(*again == peer);
  EXPECT_NE(again->epoch(), peer.epoch());
  HMC_EXPECT_OK(again->put(local, *again->lookup("target", soon()))->wait(soon()));
}

TEST_P(Processes, KilledMidPut) {
  const int before = open_descriptors();
  {
    const auto context = make_context(GetParam());
    auto foreign = pattern(lengthy(64 << 20), 3);
    for (int round = 0; round < 4; ++round) {
      Role victim("target", GetParam() + " " + context.addresses().front());
      const auto peer = *context.accept(soon());
      ASSERT_EQ(victim.read_line(), "ready");
      const auto remote = *peer.lookup("target", soon());
      const auto source = *context.register_memory(*Memory::wrap(foreign.data(), remote.size()));
      std::vector<Work> works;
      std::thread killer([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(4 * round));
        victim.signal(SIGKILL);
      });
      Status posted;
      while (posted.ok()) {
        auto work = round % 2 == 0 ? peer.put(source, remote) : peer.get(source, remote);
        posted = work.status();
        if (posted.ok()) works.push_back(*work);
      }
      killer.join();
      EXPECT_EQ(posted.code(), Code::peer_lost) << posted.str();
      for (const Work& work : works) {
        const Status outcome = work.wait(soon());
        EXPECT_TRUE(outcome.ok() || outcome.code() == Code::peer_lost) << outcome.str();
        if (!outcome.ok()) {
          EXPECT_NE(outcome.message().find("written"), std::string_view::npos) << outcome.str();
        }
      }
    }
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_P(Processes, KilledWhileConnecting) {
  const auto context = make_context(GetParam());
  for (int round = 0; round < 6; ++round) {
    Role victim("connector", GetParam() + " " + context.addresses().front());
    ASSERT_EQ(victim.read_line(), "ready");
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + 7 * round));
    victim.signal(SIGKILL);
    victim.wait();
  }
  // Everybody has gone, and the Context still takes guests.
  while (!context.peers().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  while (context.accept(soon(0)).ok()) {
  }
  Role visitor("visitor", GetParam() + " " + context.addresses().front());
  const auto peer = context.accept(soon());
  ASSERT_TRUE(peer.ok()) << peer.status().str();
  HMC_EXPECT_OK(peer->wait_notify(5, 1, soon()));
  EXPECT_EQ(visitor.wait(), 0);
}

TEST_P(Processes, CloseWithAnImporterAliveKilledStopped) {
  for (const std::string how : {"hold", "write"}) {
    SCOPED_TRACE(how);
    const auto context = make_context(GetParam());
    auto buffer = *context.buffer(4 << 20);
    HMC_ASSERT_OK(context.publish("mine", buffer));
    Role alive("importer", GetParam() + " " + context.addresses().front() + " " + how);
    ASSERT_EQ(alive.read_line(), "imported");
    HMC_ASSERT_OK(buffer.close(soon()));
    fill_pattern({static_cast<std::byte*>(buffer.memory().data()), buffer.size()}, 3);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(first_mismatch({static_cast<std::byte*>(buffer.memory().data()), buffer.size()}, 3), -1);

    buffer = *context.buffer(4 << 20);
    HMC_ASSERT_OK(context.publish("mine", buffer));
    Role stopped("importer", GetParam() + " " + context.addresses().front() + " " + how);
    ASSERT_EQ(stopped.read_line(), "imported");
    stopped.signal(SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const Status late = buffer.close(soon(0.1));
    EXPECT_EQ(late.code(), Code::timeout) << late.str();
    EXPECT_NE(late.message().find("peer"), std::string_view::npos);
    EXPECT_TRUE(buffer.closed());
    stopped.signal(SIGKILL);
    HMC_EXPECT_OK(buffer.close(soon()));
  }
}

TEST_P(Processes, StoppedPeerHonoursDeadlines) {
  const auto context = make_context(GetParam());
  Role role("target", GetParam() + " " + context.addresses().front());
  const auto peer = *context.accept(soon());
  ASSERT_EQ(role.read_line(), "ready");
  role.signal(SIGSTOP);
  EXPECT_EQ(peer.lookup("target", soon(0.1)).status().code(), Code::timeout);
  EXPECT_EQ(peer.wait_notify(1, 1, soon(0.05)).code(), Code::timeout);
  role.signal(SIGCONT);
  EXPECT_TRUE(peer.lookup("target", soon()).ok());
  role.write_line("end");
  EXPECT_EQ(role.wait(), 0);
}

TEST_P(Processes, LeftProperly) {
  const auto context = make_context(GetParam());
  for (int round = 0; round < 5; ++round) {
    Role visitor("visitor", GetParam() + " " + context.addresses().front());
    const auto peer = context.accept(soon());
    ASSERT_TRUE(peer.ok()) << peer.status().str();
    HMC_EXPECT_OK(peer->wait_notify(5, 1, soon()));
    const Status next = peer->wait_notify(5, 1, soon());
    EXPECT_EQ(next.code(), Code::closed) << next.str();
    EXPECT_EQ(visitor.wait(), 0);
  }
}

}  // namespace
}  // namespace hmc
