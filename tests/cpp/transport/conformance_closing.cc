// Conformance: endpoints that close while operations are under way, also from within callbacks; and many links at once.
#include <random>

#include "transport/conformance.h"

namespace hmc::testing {
namespace {

class ConformanceClosing : public Conformance {
 protected:
  const std::size_t bytes = lengthy(20U << 20);
  static constexpr int count = 8;

  // Operations of both sides under way, then one side closes. Every operation of both ends ends once, with ok, closed (of the
  // closing side) or peer_lost (of the other).
  void run(int rounds, bool near) {
    SCOPED_TRACE(std::to_string(rounds) + (near ? " near" : " far"));
    HMC_PAIR_OR_SKIP();
    {
      const Area at_a(*pair->a().node, bytes, false);
      const Area at_b(*pair->b().node, bytes, false);
      fill_pattern(at_a.span(), 1);
      fill_pattern(at_b.span(), 1);
      const auto to_b = pair->import(pair->a(), at_b);
      const auto to_a = pair->import(pair->b(), at_a);
      std::vector<std::unique_ptr<Transfer>> of_a, of_b;
      Done flushed;
      for (int i = 0; i < count; ++i) {
        of_a.push_back(std::make_unique<Transfer>(pair->a(), at_a, *to_b));
        of_b.push_back(std::make_unique<Transfer>(pair->b(), at_b, *to_a));
        HMC_ASSERT_OK(i % 2 == 0 ? of_a.back()->put() : of_a.back()->get());
        HMC_ASSERT_OK(i % 2 == 0 ? of_b.back()->get() : of_b.back()->put());
      }
      {
        const auto lock = pair->a().lock();
        HMC_ASSERT_OK(pair->a().endpoint->flush(&flushed));
      }
      pair->settle(rounds);
      Side& closing = near ? pair->a() : pair->b();
      Side& staying = near ? pair->b() : pair->a();
      bool heard = false;
      closing.sink.handler = [&](ByteSpan) { heard = true; };
      closing.close();
      const auto& own = near || pair->loops_back() ? of_a : of_b;
      for (const auto& one : own) {
        ASSERT_EQ(one->done.count(), 1) << "pending after the endpoint was closed";
        const Status& status = one->done.status();
        EXPECT_TRUE(status.ok() || status.code() == Code::closed) << status.str();
      }
      // The other end: its operations end by themselves, or when the loss of the peer is noticed, or when it is closed in turn
      // (what control does in a whole Context).
      pair->settle(2000);
      if (staying.endpoint) staying.close();
      for (const auto* all : {&of_a, &of_b}) {
        for (const auto& one : *all) EXPECT_EQ(one->done.count(), 1);
      }
      EXPECT_EQ(flushed.count(), 1);
      pair->settle(20);
      EXPECT_TRUE(closing.sink.failure.ok()) << "the side that closed was told of a failure";
      EXPECT_FALSE(heard);
      EXPECT_TRUE(at_a.guards_intact() && at_b.guards_intact());
    }
    pair.reset();
  }
};
INSTANTIATE_TEST_SUITE_P(Transports, ConformanceClosing, ::testing::ValuesIn(subjects()), subject_name);

TEST_P(ConformanceClosing, NearSideEndsWhatIsPending) {
  for (const int rounds : {0, 1, 4, 16}) run(rounds, true);
}
TEST_P(ConformanceClosing, FarSideEndsWhatIsPending) {
  for (const int rounds : {0, 1, 4, 16}) run(rounds, false);
}

// A completion may destroy the endpoint that completes it; so may a sink.
TEST_P(ConformanceClosing, FromWithinCallbacks) {
  for (const int where : {0, 1, 2}) {
    HMC_PAIR_OR_SKIP();
    {
      const Area at_a(*pair->a().node, bytes, false);
      const Area at_b(*pair->b().node, bytes, false);
      const auto to_b = pair->import(pair->a(), at_b);
      std::vector<std::unique_ptr<Transfer>> all;
      for (int i = 0; i < 4; ++i) {
        all.push_back(std::make_unique<Transfer>(pair->a(), at_a, *to_b));
        if (i % 2 == 0) all.back()->set_signal(pattern(5, 1));
      }
      // Only from a poll: the posting call is inside the endpoint.
      bool posted = false;
      const auto destroy = [&] {
        if (posted) (where == 2 ? pair->b() : pair->a()).endpoint.reset();
      };
      if (where == 0) all[0]->done.then = destroy;
      if (where == 1) all[1]->done.then = destroy;
      if (where == 2) pair->b().sink.handler = [&](ByteSpan) { destroy(); };
      for (std::size_t i = 0; i < all.size(); ++i) HMC_ASSERT_OK(i % 2 == 0 ? all[i]->put() : all[i]->get());
      posted = true;
      ASSERT_TRUE(pair->until([&] { return (where == 2 ? pair->b() : pair->a()).endpoint == nullptr; }));
      pair->settle(500);
      if (pair->a().endpoint) pair->a().close();
      for (const auto& one : all) EXPECT_EQ(one->done.count(), 1);
    }
    pair.reset();
  }
}

// A peer that did not run while the other side sent and ended finds what was sent together with the end.
TEST_P(ConformanceClosing, WhatHasLeftIsReceivedAtTheEnd) {
  HMC_PAIR_OR_SKIP();
  if (pair->loops_back()) GTEST_SKIP() << "both ends are one";
  constexpr unsigned signals = 8;
  for (unsigned i = 0; i < signals; ++i) HMC_ASSERT_OK(send_signal(pair->a(), pattern(40 + i, i)));
  const auto unsent = [&] {
    const auto lock = pair->a().lock();
    return pair->a().endpoint->has_unsent();
  };
  const Deadline deadline = Deadline::after_seconds(100);
  while (unsent()) {
    ASSERT_FALSE(deadline.passed());
    if (!pair->a().node->poll()) sched_yield();
  }
  ASSERT_TRUE(pair->b().sink.signals.empty());
  {
    const auto lock = pair->b().lock();
    pair->b().endpoint->receive_rest();
  }
  ASSERT_EQ(pair->b().sink.signals.size(), signals);
  for (unsigned i = 0; i < signals; ++i) EXPECT_EQ(pair->b().sink.signals[i], pattern(40 + i, i));
}

// Many endpoints between the same two nodes: each carries its own signals and bytes, some close midway.
TEST_P(ConformanceClosing, ManyLinks) {
  HMC_PAIR_OR_SKIP();
  constexpr std::size_t links = 24;
  constexpr std::size_t size = 70'001;
  std::vector<std::unique_ptr<Link>> all;
  for (std::size_t i = 0; i < links; ++i) {
    all.push_back(std::make_unique<Link>());
    HMC_ASSERT_OK(all[i]->connect(*pair));
  }
  std::vector<std::unique_ptr<Area>> sources, targets;
  std::vector<std::unique_ptr<RemoteRegion>> imported;
  std::vector<std::unique_ptr<Transfer>> puts;
  for (std::size_t i = 0; i < links; ++i) {
    sources.push_back(std::make_unique<Area>(*pair->a().node, size, false));
    targets.push_back(std::make_unique<Area>(*pair->b().node, size, i % 2 == 0));
    fill_pattern(sources[i]->span(), i);
    fill_pattern(targets[i]->span(), 1000 + i);
    imported.push_back(all[i]->import(*targets[i]));
    puts.push_back(std::make_unique<Transfer>(all[i]->near, *sources[i], *imported[i]));
    puts[i]->set_signal(pattern(20 + i, i));
  }
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < links; ++i) HMC_ASSERT_OK(send_signal(all[i]->near, pattern(10 + i, i)));
  }
  for (std::size_t i = 0; i < links; ++i) HMC_ASSERT_OK(puts[i]->put());
  for (std::size_t i = 0; i < links; i += 5) all[i]->far_side().close();
  const auto survives = [](std::size_t i) { return i % 5 != 0; };
  ASSERT_TRUE(pair->until([&] {
    for (std::size_t i = 0; i < links; ++i) {
      if (survives(i) && (!puts[i]->done.done() || all[i]->far_side().sink.signals.size() < 4)) return false;
    }
    return true;
  }));
  for (std::size_t i = 0; i < links; ++i) {
    if (!survives(i)) continue;
    HMC_EXPECT_OK(Status(puts[i]->done.status()));
    EXPECT_EQ(first_mismatch(targets[i]->span(), i), -1);
    const std::vector<Bytes> expected{pattern(10 + i, i), pattern(10 + i, i), pattern(10 + i, i), pattern(20 + i, i)};
    EXPECT_EQ(all[i]->far_side().sink.signals.size(), 4U);
    // Attached signals and others have no order among each other.
    EXPECT_TRUE(std::ranges::is_permutation(all[i]->far_side().sink.signals, expected));
  }
  for (auto& link : all) link->close();
  for (const auto& put : puts) EXPECT_EQ(put->done.count(), 1);
  // The first pair of all never noticed.
  HMC_ASSERT_OK(send_signal(pair->a(), pattern(100, 1)));
  ASSERT_TRUE(pair->until([&] { return pair->b().sink.signals.size() == 1; }));
  EXPECT_EQ(pair->b().sink.signals[0], pattern(100, 1));
}

}  // namespace
}  // namespace hmc::testing
