// Receives that are withdrawn while their message moves, with half of it put by the sender where both ends copy: whatever the
// sender does at that moment, the whole message goes to the next receive, once.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <sstream>
#include <thread>

#include "ways.h"

namespace hmc::stopping {
namespace {

using namespace testing;

constexpr std::size_t size = 8'000'001;  // moves for a while

class Stopping : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Ways, Stopping, ::testing::ValuesIn(all_ways()), [](const auto& p) { return p.param; });

bool says(const Status& status, std::string_view words) { return status.message().find(words) != std::string_view::npos; }

void wait_until_written(const std::byte& place, std::byte before) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (peek(place) == before && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
}

TEST_P(Stopping, ADeadlineAmidTheTransferLosesNoMessage) {
  const WayPair pair(GetParam());
  std::mt19937 random(3);
  auto small = pattern(3000, 99);
  // Deadlines within the time that a transfer takes here.
  const auto begun = std::chrono::steady_clock::now();
  {
    auto out = pattern(size, 1);
    Guarded in(size);
    const Work sent = *pair.ab.isend(view(out), 5);
    HMC_ASSERT_OK(pair.ba.recv(in.view(), 5, soon()).status());
    HMC_ASSERT_OK(sent.wait(soon()));
  }
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  int withdrawn = 0;
  for (int round = 0; round < 8; ++round) {
    SCOPED_TRACE(round);
    const auto seed = static_cast<std::uint64_t>(round);
    auto out = pattern(size, seed);
    const Work sent[] = {*pair.ab.isend(view(out), 5), *pair.ab.isend(view(small), 5)};
    std::vector<std::unique_ptr<Guarded>> left;
    Status end(Code::timeout, "");
    for (int attempt = 0; attempt < 4 && end.code() == Code::timeout; ++attempt) {
      left.push_back(std::make_unique<Guarded>(size));
      const double seconds = attempt == 3 ? 60 : took * static_cast<double>(random() % 1000) / 1000;
      end = pair.ba.recv(left.back()->view(), 5, soon(seconds)).status();
      if (end.code() != Code::timeout) break;
      ++withdrawn;
      EXPECT_TRUE(says(end, "nothing more is read or written")) << end.str();  // the peer runs
      fill_pattern(left.back()->inner(), 500);
    }
    HMC_ASSERT_OK(end);
    EXPECT_TRUE(left.back()->holds(size, seed));
    left.pop_back();
    Guarded next(size);
    const auto second = pair.ba.recv(next.view(), 5, soon());
    HMC_ASSERT_OK(second.status());
    EXPECT_EQ(second->bytes, small.size());
    EXPECT_TRUE(next.holds(small.size(), 99));
    for (const Work& each : sent) HMC_EXPECT_OK(each.wait(soon()));
    for (const auto& each : left) EXPECT_TRUE(each->holds(size, 500)) << "written after its deadline";
  }
  RecordProperty("withdrawn", withdrawn);  // none where this thread copied all in one go
  EXPECT_EQ(pair.b.counters().at("messages.unread"), 0U);
}

// Where either half has just begun or just ended.
TEST_P(Stopping, ACancelOfEitherHalfLosesNoMessage) {
  const WayPair pair(GetParam());
  int stopped = 0;
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(round);
    const auto seed = static_cast<std::uint64_t>(round);
    auto out = pattern(size, seed);
    const std::size_t places[] = {1, size / 4, size / 2 - 9000, size / 2 + 9000, size / 4 * 3, size - 1};
    const std::size_t at = places[round % 6];
    Guarded in(size);
    const std::byte before = pattern_byte(at, seed) ^ std::byte{255};
    in.inner()[at] = before;
    const auto received = *pair.ba.irecv(in.view(), 2);
    const auto sent = *pair.ab.isend(view(out), 2);
    wait_until_written(in.inner()[at], before);
    const Status cancelled = received.cancel();
    const Status end = received.wait(soon());
    EXPECT_EQ(cancelled.ok(), end.code() == Code::cancelled) << cancelled.str() << ", " << end.str();
    if (end.ok()) {
      EXPECT_TRUE(in.holds(size, seed));
    } else {
      ++stopped;
      fill_pattern(in.inner(), 500);
      EXPECT_FALSE(sent.done());
      Guarded next(size);
      HMC_ASSERT_OK(pair.ba.recv(next.view(), 2, soon()).status());
      EXPECT_TRUE(next.holds(size, seed));
    }
    HMC_EXPECT_OK(sent.wait(soon()));
    if (!end.ok()) {
      EXPECT_TRUE(in.holds(size, 500)) << "written after its cancel";
    }
  }
  RecordProperty("stopped", stopped);  // on one core all of it may be there before this thread runs again
}

// The sender would have it back, or closes, when its receiver has left it.
TEST_P(Stopping, WhatIsLeftCanBeWithdrawnByItsSender) {
  for (const std::string how : {"cancel", "close", "far close"}) {
    SCOPED_TRACE(how);
    const WayPair pair(GetParam());
    auto out = pattern(size, 1);
    std::vector<std::byte> in(size);
    const auto received = *pair.ba.irecv(view(in), 2);
    const auto sent = *pair.ab.isend(view(out), 2);
    while (peek(in[1]) == std::byte{0} && !received.done()) std::this_thread::yield();
    if (!received.cancel().ok()) continue;
    if (how == "cancel") {
      EXPECT_EQ(sent.cancel().code(), Code::unsupported);
    }
    if (how == "close") pair.ab.close();
    if (how == "far close") pair.ba.close();
    const Status end = sent.wait(soon());
    EXPECT_EQ(end.code(), how == "cancel" ? Code::cancelled : Code::closed) << end.str();
    std::vector<std::byte> next(size);
    EXPECT_FALSE(pair.ba.recv(view(next), 2, soon(0.02)).ok());
  }
}

