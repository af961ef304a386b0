// Notifications of puts that go as the immediates of their writes.
#include "transport/verbs_fabric/support.h"

#ifdef HMC_FABRIC_LIBRARY

#include <algorithm>

namespace hmc::testing {
namespace {

class VerbsImmediates : public OnFabric {
 protected:
  void SetUp() override {
    OnFabric::SetUp();
    setenv("HMC_VERBS_RAILS", "1", 1);
    connect();
  }
};

// Signals of more heads than are told, each head twice in a row and again later, and nothing that comes back but credit. Every byte
// is there when its signal comes.
TEST_F(VerbsImmediates, SignalsAsImmediates) {
  constexpr unsigned heads = 300, places = 2 * heads, count = 2 * places;
  constexpr std::size_t size = 1500;
  const auto head_of = [](unsigned i) { return i / 2 % heads; };
  const AnyArea local(*pair->a().node, count * size, Device::cpu()), target(*pair->b().node, places * size, Device::cpu());
  local.fill(1);
  target.fill(2);
  const auto sent = pattern(count * size, 1);
  const auto remote = target.imported(pair->a()).value();
  const std::uint64_t before = fabric().immediates();
  std::vector<unsigned> told;
  pair->b().sink.handler = [&](ByteSpan signal) {
    const auto [head, number] = take_numbered(signal);
    EXPECT_EQ(Bytes(signal.begin(), signal.end()), numbered_signal(head, number, true));
    EXPECT_EQ(head, head_of(number));
    const auto came = target.bytes();
    EXPECT_TRUE(same_bytes(std::span(came).subspan(number % places * size, size), std::span(sent).subspan(number * size, size)));
    told.push_back(number);
  };
  const Handled handled(&pair->b().sink);
  std::vector<std::unique_ptr<Move>> puts;
  for (unsigned i = 0; i < count; ++i) {
    puts.push_back(std::make_unique<Move>(pair->a(), local, *remote, size, i * size, i % places * size));
    Status status;
    do {
      status = puts.back()->put(numbered_signal(head_of(i), i, true));
      if (!status.ok()) pair->poll();
    } while (status.code() == Code::would_block);
    HMC_ASSERT_OK(Status(status));
    if (i % 7 == 0) pair->settle(20);  // now alone, now with others behind it
  }
  for (const auto& put : puts) ends(*put);
  ASSERT_TRUE(pair->until([&] { return told.size() == count; })) << told.size();
  std::ranges::sort(told);
  for (unsigned i = 0; i < count; ++i) EXPECT_EQ(told[i], i);
  const std::uint64_t immediates = fabric().immediates() - before;
  EXPECT_GT(immediates, 300U);
  EXPECT_LE(immediates, 3 * 256U);
}

// Signals that look as if they began with a head, with a counter in it: none is told, and those behind them still go as immediates.
TEST_F(VerbsImmediates, HeadsThatComeOnce) {
  const AnyArea local(*pair->a().node, 64, Device::cpu()), target(*pair->b().node, 64, Device::cpu());
  const auto remote = target.imported(pair->a()).value();
  const auto put = [&](std::uint32_t head, std::uint32_t number) {
    Move move(pair->a(), local, *remote, 64);
    const std::size_t before = pair->b().sink.signals.size();
    HMC_ASSERT_OK(move.put(numbered_signal(head, number, true)));
    ends(move);
    ASSERT_TRUE(pair->until([&] { return pair->b().sink.signals.size() == before + 1; }));
    EXPECT_EQ(pair->b().sink.signals.back(), numbered_signal(head, number, true));
  };
  const std::uint64_t before = fabric().immediates();
  for (unsigned i = 0; i < 600; ++i) put(1000 + i, 7);
  EXPECT_EQ(fabric().immediates(), before);
  for (unsigned i = 0; i < 5; ++i) put(3, i);
  EXPECT_EQ(fabric().immediates(), before + 4);
}

// A signal stays what it is while its handler asks for those behind it.
TEST_F(VerbsImmediates, AHandlerAsksForTheRest) {
  constexpr unsigned count = 12;
  const AnyArea local(*pair->a().node, 64, Device::cpu()), target(*pair->b().node, 64, Device::cpu());
  const auto remote = target.imported(pair->a()).value();
  const std::uint64_t before = fabric().immediates();
  std::vector<Bytes> came;
  pair->b().sink.handler = [&](ByteSpan signal) {
    const std::size_t place = came.size();
    came.emplace_back();
    pair->b().endpoint->receive_rest();
    came[place].assign(signal.begin(), signal.end());
  };
  const Handled handled(&pair->b().sink);
  std::vector<std::unique_ptr<Move>> puts;
  for (unsigned i = 0; i < count; ++i) {
    puts.push_back(std::make_unique<Move>(pair->a(), local, *remote, 64));
    HMC_ASSERT_OK(puts.back()->put(numbered_signal(3, i, true)));
    while (!puts.back()->done.done()) pair->a().node->poll();
  }
  ASSERT_TRUE(pair->until([&] { return came.size() == count; }));
  for (unsigned i = 0; i < count; ++i) EXPECT_EQ(came[i], numbered_signal(3, i, true)) << i;
  EXPECT_GT(fabric().immediates(), before + 3);
}

}  // namespace
}  // namespace hmc::testing

#endif
