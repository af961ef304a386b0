// What was delivered is reported as delivered, whichever side closes, and however many streams carried it.
#include <poll.h>

#include <cstdlib>

#include "transport/one_transport.h"

namespace hmc::testing {
namespace {

class TcpClosing : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    setenv("HMC_TCP_STREAMS", GetParam(), 1);
    std::string reason;
    pair = Pair::create(factory_of("tcp"), reason);
    unsetenv("HMC_TCP_STREAMS");
    ASSERT_TRUE(pair) << reason;
  }
  // The kernel passes on what was written without a poll of the reader.
  static void deliver() { ::poll(nullptr, 0, 30); }

  std::unique_ptr<Pair> pair;
};

// B closes as soon as it received the notification. Its acknowledgement lies in A's sockets when A meets their end.
TEST_P(TcpClosing, DeliveredPutSurvivesTheReceiversClose) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{70'001}, std::size_t{3'000'017}}) {
    for (const bool posts_more : {false, true}) {
      SCOPED_TRACE(std::to_string(bytes) + (posts_more ? " and another put" : ""));
      Link link;
      HMC_ASSERT_OK(link.connect(*pair));
      Side& far = link.far_side();
      const Area local(*pair->a().node, bytes, false);
      const Area remote(*pair->b().node, bytes, false);
      fill_pattern(local.span(), 3);
      const auto imported = link.import(remote);
      bool notified = false;
      far.sink.handler = [&](ByteSpan) {
        EXPECT_EQ(first_mismatch(remote.span(), 3), -1);
        notified = true;
      };
      Transfer put(link.near, local, *imported), more(link.near, local, *imported);
      put.set_signal(pattern(9, 1));
      HMC_ASSERT_OK(put.put());
      while (!notified) {
        ASSERT_TRUE(put.done.count() == 0);
        far.node->poll();
        if (!notified) link.near.node->poll();
      }
      far.close();
      deliver();
      if (posts_more) {  // into a connection that is closed already
        HMC_ASSERT_OK(more.put());
        deliver();
      }
      ASSERT_TRUE(pair->until([&] { return put.done.done() && !link.near.sink.failure.ok(); }));
      HMC_EXPECT_OK(Status(put.done.status()));
      EXPECT_EQ(put.done.count(), 1);
      if (posts_more) {
        EXPECT_EQ(more.done.status().code(), Code::peer_lost);
      }
    }
  }
}

// The same while the notification is being delivered.
TEST_P(TcpClosing, DeliveredPutSurvivesACloseWithinTheNotification) {
  Link link;
  HMC_ASSERT_OK(link.connect(*pair));
  Side& far = link.far_side();
  const Area local(*pair->a().node, 300'007, false);
  const Area remote(*pair->b().node, 300'007, false);
  const auto imported = link.import(remote);
  far.sink.handler = [&](ByteSpan) { far.endpoint.reset(); };
  Transfer put(link.near, local, *imported);
  put.set_signal(pattern(9, 1));
  HMC_ASSERT_OK(put.put());
  ASSERT_TRUE(pair->until([&] { return put.done.done(); }));
  HMC_EXPECT_OK(Status(put.done.status()));
}

// A closes with the acknowledgement unread in its sockets.
TEST_P(TcpClosing, AcknowledgedPutIsNotReportedAsClosed) {
  for (int round = 0; round < 10; ++round) {
    Link link;
    HMC_ASSERT_OK(link.connect(*pair));
    Side& far = link.far_side();
    const Area local(*pair->a().node, 500'003, false);
    const Area remote(*pair->b().node, 500'003, false);
    fill_pattern(local.span(), 5);
    const auto imported = link.import(remote);
    Transfer put(link.near, local, *imported), unacknowledged(link.near, local, *imported);
    Done flush;
    put.set_signal(pattern(9, 1));
    HMC_ASSERT_OK(put.put());
    {
      const auto lock = link.near.lock();
      HMC_ASSERT_OK(link.near.endpoint->flush(&flush));
    }
    while (far.sink.signals.empty()) {
      if (!far.node->poll()) link.near.node->poll();
    }
    far.node->poll();  // writes the acknowledgement
    testing::wait_until_tcp_has_delivered();
    HMC_ASSERT_OK(unacknowledged.put());
    link.near.close();
    HMC_EXPECT_OK(Status(put.done.status()));
    HMC_EXPECT_OK(Status(flush.status()));
    EXPECT_EQ(unacknowledged.done.status().code(), Code::closed);
    EXPECT_EQ(put.done.count() + flush.count() + unacknowledged.done.count(), 3);
    EXPECT_EQ(first_mismatch(remote.span(), 5), -1);
  }
}

// A flush covers every stream, and a notification comes behind all parts of its put.
TEST_P(TcpClosing, FlushAndNotificationsCoverAllStreams) {
  constexpr std::size_t bytes = 2'000'003;
  const Area local(*pair->a().node, bytes, false);
  const Area remote(*pair->b().node, bytes, false);
  const auto imported = pair->import(pair->a(), remote);
  for (unsigned round = 0; round < 20; ++round) {
    fill_pattern(local.span(), round);
    fill_pattern(remote.span(), 777);
    Transfer first(pair->a(), local, *imported, {0}, {0}, 1'000'000);
    Transfer second(pair->a(), local, *imported, {1'000'000}, {1'000'000}, bytes - 1'000'000);
    bool whole = false;
    pair->b().sink.handler = [&](ByteSpan) { whole = first_mismatch(remote.span().first(1'000'000), round) < 0; };
    first.set_signal(pattern(9, 1));
    first.set_level(Complete::local);
    second.set_level(Complete::local);
    HMC_ASSERT_OK(first.put());
    HMC_ASSERT_OK(second.put());
    Done flush;
    flush.then = [&] { EXPECT_EQ(first_mismatch(remote.span(), round), -1); };
    {
      const auto lock = pair->a().lock();
      HMC_ASSERT_OK(pair->a().endpoint->flush(&flush));
    }
    ASSERT_TRUE(pair->until([&] { return flush.done() && whole; }));
    HMC_EXPECT_OK(Status(flush.status()));
  }
}

INSTANTIATE_TEST_SUITE_P(Streams, TcpClosing, ::testing::Values("1", "2", "8"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace hmc::testing
