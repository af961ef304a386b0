// Conformance: signals, attached signals, flush, completion levels, posts from callbacks.
#include <random>

#include "transport/conformance.h"

namespace hmc::testing {
namespace {

class ConformanceSignals : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Transports, ConformanceSignals, ::testing::ValuesIn(subjects()), subject_name);

TEST_P(ConformanceSignals, EverySizeInOrder) {
  HMC_PAIR_OR_SKIP();
  const std::size_t most = pair->capabilities().max_signal;
  std::vector<Bytes> sent;
  for (const std::size_t size : {std::size_t{1}, std::size_t{8}, std::size_t{47}, std::size_t{48}, std::size_t{49},
                                 std::size_t{2047}, most - 1, most, std::size_t{3}, most / 2 + 1, std::size_t{4096}}) {
    if (size > most) continue;
    sent.push_back(pattern(size, sent.size() + 1));
    const ByteSpan all(sent.back());
    const std::size_t head = sent.size() % 3 == 0 ? 0 : size / 3;
    Status status;
    ASSERT_TRUE(pair->until([&] {
      status = send_signal(pair->a(), all.first(head), all.subspan(head));
      return status.code() != Code::would_block;
    }));
    HMC_ASSERT_OK(Status(status));
  }
  ASSERT_TRUE(pair->until([&] { return pair->b().sink.signals.size() == sent.size(); }));
  EXPECT_EQ(pair->b().sink.signals, sent);
  const Bytes large(most + 1);
  EXPECT_EQ(send_signal(pair->a(), large).code(), Code::invalid_argument);
  EXPECT_EQ(send_signal(pair->a(), ByteSpan(large).first(most), ByteSpan(large).first(1)).code(), Code::invalid_argument);
}

// The receiver does not poll until the sender is refused: what was accepted comes, once, in order.
TEST_P(ConformanceSignals, BackPressureLosesNothing) {
  HMC_PAIR_OR_SKIP();
  std::mt19937 random(11);
  std::size_t accepted = 0;
  const auto size_of = [](std::size_t i) { return 1 + i * 7919 % 1500; };
  bool refused = false;
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 100'000; ++i) {
      const Bytes bytes = pattern(size_of(accepted), accepted);
      const Status status = send_signal(pair->a(), bytes);
      if (status.code() == Code::would_block) {
        refused = true;
        break;
      }
      HMC_ASSERT_OK(Status(status));
      ++accepted;
      if (pair->loops_back() && i > 2000) break;
    }
    ASSERT_TRUE(pair->until([&] { return pair->b().sink.signals.size() == accepted; }));
  }
  EXPECT_TRUE(refused || pair->loops_back());
  for (std::size_t i = 0; i < accepted; ++i) ASSERT_EQ(pair->b().sink.signals[i], pattern(size_of(i), i)) << i;
  pair->settle();
  EXPECT_EQ(pair->b().sink.signals.size(), accepted);
}

