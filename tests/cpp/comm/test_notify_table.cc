// NotifyTable on its own: counts, waiters in turn, bounds, ends.
#include <memory>

#include "comm/onesided/notify.h"
#include "testing.h"

namespace hmc {
namespace {

using testing::pattern;

NotifyTable make_table() {
  return NotifyTable([](std::uint32_t scope, std::uint32_t rank, const NotifySlot&) { return scope == 7 && rank < 4; });
}

TEST(NotifyTable, CountsPerIdAndEnvelope) {
  auto table = make_table();
  const auto slot = table.add_peer();
  const Envelope plain{}, other{7, 1, 2};
  EXPECT_FALSE(slot->consume(plain, 5, 1));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(slot->raise(plain, 5));
  ASSERT_TRUE(slot->raise(other, 5));
  EXPECT_FALSE(slot->consume(plain, 6, 1));
  EXPECT_FALSE(slot->consume(plain, 5, 4));
  EXPECT_TRUE(slot->consume(plain, 5, 2));
  EXPECT_TRUE(slot->consume(other, 5, 1));
  EXPECT_FALSE(slot->consume(other, 5, 1));
  EXPECT_TRUE(slot->consume(plain, 5, 1));
}

TEST(NotifyTable, WaitersAreServedInTurnAndCancelled) {
  auto table = make_table();
  const auto slot = table.add_peer();
  NotifyWaiter first, second, third;
  slot->wait({}, 1, 3, first);
  slot->wait({}, 1, 1, second);
  slot->wait({}, 1, 1, third);
  ASSERT_TRUE(slot->raise({}, 1));
  EXPECT_EQ(second.ready.load(), 0U);  // behind the first
  EXPECT_FALSE(slot->consume({}, 1, 1));
  slot->cancel({}, 1, first);
  EXPECT_EQ(first.ready.load(), 0U);
  EXPECT_EQ(second.ready.load(), 1U);  // the raise that was there is its now
  EXPECT_EQ(third.ready.load(), 0U);
  ASSERT_TRUE(slot->raise({}, 1));
  EXPECT_EQ(third.ready.load(), 1U);
  EXPECT_TRUE(third.status.ok());
}

TEST(NotifyTable, EndReleasesWaitersAndKeepsWhatArrived) {
  auto table = make_table();
  const auto slot = table.add_peer();
  NotifyWaiter waiter, late, lucky;
  ASSERT_TRUE(slot->raise({}, 2));
  slot->wait({}, 1, 1, waiter);
  slot->end(Status(Code::peer_lost, "gone"));
  EXPECT_EQ(waiter.ready.load(), 1U);
  EXPECT_EQ(waiter.status.code(), Code::peer_lost);
  slot->wait({}, 1, 1, late);
  EXPECT_EQ(late.status.code(), Code::peer_lost);
  slot->wait({}, 2, 1, lucky);
  EXPECT_EQ(lucky.ready.load(), 1U);
  EXPECT_TRUE(lucky.status.ok());
}

TEST(NotifyTable, ManyIdsAreBounded) {
  auto table = make_table();
  const auto slot = table.add_peer();
  std::uint64_t id = 0;
  while (slot->raise({}, id)) ++id;
  EXPECT_EQ(id, max_counted_ids);
  for (std::uint64_t i = 0; i < id; ++i) EXPECT_TRUE(slot->consume({}, i, 1));
  for (std::uint64_t i = 0; i < 1000; ++i) EXPECT_TRUE(slot->raise({}, i + 12345678));
}

TEST(NotifyTable, PayloadsByScopeSourceAndWindow) {
  auto table = make_table();
  const auto slot = table.add_peer();
  const auto other = table.add_peer();
  std::uint64_t granted = 0;
  slot->grant = [&](std::uint64_t total) { granted = total; };
  ASSERT_TRUE(table.queue(*slot, {}, pattern(10, 1)));
  ASSERT_TRUE(table.queue(*slot, {7, 3, 0}, pattern(11, 2)));
  ASSERT_TRUE(table.queue(*slot, {7, 9, 0}, pattern(12, 3)));  // claims a rank that nobody owns
  ASSERT_TRUE(table.queue(*other, {7, 2, 0}, pattern(13, 4)));
  auto taken = table.take(slot.get(), {});
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(taken[0].source, -1);
  EXPECT_EQ(taken[0].payload, pattern(10, 1));
  taken = table.take(nullptr, {7, any_rank, 0});
  ASSERT_EQ(taken.size(), 2U);
  EXPECT_EQ(taken[0].source, 3);
  EXPECT_EQ(taken[1].source, 2);
  EXPECT_EQ(granted, 0U);
  std::size_t queued = 0;
  while (table.queue(*other, {}, pattern(1024, 5))) ++queued;
  EXPECT_EQ(queued, notify_window / notify_cost(1024));
  EXPECT_EQ(table.take(other.get(), {}).size(), queued);
  while (table.queue(*slot, {}, pattern(1024, 6))) {
  }
  table.take(slot.get(), {});
  EXPECT_GE(granted, notify_window / 2);
  table.remove_peer(slot, Status(Code::closed, "left"));
}

TEST(NotifyTable, WaitsForWhatADepartedPeerNeverRaisedLeaveNothing) {
  auto table = make_table();
  const auto slot = table.add_peer();
  ASSERT_TRUE(slot->raise({}, 7));
  table.remove_peer(slot, Status(Code::closed, "left"));
  const std::uint64_t before = table.departed_bytes();
  for (std::uint64_t id = 0; id < 2000; ++id) {
    NotifyWaiter waiter;
    slot->wait({}, 1000 + id, 1, waiter);
    EXPECT_EQ(waiter.status.code(), Code::closed);
  }
  EXPECT_LE(table.departed_bytes(), before + 64 * 300);
}

TEST(NotifyTable, CreditNeverRunsBackwards) {
  NotifySlot slot;
  EXPECT_TRUE(slot.has_credit(notify_window));
  EXPECT_FALSE(slot.has_credit(notify_window + 1));
  slot.spend(1000);
  EXPECT_FALSE(slot.acknowledge(1001));
  EXPECT_TRUE(slot.acknowledge(600));
  EXPECT_FALSE(slot.acknowledge(500));
  EXPECT_TRUE(slot.has_credit(notify_window - 400));
}

}  // namespace
}  // namespace hmc
