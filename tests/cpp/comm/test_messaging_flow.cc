// Messages that nobody asks for: the receiver's memory is bounded, everybody else goes on, nothing is lost.
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "ways.h"

namespace hmc {
namespace {

using namespace testing;

long resident_kilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::atol(line.c_str() + 6);
  }
  return 0;
}

constexpr std::size_t flood_bytes = 4000;
constexpr std::size_t flood_count = 6000;

// "<transports> <address>": does not receive until told, and says by how much it grew.
TEST(Role, DISABLED_flooded) {
  std::istringstream words(role_arguments());
  std::string transports, address;
  words >> transports >> address;
  const auto context = make_context(transports);
  const auto peer = *context.connect(address, soon());
  std::vector<std::byte> in(flood_bytes);
  // All that a message needs once is there now.
  HMC_ASSERT_OK(peer.recv(view(in), 0, soon()).status());
  HMC_ASSERT_OK(peer.send(view(in), 0, soon()));
  const long before = resident_kilobytes();
  tell("ready");
  for (std::string word = hear(); word != "end"; word = hear()) {
    if (word == "grown") tell(std::to_string(resident_kilobytes() - before));
    if (word == "other") {  // another tag gets by
      const auto info = peer.recv(view(in), 2, soon());
      tell(info.ok() && first_mismatch(std::span(in).first(info->bytes), 2) == -1 ? "fine" : info.status().str());
    }
    if (word == "drain") {
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < flood_count; ++i) {
        const auto info = peer.recv(view(in), 1, soon());
        const bool right =
            info.ok() && info->bytes == flood_bytes - i % 7 && first_mismatch(std::span(in).first(info->bytes), i) == -1;
        wrong += right ? 0 : 1;
      }
      tell(std::to_string(wrong));
    }
  }
}

class Flow : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Ways, Flow, ::testing::ValuesIn(all_ways()), [](const auto& p) { return p.param; });

TEST_P(Flow, AFloodIsBoundedAndDisturbsNobody) {
  const Way way(GetParam());
  const auto context = make_context(way.transports);
  const std::string place = way.transports + " " + context.addresses().front();
  Role deaf("flooded", place);
  const auto peer = *context.accept(soon());
  Role bystander("flooded", place);
  const auto other = *context.accept(soon());
  std::vector<std::byte> hello(10), back(flood_bytes);
  for (const auto& each : {peer, other}) {
    HMC_ASSERT_OK(each.send(view(hello), 0, soon()));
    HMC_ASSERT_OK(each.recv(view(back), 0, soon()).status());
  }
  ASSERT_EQ(deaf.read_line(), "ready");
  ASSERT_EQ(bystander.read_line(), "ready");

  std::vector<std::vector<std::byte>> out;
  std::vector<Work> works;
  auto side = pattern(300, 2);
  for (std::size_t i = 0; i < flood_count; ++i) {
    out.push_back(pattern(flood_bytes - i % 7, i));
    works.push_back(*peer.isend(view(out[i]), 1));
    // While there is header credit left another tag is served past the flood.
    if (i == 3000) {
      HMC_EXPECT_OK(peer.isend(view(side), 2).status());
      deaf.write_line("other");
      EXPECT_EQ(deaf.read_line(), "fine");
    }
  }
  // Credit is out: a send waits, honours its deadline, and is never delivered.
  EXPECT_FALSE(works.back().done());
  const Status late = peer.send(view(side), 1, soon(0.05));
  EXPECT_EQ(late.code(), Code::timeout) << late.str();
  EXPECT_NE(late.message().find("withdrawn"), std::string_view::npos) << late.str();
  const auto cancelled = *peer.isend(view(side), 1);
  HMC_EXPECT_OK(cancelled.cancel());
  EXPECT_EQ(cancelled.status().code(), Code::cancelled);

  // Everybody else, and everything else with the same peer, goes on.
  HMC_EXPECT_OK(other.isend(view(side), 2).status());
  bystander.write_line("other");
  EXPECT_EQ(bystander.read_line(), "fine");
  HMC_EXPECT_OK(peer.notify(5));

  deaf.write_line("grown");
  const long grown = std::atol(deaf.read_line().c_str());
#ifdef HMC_TEST_SANITIZED
  constexpr long bound = 16 << 10;  // freed memory stays in quarantine
#else
  constexpr long bound = 8 << 10;
#endif
  EXPECT_LT(grown, bound) << "kB, of " << flood_bytes * flood_count / 1024 << " kB sent";
  deaf.write_line("drain");
  EXPECT_EQ(deaf.read_line(), "0");
  HMC_EXPECT_OK(wait_all(works, soon()));
  deaf.write_line("end");
  bystander.write_line("end");
  EXPECT_EQ(deaf.wait(), 0);
  EXPECT_EQ(bystander.wait(), 0);
}

