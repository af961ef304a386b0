// A peer killed in every phase of a transfer: peer_lost where it was waited for, the others go on, nothing is left behind.
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "ways.h"

namespace hmc {
namespace {

using namespace testing;

const std::size_t put_bytes = lengthy(24 << 20);
// A loss is noticed within a second; a loaded machine is given thirty.
Deadline promptly() { return soon(30); }

// "<transports> <address> <what> [<bytes>]": does it until killed.
TEST(Role, DISABLED_victim) {
  std::istringstream words(role_arguments());
  std::string transports, address, what;
  std::size_t size = 0;
  words >> transports >> address >> what >> size;
  const auto context = make_context(transports, {"unix"});
  if (what == "listens") {
    tell(context.addresses().front());
    hear();
  }
  const auto peer = *context.connect(address, soon());
  std::vector<std::byte> memory(what == "target" || what == "puts" ? put_bytes : size);
  const auto foreign = *context.register_memory(*Memory::wrap(memory.data(), memory.size()));
  HMC_ASSERT_OK(context.publish("target", foreign));
  std::vector<Work> works;
  if (what == "announces") {
    fill_pattern(memory, 1);
    for (int i = 0; i < 5; ++i) works.push_back(*peer.isend(view(memory), 1));
  }
  if (what == "expects") {
    for (int i = 0; i < 5; ++i) works.push_back(*peer.irecv(view(memory), i));
  }
  const auto remote = what == "puts" ? peer.lookup("mine", soon()) : Result<RemoteBuffer>(RemoteBuffer());
  tell("ready");
  for (std::uint64_t i = 0; peer.alive(); ++i) {
    Status status;
    if (what == "sends") {
      fill_pattern(memory, i);
      status = peer.send(view(memory), 1, soon());
    } else if (what == "receives") {
      status = peer.recv(view(memory), 1, soon()).status();
    } else if (what == "puts") {
      status = peer.put(foreign, *remote)->wait(soon());
    } else if (what == "echoes") {
      status = peer.recv(view(memory), 1, Deadline::never()).status();  // the test sends seldom
      if (status.ok()) status = peer.send(view(memory), 2, soon());
    } else {
      hear();
    }
    if (!status.ok()) break;
  }
}

// Shared memory of HMC or UCX with a name that no process maps: what a dead process left behind. Those of other programs come and
// go, mapped or not.
std::set<std::string> abandoned_shared_memory() {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("hmc") || name.starts_with("ucx")) names.insert(entry.path());
  }
  if (names.empty()) return names;
  for (const auto& process : std::filesystem::directory_iterator("/proc", error)) {
    std::ifstream maps(process.path() / "maps");  // none: not a process, or it has ended
    for (std::string line; std::getline(maps, line);) {
      if (const auto at = line.find("/dev/shm/"); at != std::string::npos) names.erase(line.substr(at));
    }
  }
  return names;
}

// A Context, a peer to be killed, and another that must notice nothing.
class Kills : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    {
      const WayPair warm_up(GetParam());
    }
    descriptors_ = open_descriptors();
    abandoned_ = abandoned_shared_memory();
    way = std::make_unique<Way>(GetParam());
    context = make_context(way->transports, {"unix"});
    bystander_role_ = std::make_unique<Role>("victim", place() + " echoes 100000");
    bystander_ = *context.accept(soon());
    ASSERT_EQ(bystander_role_->read_line(), "ready");
  }
  void TearDown() override {
    expect_bystander_works();
    HMC_EXPECT_OK(context.close(soon()));
    context = {};
    victim_peer = {};
    bystander_ = {};
    victim.reset();
    bystander_role_.reset();
    way.reset();
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (open_descriptors() != descriptors_ && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
    EXPECT_EQ(open_descriptors(), descriptors_);
    auto left = newly_abandoned();  // another test may have made a name that it has not mapped yet
    while (!left.empty() && std::chrono::steady_clock::now() < give_up) {
      std::this_thread::yield();
      left = newly_abandoned();
    }
    EXPECT_EQ(left, std::set<std::string>());
  }
  [[nodiscard]] std::string place() const { return way->transports + " " + context.addresses().front(); }
  void start(const std::string& what) {
    victim = std::make_unique<Role>("victim", place() + " " + what);
    const auto accepted = context.accept(soon());
    ASSERT_TRUE(accepted.ok()) << accepted.status().str();
    victim_peer = *accepted;
    ASSERT_EQ(victim->read_line(), "ready");
  }
  // Runs `operation` over and over until it fails, and kills the victim meanwhile. What it failed with.
  Status kill_amid(int milliseconds, const std::function<Status()>& operation) {
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      victim->signal(SIGKILL);
    });
    Status status;
    while (status.ok()) status = operation();
    killer.join();
    // A system call of the transfer may notice before the peer is given up.
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (victim_peer.alive() && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
    EXPECT_FALSE(victim_peer.alive());
    return status;
  }
  [[nodiscard]] std::set<std::string> newly_abandoned() const {
    std::set<std::string> names = abandoned_shared_memory();
    for (const std::string& name : abandoned_) names.erase(name);
    return names;
  }
  void expect_bystander_works() {
    auto out = pattern(100'000, ++seed_);
    Guarded in(out.size());
    HMC_EXPECT_OK(bystander_.send(view(out), 1, soon()));
    EXPECT_TRUE(bystander_.recv(in.view(), 2, soon()).ok());
    EXPECT_TRUE(in.holds(out.size(), seed_));
  }
  static void expect_lost(const Status& status) {
    EXPECT_EQ(status.code(), Code::peer_lost) << status.str();
    EXPECT_GT(status.message().size(), 30U) << status.str();
  }

  std::unique_ptr<Way> way;
  Context context;
  std::unique_ptr<Role> victim;
  Peer victim_peer;

 private:
  std::unique_ptr<Role> bystander_role_;
  Peer bystander_;
  int descriptors_ = 0;
  std::set<std::string> abandoned_;
  std::uint64_t seed_ = 5000;
};
INSTANTIATE_TEST_SUITE_P(Ways, Kills, ::testing::ValuesIn(all_ways()), [](const auto& p) { return p.param; });

