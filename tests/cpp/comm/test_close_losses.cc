// What a close that was to deliver everything says where a connection broke first, though both processes live.
#include <chrono>
#include <future>
#include <thread>

#include "breaking.h"
#include "support.h"

namespace hmc {
namespace {

using testing::cut_data_connections;
using testing::make_context;
using testing::Pair;
using testing::pattern;
using testing::soon;
using testing::view;

// More payload than the peer's window takes: the last ones wait for credit.
void notify_beyond_credit(const Peer& peer) {
  const auto payload = pattern(max_notify_payload, 1);
  for (int i = 0; i < 2000; ++i) HMC_ASSERT_OK(peer.notify(Notify(payload)));
}

void expect_loss(const Status& closed, const Peer& peer) {
  EXPECT_EQ(closed.code(), Code::timeout) << closed.str();
  EXPECT_NE(closed.message().find("what was posted to peer " + peer.name()), std::string_view::npos) << closed.str();
  EXPECT_NE(closed.message().find("is lost"), std::string_view::npos) << closed.str();
}

TEST(CloseLosses, NotificationsThatWaitForCreditWhenTheConnectionBreaks) {
  const Pair pair("tcp");
  notify_beyond_credit(pair.ab);
  auto end = std::async(std::launch::async, [&] { return pair.a.close(soon()); });
  while (!pair.a.closed()) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  ASSERT_EQ(end.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  ASSERT_GT(cut_data_connections(), 0);
  expect_loss(end.get(), pair.ab);
}

// A Peer that was closed before: the close of its Context reports what the Peer's could not.
TEST(CloseLosses, OfAPeerThatWasClosedBefore) {
  const Pair pair("tcp");
  notify_beyond_credit(pair.ab);
  pair.ab.close();
  ASSERT_GT(cut_data_connections(), 0);
  while (pair.ba.alive()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  expect_loss(pair.a.close(soon()), pair.ab);
}

// The connection broke first, and no other has taken over yet.
TEST(CloseLosses, NotificationsThatWaitForAConnection) {
  ContextOptions manual;
  manual.progress = Progress::manual;
  const auto a = make_context("tcp", {}, manual), b = make_context("tcp");
  const auto ab = *a.connect(b.addresses().front(), soon());
  HMC_ASSERT_OK(ab.notify(1));
  ASSERT_GT(cut_data_connections(), 0);
  HMC_ASSERT_OK(ab.notify(2));
  expect_loss(a.close(soon()), ab);
}

// The peer reads nothing: whether what the connection has accepted arrives is not known.
Status close_amid_a_cut(const Context& a, const Context& b) {
  auto connecting = std::async(std::launch::async, [&] { return *a.connect(b.addresses().front(), soon()); });
  while (connecting.wait_for(std::chrono::seconds(0)) != std::future_status::ready) b.progress();
  auto word = pattern(8, 1);
  HMC_EXPECT_OK(connecting.get().send(view(word), 1, soon()));
  auto end = std::async(std::launch::async, [&] { return a.close(soon()); });
  while (!a.closed()) std::this_thread::yield();
  EXPECT_GT(cut_data_connections(), 0);
  return end.get();
}

TEST(CloseLosses, MessagesOnTheirWay) {
  Status closed;
  // A busy machine may take so long that the close has given up the peer, which reads nothing, before the cut.
  for (int attempt = 0; attempt < 5 && closed.ok(); ++attempt) {
    ContextOptions manual;
    manual.progress = Progress::manual;
    const auto a = make_context("tcp"), b = make_context("tcp", {}, manual);
    closed = close_amid_a_cut(a, b);
  }
  EXPECT_EQ(closed.code(), Code::timeout) << closed.str();
  EXPECT_NE(closed.message().find("may not all have arrived"), std::string_view::npos) << closed.str();
}

// Where two threads close at once, close() reports the loss to both.
TEST(CloseLosses, AreReportedToEveryThreadThatCloses) {
  const Pair pair("tcp");
  notify_beyond_credit(pair.ab);
  const auto close = [&] { return pair.a.close(soon()); };
  auto first = std::async(std::launch::async, close), second = std::async(std::launch::async, close);
  while (!pair.a.closed()) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  ASSERT_GT(cut_data_connections(), 0);
  expect_loss(first.get(), pair.ab);
  expect_loss(second.get(), pair.ab);
}

// What nobody waits for: everything had arrived, the peer left by itself, or its Works say how each operation ended.
TEST(CloseLosses, AreNotReportedWhereNothingIsLost) {
  {
    const Pair pair("tcp");  // nothing was posted
    ASSERT_GT(cut_data_connections(), 0);
    HMC_EXPECT_OK(pair.a.close(soon()));
  }
  {
    const Pair pair("tcp");
    notify_beyond_credit(pair.ab);
    HMC_EXPECT_OK(pair.b.close(soon()));
    HMC_EXPECT_OK(pair.a.close(soon()));
  }
  {
    const Pair pair("tcp");
    for (int i = 0; i < 300; ++i) HMC_ASSERT_OK(pair.ab.notify(1));
    HMC_EXPECT_OK(pair.a.close(soon()));
    HMC_EXPECT_OK(pair.ba.wait_notify(1, 300, soon()));
  }
}

// A notification that waits for room ends when its peer is closed, though what is queued before it still drains.
TEST(ClosingPeer, EndsANotifyThatWaitsForRoom) {
  ContextOptions manual;
  manual.progress = Progress::manual;
  const auto a = make_context("tcp"), b = make_context("tcp", {}, manual);
  auto connecting = std::async(std::launch::async, [&] { return *a.connect(b.addresses().front(), soon()); });
  while (connecting.wait_for(std::chrono::seconds(0)) != std::future_status::ready) b.progress();
  const Peer ab = connecting.get();
  const auto payload = pattern(max_notify_payload, 1);
  Status full;
  while (full.ok()) full = ab.notify(Notify(payload), Deadline::after_seconds(0));
  ASSERT_EQ(full.code(), Code::timeout) << full.str();
  auto waiting = std::async(std::launch::async, [&] { return ab.notify(Notify(7), soon()); });
  ASSERT_EQ(waiting.wait_for(std::chrono::milliseconds(30)), std::future_status::timeout);
  ab.close();
  EXPECT_EQ(waiting.get().code(), Code::closed);
  HMC_EXPECT_OK(b.close(soon()));  // it reads nothing of what is queued
  HMC_EXPECT_OK(a.close(soon()));
}

}  // namespace
}  // namespace hmc
