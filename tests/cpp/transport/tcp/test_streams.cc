// Links whose two ends are set up differently.
#include <algorithm>
#include <cstdlib>

#include "transport/one_transport.h"

namespace hmc::testing {
namespace {

std::unique_ptr<Node> node_with(const char* streams, const char* buffer) {
  setenv("HMC_TCP_STREAMS", streams, 1);
  setenv("HMC_TCP_BUFFER", buffer, 1);
  auto node = Node::create(factory_of("tcp"));
  unsetenv("HMC_TCP_STREAMS");
  unsetenv("HMC_TCP_BUFFER");
  return node.ok() ? std::move(*node) : nullptr;
}

struct Setting {
  const char* streams;
  const char* buffer;
};

TEST(TcpStreams, EndsMayDiffer) {
  constexpr std::size_t bytes = 3'000'001;
  for (const auto& [left, right] : std::vector<std::pair<Setting, Setting>>{{{"1", "0"}, {"16", "0"}},
                                                                            {{"5", "0"}, {"2", "0"}},
                                                                            {{"16", "150000"}, {"16", "1000000"}},
                                                                            {{"3", "0"}, {"1", "150000"}}}) {
    SCOPED_TRACE(std::string(left.streams) + " and " + right.streams);
    const auto node_a = node_with(left.streams, left.buffer);
    const auto node_b = node_with(right.streams, right.buffer);
    ASSERT_TRUE(node_a && node_b);
    Side a, b;
    a.node = node_a.get();
    b.node = node_b.get();
    const auto until = [&](const std::function<bool()>& condition) {
      const Deadline deadline = Deadline::after_seconds(100);
      while (!condition()) {
        if (deadline.passed()) return false;
        const bool moved = node_a->poll();
        if (!node_b->poll() && !moved) sched_yield();
      }
      return true;
    };
    HMC_ASSERT_OK(open_endpoints(a, b));
    HMC_ASSERT_OK(connect_endpoints(a, b, until));
    {
      const Area at_a(*node_a, bytes, false), at_b(*node_b, bytes, false), back(*node_a, bytes, false);
      fill_pattern(at_a.span(), 1);
      const auto to_b = import_area(a, b, at_b);
      Transfer put(a, at_a, *to_b);
      put.set_signal(pattern(9, 1));
      HMC_ASSERT_OK(put.put());
      ASSERT_TRUE(until([&] { return put.done.done() && b.sink.signals.size() == 1; }));
      HMC_EXPECT_OK(Status(put.done.status()));
      EXPECT_EQ(first_mismatch(at_b.span(), 1), -1);
      Transfer get(a, back, *to_b);
      HMC_ASSERT_OK(get.get());
      ASSERT_TRUE(until([&] { return get.done.done(); }));
      HMC_EXPECT_OK(Status(get.done.status()));
      EXPECT_EQ(first_mismatch(back.span(), 1), -1);
      EXPECT_TRUE(at_a.guards_intact() && at_b.guards_intact() && back.guards_intact());
    }
    a.close();
    b.close();
  }
}

// What waits behind gets that the peer does not answer is no reason to stay awake.
TEST(TcpStreams, AStoppedPeerLetsTheEngineSleep) {
  std::string reason;
  const auto pair = Pair::create(factory_of("tcp"), reason);
  ASSERT_TRUE(pair) << reason;
  const Area local(*pair->a().node, 1000, false), remote(*pair->b().node, 1000, false);
  const auto imported = pair->import(pair->a(), remote);
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (int i = 0; i < 300; ++i) {
    transfers.push_back(std::make_unique<Transfer>(pair->a(), local, *imported));
    HMC_ASSERT_OK(i < 250 ? transfers.back()->get() : transfers.back()->put());
  }
  while (pair->a().node->poll()) continue;
  {
    const auto lock = pair->a().lock();
    EXPECT_TRUE(pair->a().node->transport->arm());
  }
  ASSERT_TRUE(pair->until([&] { return std::ranges::all_of(transfers, [](const auto& each) { return each->done.done(); }); }));
}

// Closing while the connections are still being made, at every stage.
TEST(TcpStreams, ClosedWhileConnecting) {
  for (int rounds = 0; rounds < 40; ++rounds) {
    const auto node_a = node_with("3", "0");
    const auto node_b = node_with("3", "0");
    Side a, b;
    a.node = node_a.get();
    b.node = node_b.get();
    HMC_ASSERT_OK(open_endpoints(a, b));
    Done done_a, done_b;
    Blob address_a, address_b;
    {
      const auto lock = a.lock();
      address_a = a.endpoint->address().value();
    }
    {
      const auto lock = b.lock();
      address_b = b.endpoint->address().value();
      HMC_ASSERT_OK(b.endpoint->connect(address_a, &done_b));
    }
    {
      const auto lock = a.lock();
      HMC_ASSERT_OK(a.endpoint->connect(address_b, &done_a));
    }
    for (int i = 0; i < rounds; ++i) (i % 3 == 0 ? node_a : node_b)->poll();
    (rounds % 2 == 0 ? a : b).close();
    EXPECT_EQ((rounds % 2 == 0 ? done_a : done_b).count(), 1);
    for (int i = 0; i < 50; ++i) {
      node_a->poll();
      node_b->poll();
    }
    if (a.endpoint) a.close();
    if (b.endpoint) b.close();
    EXPECT_EQ(done_a.count() + done_b.count(), 2);
    EXPECT_TRUE(a.sink.failure.ok() || a.sink.failure.code() == Code::peer_lost);
  }
}

}  // namespace
}  // namespace hmc::testing