TEST_P(ConformanceSignals, AttachedOnesComeAfterTheirData) {
  HMC_PAIR_OR_SKIP();
  for (const bool shareable : {true, false}) {
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, std::size_t{4097}, std::size_t{300'001}, std::size_t{3'000'017}}) {
      constexpr std::size_t count = 6;
      std::vector<Area> locals, remotes;
      std::vector<std::unique_ptr<RemoteRegion>> imported;
      std::vector<std::unique_ptr<Transfer>> puts;
      std::size_t arrived = 0;
      for (std::size_t i = 0; i < count; ++i) {
        locals.emplace_back(*pair->a().node, bytes + 1, !shareable);
        remotes.emplace_back(*pair->b().node, bytes + 1, shareable);
        fill_pattern(locals[i].span(), 100 + i);
        fill_pattern(remotes[i].span(), 200 + i);
        imported.push_back(pair->import(pair->a(), remotes[i]));
      }
      pair->b().sink.handler = [&](ByteSpan signal) {
        ASSERT_EQ(signal.size(), 5 + static_cast<std::size_t>(signal[0]));
        const auto i = static_cast<std::size_t>(signal[0]);
        ++arrived;
        EXPECT_EQ(first_mismatch({remotes[i].data(), bytes}, 100 + i), -1) << "the signal of put " << i << " came before its data";
      };
      for (std::size_t i = 0; i < count; ++i) {
        puts.push_back(std::make_unique<Transfer>(pair->a(), locals[i], *imported[i], std::vector<std::uint64_t>{0},
                                                  std::vector<std::uint64_t>{0}, bytes));
        Bytes signal(5 + i, std::byte{7});
        signal[0] = static_cast<std::byte>(i);
        puts[i]->set_signal(signal);
        puts[i]->set_level(i % 2 == 0 ? Complete::remote : Complete::local);
        ASSERT_TRUE(pair->until([&] { return puts[i]->put().code() != Code::would_block; }));
      }
      ASSERT_TRUE(pair->until(
          [&] { return arrived == count && std::ranges::all_of(puts, [](const auto& put) { return put->done.done(); }); }));
      pair->settle(20);
      EXPECT_EQ(arrived, count);
      for (const auto& put : puts) {
        EXPECT_EQ(put->done.count(), 1);
        HMC_EXPECT_OK(Status(put->done.status()));
      }
      pair->b().sink.handler = nullptr;
    }
  }
}

TEST_P(ConformanceSignals, FlushMeansThatEarlierPutsAreThere) {
  HMC_PAIR_OR_SKIP();
  for (const bool shareable : {true, false}) {
    constexpr std::size_t bytes = 1'500'003;
    const Area local(*pair->a().node, bytes, false);
    const Area remote(*pair->b().node, bytes, shareable);
    const auto imported = pair->import(pair->a(), remote);
    for (std::uint64_t round = 1; round < 8; ++round) {
      fill_pattern(local.span(), round);
      Transfer put(pair->a(), local, *imported);
      put.set_level(Complete::local);
      HMC_ASSERT_OK(put.put());
      Done flushed;
      bool there = false;
      flushed.then = [&] { there = first_mismatch(remote.span(), round) == -1; };
      {
        const auto lock = pair->a().lock();
        HMC_ASSERT_OK(pair->a().endpoint->flush(&flushed));
      }
      ASSERT_TRUE(pair->until([&] { return flushed.done() && put.done.done(); }));
      EXPECT_TRUE(there);
      EXPECT_EQ(flushed.count() + put.done.count(), 2);
    }
  }
}

// A put answered from the sink by a put back, and so on: callbacks may post.
TEST_P(ConformanceSignals, CallbacksMayPost) {
  HMC_PAIR_OR_SKIP();
  if (pair->loops_back()) GTEST_SKIP() << "one sink for both directions";
  constexpr int rounds = 500;
  const Area at_a(*pair->a().node, 100, true);
  const Area at_b(*pair->b().node, 100, true);
  const auto to_b = pair->import(pair->a(), at_b);
  const auto to_a = pair->import(pair->b(), at_a);
  std::vector<std::unique_ptr<Transfer>> posted;
  int hops = 0;
  const auto answer = [&](Side& side, const Area& from, RemoteRegion& to) {
    return [&](ByteSpan signal) {
      if (++hops >= rounds) return;
      posted.push_back(std::make_unique<Transfer>(side, from, to));
      posted.back()->set_signal(signal);
      HMC_EXPECT_OK(posted.back()->post_locked(true));
    };
  };
  pair->b().sink.handler = answer(pair->b(), at_b, *to_a);
  pair->a().sink.handler = answer(pair->a(), at_a, *to_b);
  posted.push_back(std::make_unique<Transfer>(pair->a(), at_a, *to_b));
  posted.back()->set_signal(pattern(9, 1));
  HMC_ASSERT_OK(posted.back()->put());
  ASSERT_TRUE(
      pair->until([&] { return hops >= rounds && std::ranges::all_of(posted, [](const auto& put) { return put->done.done(); }); }));
  for (const auto& put : posted) HMC_EXPECT_OK(Status(put->done.status()));
}