// Eager, through the ring or both ends, by size.
TEST_P(Kills, WhileItSends) {
  for (const std::size_t size : {200U, 100'000U, 8'000'000U}) {
    SCOPED_TRACE(size);
    start("sends " + std::to_string(size));
    Guarded in(size);
    std::uint64_t next = 0;
    expect_lost(kill_amid(30, [&] {
      const auto info = victim_peer.recv(in.view(), 1, promptly());
      if (info.ok()) {
        EXPECT_TRUE(in.holds(size, next++));
      }
      return info.status();
    }));
    fill_pattern(in.inner(), 3);
    expect_bystander_works();
    EXPECT_TRUE(in.holds(size, 3)) << "written after the operation ended";
  }
}

TEST_P(Kills, WhileItReceives) {
  for (const std::size_t size : {200U, 100'000U, 8'000'000U}) {
    SCOPED_TRACE(size);
    start("receives " + std::to_string(size));
    auto out = pattern(size, 4);
    expect_lost(kill_amid(30, [&] { return victim_peer.send(view(out), 1, promptly()); }));
    expect_lost(victim_peer.send(view(out), 1, promptly()));
    expect_lost(victim_peer.isend(view(out), 1).status());
  }
}

TEST_P(Kills, BeforeTheMatch) {
  // It has announced, nobody has asked.
  start("announces 500000");
  victim->signal(SIGKILL);
  std::vector<std::unique_ptr<Guarded>> in;
  Status status;
  for (int i = 0; i < 6 && status.ok(); ++i) {  // some may have come whole before the end was noticed, where the kernel reads them
    in.push_back(std::make_unique<Guarded>(500'000));
    status = victim_peer.recv(in.back()->view(), 1, promptly()).status();
    if (status.ok()) {
      EXPECT_TRUE(in.back()->holds(500'000, 1));
    }
  }
  expect_lost(status);
  // We have announced; it never asks.
  start("idles 10");
  auto out = pattern(500'000, 2), small = pattern(10, 2);
  std::vector<Work> works;
  for (int i = 0; i < 5; ++i) works.push_back(*victim_peer.isend(view(out), i));
  for (int i = 0; i < 5; ++i) works.push_back(*victim_peer.irecv(view(small), i));
  expect_lost(kill_amid(5, [&] { return works.back().wait(promptly()); }));
  for (const auto& work : works) expect_lost(work.wait(promptly()));
  // It has asked; nothing was sent.
  start("expects 100");
  expect_lost(kill_amid(5, [&] { return victim_peer.recv(view(small), any_tag, promptly()).status(); }));
}

TEST_P(Kills, AmidPutsAndGetsOfItsMemory) {
  auto memory = pattern(put_bytes, 6);
  for (const bool put : {true, false}) {
    start("target");
    const auto local = *context.register_memory(*Memory::wrap(memory.data(), memory.size()));
    const auto remote = *victim_peer.lookup("target", soon());
    const Status status = kill_amid(8, [&] {
      const auto work = put ? victim_peer.put(local, remote, {3, Complete::remote}) : victim_peer.get(local, remote);
      return work.ok() ? work->wait(promptly()) : work.status();
    });
    expect_lost(status);
    EXPECT_FALSE(remote.alive());
    fill_pattern(memory, 8);
    expect_bystander_works();
    EXPECT_EQ(first_mismatch(memory, 8), -1) << "written after the operation ended";
  }
}

TEST_P(Kills, AmidPutsIntoOurMemory) {
  std::vector<std::byte> memory(put_bytes);
  auto target = *context.register_memory(*Memory::wrap(memory.data(), memory.size()));
  HMC_ASSERT_OK(context.publish("mine", target));
  start("puts");
  expect_lost(kill_amid(8, [&] { return victim_peer.wait_notify(1, 1, promptly()); }));
  // A dead importer holds nothing back, and nothing of it lands any more.
  HMC_EXPECT_OK(target.close(promptly()));
  fill_pattern(memory, 9);
  expect_bystander_works();
  EXPECT_EQ(first_mismatch(memory, 9), -1);
}

TEST_P(Kills, WhileWaitedForByName) {
  start("idles 1");
  expect_lost(kill_amid(10, [&] { return victim_peer.lookup("never", promptly()).status(); }));
  start("idles 1");
  expect_lost(kill_amid(10, [&] { return victim_peer.notifications(promptly()).status(); }));
}

// Both ends of a handshake: the listener dies while we connect.
TEST_P(Kills, WhileWeConnectToIt) {
  for (int round = 0; round < 3; ++round) {
    victim = std::make_unique<Role>("victim", place() + " listens");
    const std::string address = victim->read_line();
    if (round < 2) victim->signal(SIGSTOP);
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(10 * round));
      victim->signal(SIGKILL);
    });
    const auto connected = context.connect(address, promptly());
    killer.join();
    if (connected.ok()) {
      std::vector<std::byte> in(8);
      expect_lost(connected->recv(view(in), 1, promptly()).status());
    } else {
      EXPECT_NE(connected.status().code(), Code::timeout) << connected.status().str();
      expect_lost(connected.status());
    }
    EXPECT_EQ(context.peers().size(), 1U);
  }
}

}  // namespace
}  // namespace hmc