// All of it is put by the sender, into memory of a device.
TEST(StoppingOnDevices, ADeadlineAmidTheTransferLosesNoMessage) {
  const auto devices = list_devices();
  const auto found = std::ranges::find_if(devices, [](const auto& each) { return !each.device.is_cpu(); });
  if (found == devices.end()) GTEST_SKIP() << "no device here";
  for (const std::string transports : {"shm,ipc,staging", "tcp,staging"}) {
    const Pair pair(transports);
    std::mt19937 random(3);
    int withdrawn = 0;
    for (int round = 0; round < 8; ++round) {
      SCOPED_TRACE(transports + " " + std::to_string(round));
      const auto seed = static_cast<std::uint64_t>(round);
      auto out = pattern(size, seed);
      const Memory device_out = *Memory::allocate(size, found->device), in = *Memory::allocate(size, found->device);
      HMC_ASSERT_OK(device_out.copy_from_host(out.data(), size, 0));
      const auto sent = *pair.ab.isend(round % 2 == 0 ? view(out) : MemoryView(device_out), 5);
      Status end(Code::timeout, "");
      for (int attempt = 0; attempt < 4 && end.code() == Code::timeout; ++attempt) {
        const double seconds = attempt == 3 ? 60 : static_cast<double>(random() % 3000) * 1e-6;
        end = pair.ba.recv(MemoryView(in), 5, soon(seconds)).status();
        if (end.code() == Code::timeout) ++withdrawn;
        EXPECT_FALSE(says(end, "may still be used")) << end.str();
      }
      HMC_ASSERT_OK(end);
      std::vector<std::byte> got(size);
      HMC_ASSERT_OK(in.copy_to_host(got.data(), size, 0));
      EXPECT_EQ(first_mismatch(got, seed), -1);
      HMC_EXPECT_OK(sent.wait(soon()));
      // Where the sender has it, and not where a receive on a device had it put.
      const auto again = *pair.ab.isend(view(out), 5);
      end = pair.ba.recv(MemoryView(in), 5, soon(0.001)).status();
      if (!end.ok()) {
        HMC_ASSERT_OK(pair.ba.recv(view(got), 5, soon()).status());
        EXPECT_EQ(first_mismatch(got, seed), -1);
      }
      HMC_EXPECT_OK(again.wait(soon()));
    }
    RecordProperty("withdrawn_" + transports, withdrawn);  // a copy by a device cannot be stopped: the receive has its message
  }
}

// "<transports> <address>": sends three messages of one tag, and says how the sends ended.
TEST(Role, DISABLED_stopped_sender) {
  std::istringstream words(role_arguments());
  std::string transports, address;
  words >> transports >> address;
  const auto context = make_context(transports);
  const auto peer = *context.connect(address, soon());
  std::vector<std::vector<std::byte>> out;
  std::vector<Work> sent;
  for (std::uint64_t i = 0; i < 3; ++i) out.push_back(pattern(size, i));
  tell("ready");
  hear();
  for (auto& each : out) sent.push_back(*peer.isend(view(each), 1));
  for (const Work& each : sent) tell(each.wait(soon()).ok() ? "sent" : "failed");
  hear();
}

// It cannot be asked: the memory is not given back, and the message is there, or said to be lost, once it goes on.
TEST_P(Stopping, AStoppedSenderKeepsItsMessageOrTheNextReceiveSaysWhereItIs) {
  const Way way(GetParam());
  const Context context = make_context(way.transports);
  for (int round = 0; round < 2; ++round) {
    SCOPED_TRACE(round);
    Role role("stopped_sender", way.transports + " " + context.addresses().front());
    const Peer peer = *context.accept(soon());
    ASSERT_EQ(role.read_line(), "ready");
    Guarded in(size);
    const std::size_t at = round % 2 == 0 ? 4000 : size / 4;  // in the sender's half
    const std::byte before = pattern_byte(at, 0) ^ std::byte{255};
    in.inner()[at] = before;
    std::thread stopper([&] {
      wait_until_written(in.inner()[at], before);
      role.signal(SIGSTOP);
    });
    role.write_line("go");
    const auto first = peer.recv(in.view(), 1, soon(0.3));
    stopper.join();
    std::uint64_t next = 1;
    if (first.ok()) {
      EXPECT_TRUE(in.holds(size, 0));
    } else {
      EXPECT_EQ(first.status().code(), Code::timeout) << first.status().str();
      next = 0;
    }
    role.signal(SIGCONT);
    bool lost = false;
    // While it has not replied, what it sent later may come first.
    std::vector<int> got(3);
    got[0] = first.ok() ? 1 : 0;
    for (std::uint64_t i = next; i < 3; ++i) {
      std::vector<std::byte> to(size);
      const auto received = peer.recv(view(to), 1, soon());
      if (!received.ok()) {
        EXPECT_TRUE(says(received.status(), "memory of an earlier receive")) << received.status().str();
        EXPECT_FALSE(std::exchange(lost, true));
        continue;
      }
      for (std::uint64_t seed = 0; seed < 3; ++seed) {
        if (first_mismatch(to, seed) == -1) ++got[seed];
      }
    }
    EXPECT_EQ(got, (std::vector<int>{lost ? 0 : 1, 1, 1}));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(role.read_line(), "sent");
    peer.close();
  }
}

}  // namespace
}  // namespace hmc::stopping