// More operations at once than any table of a transport holds, each just above what transports move in one piece.
TEST_P(ConformanceSignals, MoreAtOnceThanTablesHold) {
  HMC_PAIR_OR_SKIP();
  constexpr std::size_t bytes = (256 << 10) + 1;
  constexpr std::size_t count = 1300;
  const Area local(*pair->a().node, bytes, false);
  const Area remote(*pair->b().node, bytes, false);
  fill_pattern(local.span(), 1);
  const auto imported = pair->import(pair->a(), remote);
  std::vector<std::unique_ptr<Transfer>> all;
  for (std::size_t i = 0; i < count; ++i) {
    all.push_back(std::make_unique<Transfer>(pair->a(), local, *imported));
    if (i % 100 == 0) all.back()->set_signal(pattern(10, i));
    HMC_ASSERT_OK(i % 13 == 5 ? all.back()->get() : all.back()->put());  // one get of them has a signal, which means nothing
    if (i == 0) {
      ASSERT_TRUE(pair->until([&] { return all[0]->done.done(); }));  // gets bring pattern 1, too
    }
  }
  ASSERT_TRUE(pair->until([&] { return std::ranges::all_of(all, [](const auto& one) { return one->done.done(); }); }));
  for (const auto& one : all) {
    HMC_EXPECT_OK(Status(one->done.status()));
    EXPECT_EQ(one->done.count(), 1);
  }
  ASSERT_TRUE(pair->until([&] { return pair->b().sink.signals.size() == 12; }));
  EXPECT_EQ(first_mismatch(remote.span(), 1), -1);
  EXPECT_EQ(first_mismatch(local.span(), 1), -1);
}

// Puts and gets of many sizes in both directions at once, every byte.
TEST_P(ConformanceSignals, ManyAtOnceInBothDirections) {
  HMC_PAIR_OR_SKIP();
  std::mt19937 random(5);
  struct One {
    std::unique_ptr<Area> local, remote;
    std::unique_ptr<RemoteRegion> imported;
    std::unique_ptr<Transfer> transfer;
    bool is_put;
    std::uint64_t seed;
  };
  std::vector<One> all;
  for (std::uint64_t i = 0; i < 60; ++i) {
    Side& side = i % 2 == 0 ? pair->a() : pair->b();
    const std::size_t bytes = random() % (i % 10 == 0 ? 2'000'000 : 20'000) + 1;
    One one{std::make_unique<Area>(*side.node, bytes, random() % 2 == 0),
            std::make_unique<Area>(*pair->other(side).node, bytes, random() % 2 == 0),
            nullptr,
            nullptr,
            random() % 2 == 0,
            10 * i};
    fill_pattern(one.local->span(), one.seed);
    fill_pattern(one.remote->span(), one.seed + 1);
    one.imported = pair->import(side, *one.remote);
    one.transfer = std::make_unique<Transfer>(side, *one.local, *one.imported);
    all.push_back(std::move(one));
  }
  for (One& one : all) HMC_ASSERT_OK(one.is_put ? one.transfer->put() : one.transfer->get());
  ASSERT_TRUE(pair->until([&] { return std::ranges::all_of(all, [](const One& one) { return one.transfer->done.done(); }); }));
  for (const One& one : all) {
    HMC_EXPECT_OK(Status(one.transfer->done.status()));
    EXPECT_EQ(one.transfer->done.count(), 1);
    const std::uint64_t seed = one.is_put ? one.seed : one.seed + 1;
    EXPECT_EQ(first_mismatch(one.local->span(), seed), -1);
    EXPECT_EQ(first_mismatch(one.remote->span(), seed), -1);
    EXPECT_TRUE(one.local->guards_intact() && one.remote->guards_intact());
  }
}

}  // namespace
}  // namespace hmc::testing
