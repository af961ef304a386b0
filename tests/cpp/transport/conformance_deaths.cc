// Conformance: a peer in another process that works, is stopped, and is killed under way.
#include "transport/conformance.h"
#include "transport/remote_peer.h"

namespace hmc::testing {
namespace {

class ConformanceDeaths : public Conformance {
 protected:
  // Puts and gets to a process that is killed after `rounds` polls. They end once each: by themselves where the transport notices,
  // at the latest when the endpoint is closed (as control does once it knows). An honest link of the same node goes on.
  void run(bool shareable, bool busy, bool stopped, int rounds) {
    SCOPED_TRACE(std::string(shareable ? "shareable " : "foreign ") + (busy ? "busy " : "") + (stopped ? "stopped " : "") +
                 std::to_string(rounds));
    set(GetParam().far_value);
    RemotePeer peer(*GetParam().factory, shareable, busy);
    set(GetParam().value);
    HMC_PAIR_OR_SKIP();
    if (pair->loops_back()) GTEST_SKIP() << "reaches only its own process";
    {
      Node& node = *pair->a().node;
      const Area inbox(node, RemotePeer::bytes, shareable);
      const Area local(node, RemotePeer::bytes, false);
      fill_pattern(local.span(), 1);
      RemoteLink link;
      HMC_ASSERT_OK(link.connect(node, peer.socket.get(), peer.pid(), inbox));
      if (stopped) peer.stop();
      std::vector<std::unique_ptr<Transfer>> all;
      for (int i = 0; i < 6; ++i) {
        all.push_back(std::make_unique<Transfer>(link.side, local, *link.region));
        if (i % 2 == 0) all.back()->set_level(Complete::local);
        HMC_ASSERT_OK(i % 3 != 0 ? all.back()->put() : all.back()->get());
      }
      Done flushed;
      {
        const auto lock = link.side.lock();
        HMC_ASSERT_OK(link.side.endpoint->flush(&flushed));
      }
      pair->settle(rounds);
      peer.kill();
      const auto ended = [&] {
        return flushed.done() && std::ranges::all_of(all, [](const auto& one) { return one->done.done(); });
      };
      if (notices_by_itself(shareable)) {
        ASSERT_TRUE(pair->until(ended));
      } else {
        pair->settle(500);
      }
      const bool failed = !link.side.sink.failure.ok();
      EXPECT_TRUE(!failed || link.side.sink.failure.code() == Code::peer_lost) << link.side.sink.failure.str();
      link.side.close();
      ASSERT_TRUE(ended());
      for (const auto& one : all) {
        EXPECT_EQ(one->done.count(), 1);
        const Code code = one->done.status().code();
        EXPECT_TRUE(code == Code::ok || code == Code::peer_lost || code == Code::closed || code == Code::stale)
            << one->done.status().str();
      }
      EXPECT_EQ(flushed.count(), 1);
      EXPECT_TRUE(local.guards_intact() && inbox.guards_intact());
      HMC_ASSERT_OK(send_signal(pair->a(), pattern(100, 1)));
      ASSERT_TRUE(pair->until([&] { return pair->b().sink.signals.size() == 1; }));
    }
    pair.reset();
  }