// The full number of unexpected messages, however many were received before.
TEST_P(Flow, ReceivedMessagesGiveAllTheirCreditBack) {
  const WayPair pair(GetParam());
  std::vector<std::byte> in(64);
  auto byte = pattern(3, 1);
  for (int i = 0; i < 2047; ++i) {
    HMC_ASSERT_OK(pair.ab.send(view(byte), 1, soon()));
    HMC_ASSERT_OK(pair.ba.recv(view(in), 1, soon()).status());
  }
  for (int i = 0; i < 4000; ++i) HMC_ASSERT_OK(pair.ab.send(view(byte), 1, soon()));
  auto last = pattern(9, 5);
  HMC_ASSERT_OK(pair.ab.send(view(last), 2, soon()));
  EXPECT_EQ(pair.ba.recv(view(in), 2, soon())->bytes, 9U);
  EXPECT_EQ(first_mismatch(std::span(in).first(9), 5), -1);
  for (int i = 0; i < 4000; ++i) HMC_ASSERT_OK(pair.ba.recv(view(in), 1, soon()).status());
}

TEST_P(Flow, BothFloodEachOther) {
  const WayPair pair(GetParam());
  constexpr std::size_t count = 5000;
  const auto size_of = [](std::size_t i) { return i % 100 == 0 ? 20'000 + i : i % 100 == 50 ? 70'000 + i : i % 900; };
  std::vector<std::vector<std::byte>> out_a, out_b;
  std::vector<Work> works;
  for (std::size_t i = 0; i < count; ++i) {
    out_a.push_back(pattern(size_of(i), i));
    out_b.push_back(pattern(size_of(i), i + count));
    works.push_back(*pair.ab.isend(view(out_a[i]), 1));
    works.push_back(*pair.ba.isend(view(out_b[i]), 1));
  }
  const auto drain = [&](const Peer& peer, std::uint64_t first_seed) {
    std::vector<std::byte> in(80'000);
    for (std::size_t i = 0; i < count; ++i) {
      const auto info = peer.recv(view(in), 1, soon());
      ASSERT_TRUE(info.ok()) << info.status().str();
      ASSERT_EQ(info->bytes, size_of(i));
      ASSERT_EQ(first_mismatch(std::span(in).first(info->bytes), first_seed + i), -1) << i;
    }
  };
  std::thread other(drain, pair.ab, count);
  drain(pair.ba, 0);
  other.join();
  HMC_EXPECT_OK(wait_all(works, soon()));
}

// What comes after the message that is waited for stays in the ring: the receives that are posted next meet it there.
TEST(FlowAtAWaiter, TakesNoMoreThanIsWaitedFor) {
  ContextOptions options;
  options.progress = Progress::manual;  // nobody but the waiter polls
  const auto a = make_context("shm"), b = make_context("shm", {}, options);
  const Peer ba = *b.connect(a.addresses().front(), soon());
  const Peer ab = *a.accept(soon());
  constexpr std::size_t count = 60;
  const auto size_of = [](std::size_t i) { return i % 5 == 4 ? 5000 + i : i; };
  for (std::size_t i = 0; i < count; ++i) {
    auto message = pattern(size_of(i), i);
    HMC_ASSERT_OK(ab.send(view(message), 1, soon()));
  }
  std::vector<std::vector<std::byte>> in(count);
  for (std::size_t i = 0; i < count; ++i) in[i].resize(size_of(i));
  std::vector<Work> works;
  for (std::size_t i = 0; i < count; ++i) {
    if (i % 3 == 0) {
      HMC_ASSERT_OK(ba.recv(view(in[i]), 1, soon()).status());
    } else {
      works.push_back(*ba.irecv(view(in[i]), 1));
      if (i % 3 == 2) HMC_ASSERT_OK(wait_all(works, soon()));
    }
    EXPECT_EQ(b.counters()["messages.unread"], 0U) << i;
  }
  for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(first_mismatch(in[i], i), -1) << i;
}

}  // namespace
}  // namespace hmc
