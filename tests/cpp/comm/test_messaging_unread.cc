// Messages that nobody has received when their sender has left: bounded, counted, and freed with the Peer.
#include <time.h>

#include <chrono>
#include <thread>

#include "ways.h"

namespace hmc {
namespace {

using namespace testing;

class Unread : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Ways, Unread, ::testing::ValuesIn(all_ways()), [](const auto& p) { return p.param; });

constexpr std::size_t messages = 300, size = 2000;

// A Context that connects, sends, and leaves. The Peer that it was.
Peer pass_by(const Context& at, const std::string& transports, std::uint64_t seed) {
  const Context client = make_context(transports);
  const auto there = client.connect(at.addresses().front(), soon());
  EXPECT_TRUE(there.ok()) << there.status().str();
  const Peer here = *at.accept(soon());
  for (std::size_t i = 0; i < messages; ++i) {
    auto message = pattern(size, seed * messages + i);
    HMC_EXPECT_OK(there->send({message.data(), message.size()}, 3, soon()));
  }
  HMC_EXPECT_OK(client.close(soon()));
  return here;
}

template <class F>
bool eventually(F condition) {
  const auto limit = soon();
  while (!condition() && !limit.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return condition();
}

// Of the CPU, by this thread: what other threads and programs take does not count.
double seconds_used() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

TEST_P(Unread, OfDepartedPeersIsBoundedAndGoesWithThem) {
  const Way way(GetParam());
  const Context context = make_context(way.transports);
  constexpr std::uint64_t clients = 40;
  std::vector<Peer> peers;
  for (std::uint64_t i = 0; i < clients; ++i) peers.push_back(pass_by(context, way.transports, i));
  ASSERT_TRUE(eventually([&] { return !peers.back().alive(); }));
  ASSERT_TRUE(eventually([&] { return context.counters()["messages.unread_bytes"] <= 16U << 20; }));
  EXPECT_GT(context.counters()["messages.discarded"], 0U);
  EXPECT_EQ(context.counters()["messages.discarded"] % messages, 0U);
  // The last ones are all there, the first ones' are gone.
  std::vector<std::byte> got(size);
  for (std::size_t i = 0; i < messages; ++i) {
    HMC_ASSERT_OK(peers.back().recv({got.data(), size}, 3, soon()).status());
    ASSERT_EQ(first_mismatch(got, (clients - 1) * messages + i), -1) << i;
  }
  EXPECT_EQ(peers.back().recv({got.data(), size}, 3, soon()).status().code(), Code::closed);
  EXPECT_EQ(peers.front().recv({got.data(), size}, 3, soon()).status().code(), Code::closed);
  peers.clear();
  EXPECT_TRUE(eventually([&] { return context.counters()["messages.unread"] == 0; })) << context.counters()["messages.unread"];
  EXPECT_EQ(context.counters()["messages.unread_bytes"], 0U);
}

TEST_P(Unread, OfLivingPeersIsCounted) {
  const WayPair pair(GetParam());
  auto message = pattern(size, 1);
  for (int i = 0; i < 5; ++i) HMC_ASSERT_OK(pair.ab.send({message.data(), size}, 3, soon()));
  EXPECT_TRUE(eventually([&] { return pair.b.counters()["messages.unread"] == 5; }));
  EXPECT_EQ(pair.b.counters()["messages.unread_bytes"], 5 * size);
  for (int i = 0; i < 5; ++i) HMC_ASSERT_OK(pair.ba.recv({message.data(), size}, 3, soon()).status());
  EXPECT_EQ(pair.b.counters()["messages.unread"], 0U);
}

// What a sender takes back when it closes leaves no later message in its place.
TEST_P(Unread, MessageBehindOneThatWasNotSentKeepsItsPlace) {
  const Way way(GetParam());
  const Context context = make_context(way.transports);
  const Context client = make_context(way.transports);
  const Peer there = *client.connect(context.addresses().front(), soon());
  const Peer here = *context.accept(soon());
  constexpr std::size_t large = 4 << 20;
  auto first = pattern(large, 1), third = pattern(large, 3), fifth = pattern(large, 5);
  auto second = pattern(size, 2), fourth = pattern(size, 4);
  std::vector<Work> announced;
  announced.push_back(*there.isend({first.data(), large}, 3));
  HMC_ASSERT_OK(there.send({second.data(), size}, 3, soon()));
  announced.push_back(*there.isend({third.data(), large}, 3));
  HMC_ASSERT_OK(there.send({fourth.data(), size}, 4, soon()));
  announced.push_back(*there.isend({fifth.data(), large}, 3));
  HMC_EXPECT_OK(client.close(soon()));
  for (const Work& work : announced) EXPECT_EQ(work.status().code(), Code::closed) << work.status().str();
  std::vector<std::byte> got(large);
  EXPECT_EQ(here.recv({got.data(), large}, 3, soon()).status().code(), Code::closed);
  HMC_ASSERT_OK(here.recv({got.data(), large}, 3, soon()).status());
  EXPECT_EQ(first_mismatch(std::span(got).first(size), 2), -1);
  EXPECT_EQ(here.recv({got.data(), large}, 3, soon()).status().code(), Code::closed);  // the third
  HMC_ASSERT_OK(here.recv({got.data(), large}, 4, soon()).status());
  EXPECT_EQ(first_mismatch(std::span(got).first(size), 4), -1);
  EXPECT_EQ(here.recv({got.data(), large}, any_tag, soon()).status().code(), Code::closed);
  EXPECT_TRUE(eventually([&] { return context.counters()["messages.unread"] == 0; })) << context.counters()["messages.unread"];
}

// Each costs the same, however many others are posted.
TEST(UnreadReceives, CancelOfManyIsQuick) {
  const Pair pair;
  constexpr std::size_t count = 60'000;
  std::vector<std::byte> memory(8);
  std::vector<Work> works;
  for (std::size_t i = 0; i < count; ++i) works.push_back(*pair.ba.irecv({memory.data(), 8}, static_cast<std::int64_t>(i)));
  const double begin = seconds_used();
  for (std::size_t i = count; i-- > 0;) HMC_ASSERT_OK(works[i].cancel());
  EXPECT_LT(seconds_used() - begin, slow() ? 20 : 4);  // far beyond, if each walks over the rest
  std::uint64_t word = 5, got = 0;
  HMC_ASSERT_OK(pair.ab.send({&word, 8}, 1, soon()));
  HMC_ASSERT_OK(pair.ba.recv({&got, 8}, 1, soon()).status());
  EXPECT_EQ(got, word);
}

}  // namespace
}  // namespace hmc