 private:
  // The ring's peer is silent when it is dead: only control knows.
  [[nodiscard]] bool notices_by_itself(bool shareable) const {
    if (GetParam().factory->name == "shm") return shareable || GetParam().variant.empty();
    return GetParam().factory->name == "tcp" || GetParam().factory->name == "verbs";
  }
};
INSTANTIATE_TEST_SUITE_P(Transports, ConformanceDeaths, ::testing::ValuesIn(subjects()), subject_name);

TEST_P(ConformanceDeaths, KilledAtWork) {
  for (const bool shareable : {false, true}) {
    for (const int rounds : {0, 3, 20}) {
      run(shareable, false, false, rounds);
      if (IsSkipped() || HasFatalFailure()) return;
    }
  }
}

TEST_P(ConformanceDeaths, KilledWhileItPuts) {
  for (const int rounds : {0, 5, 40}) {
    run(rounds % 2 == 0, true, false, rounds);
    if (IsSkipped() || HasFatalFailure()) return;
  }
}

TEST_P(ConformanceDeaths, StoppedThenKilled) {
  for (const int rounds : {0, 50}) {
    run(false, false, true, rounds);
    if (IsSkipped() || HasFatalFailure()) return;
  }
}

// Posts may be what finds the death. The sink learns of it, and not from within them (TestSink).
TEST_P(ConformanceDeaths, PostsMayFindTheDeath) {
  set(GetParam().far_value);
  RemotePeer peer(*GetParam().factory, false, false);
  set(GetParam().value);
  HMC_PAIR_OR_SKIP();
  if (pair->loops_back()) GTEST_SKIP() << "reaches only its own process";
  {
    Node& node = *pair->a().node;
    constexpr std::size_t size = 5000;
    const Area inbox(node, RemotePeer::bytes, false);
    const Area local(node, size, false);
    RemoteLink link;
    HMC_ASSERT_OK(link.connect(node, peer.socket.get(), peer.pid(), inbox));
    peer.kill();
    std::vector<std::unique_ptr<Transfer>> puts;
    const auto post = [&](unsigned i) {
      if (i % 8 != 0) return send_signal(link.side, pattern(1000, i));
      puts.push_back(std::make_unique<Transfer>(link.side, local, *link.region));
      const Status posted = puts.back()->put();
      if (!posted.ok()) puts.pop_back();
      return posted;
    };
    for (unsigned i = 0; i < 2000 && link.side.sink.failure.ok(); ++i) {
      const Status posted = post(i);
      EXPECT_TRUE(posted.ok() || posted.code() == Code::would_block || posted.code() == Code::stale) << posted.str();
      if (!posted.ok() || i % 64 == 63) pair->poll();
    }
    const Status& failure = link.side.sink.failure;
    EXPECT_TRUE(failure.ok() || failure.code() == Code::peer_lost) << failure.str();
    link.side.close();
    for (const auto& put : puts) EXPECT_EQ(put->done.count(), 1);
    HMC_ASSERT_OK(send_signal(pair->a(), pattern(100, 1)));
    ASSERT_TRUE(pair->until([&] { return pair->b().sink.signals.size() == 1; }));
  }
  pair.reset();
}

// Whole bytes between two processes, both ways at once.
TEST_P(ConformanceDeaths, LivingPeersBytes) {
  for (const bool shareable : {false, true}) {
    set(GetParam().far_value);
    RemotePeer peer(*GetParam().factory, shareable, true);
    set(GetParam().value);
    HMC_PAIR_OR_SKIP();
    if (pair->loops_back()) GTEST_SKIP() << "reaches only its own process";
    {
      Node& node = *pair->a().node;
      const Area inbox(node, RemotePeer::bytes, shareable);
      const Area local(node, RemotePeer::bytes, false);
      fill_pattern(inbox.span(), 3);
      RemoteLink link;
      HMC_ASSERT_OK(link.connect(node, peer.socket.get(), peer.pid(), inbox));
      Transfer get(link.side, local, *link.region);
      HMC_ASSERT_OK(get.get());
      ASSERT_TRUE(pair->until([&] { return get.done.done(); }));
      HMC_EXPECT_OK(Status(get.done.status()));
      EXPECT_EQ(first_mismatch(local.span(), 77), -1);
      ASSERT_TRUE(pair->until([&] { return inbox.data()[inbox.bytes() - 1] == pattern_byte(inbox.bytes() - 1, 77); }));
      EXPECT_TRUE(pair->until([&] { return first_mismatch(inbox.span(), 77) == -1; }));
      EXPECT_TRUE(local.guards_intact() && inbox.guards_intact());
      link.side.close();
    }
    pair.reset();
  }
}

}  // namespace
}  // namespace hmc::testing
