// Notifications between two Contexts: counted, with payload, back-pressure, deadlines, ends.
#include <atomic>
#include <chrono>
#include <thread>

#include "comm/context_impl.h"
#include "comm/onesided/notifier.h"
#include "comm/session/rank_scopes.h"
#include "support.h"

namespace hmc {
namespace {

using namespace testing;

class Notifications : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(pair_.ab.valid()); }
  Pair pair_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Transports, Notifications, ::testing::ValuesIn(peer_transports()), [](const auto& p) { return p.param; });

std::span<const std::byte> as_payload(const std::vector<std::byte>& bytes) { return bytes; }

TEST_P(Notifications, CountedIdsAddUp) {
  for (int i = 0; i < 10; ++i) HMC_ASSERT_OK(pair_.ab.notify(77));
  HMC_ASSERT_OK(pair_.ab.notify(78));
  HMC_ASSERT_OK(pair_.ba.wait_notify(78, 1, soon()));
  HMC_ASSERT_OK(pair_.ba.wait_notify(77, 4, soon()));
  HMC_ASSERT_OK(pair_.ba.wait_notify(77, 6, soon()));
  EXPECT_EQ(pair_.ba.wait_notify(77, 1, soon(0.02)).code(), Code::timeout);
  HMC_ASSERT_OK(pair_.ab.notify(77));
  EXPECT_EQ(pair_.ba.wait_notify(77, 2, soon(0.02)).code(), Code::timeout);  // consumes nothing
  HMC_ASSERT_OK(pair_.ba.wait_notify(77, 1, soon()));
  HMC_ASSERT_OK(pair_.ba.wait_notify(5, 0, soon(0)));
  EXPECT_EQ(pair_.ba.wait_notify(1ULL << 63, 1, soon(0)).code(), Code::invalid_argument);
  EXPECT_EQ(pair_.ab.notify(Notify()).code(), Code::invalid_argument);
}

TEST_P(Notifications, PingPong) {
  std::thread other([&] {
    for (int i = 0; i < 2000; ++i) {
      HMC_ASSERT_OK(pair_.ba.wait_notify(1, 1, soon()));
      HMC_ASSERT_OK(pair_.ba.notify(2));
    }
  });
  for (int i = 0; i < 2000; ++i) {
    HMC_ASSERT_OK(pair_.ab.notify(1));
    HMC_ASSERT_OK(pair_.ab.wait_notify(2, 1, soon()));
  }
  other.join();
}

TEST_P(Notifications, PayloadsInOrder) {
  constexpr std::size_t count = 300;
  for (std::size_t i = 0; i < count; ++i) HMC_ASSERT_OK(pair_.ab.notify(as_payload(pattern(1 + i % max_notify_payload, i))));
  std::size_t seen = 0;
  while (seen < count) {
    const auto got = pair_.ba.notifications(soon());
    ASSERT_TRUE(got.ok()) << got.status().str();
    ASSERT_FALSE(got->empty());
    for (const auto& n : *got) {
      EXPECT_EQ(n.source, -1);
      ASSERT_EQ(n.payload, pattern(1 + seen % max_notify_payload, seen));
      ++seen;
    }
  }
  const auto none = pair_.ba.notifications();
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->empty());
}

TEST_P(Notifications, PayloadsWaitForTheirReader) {
  // More than the receiver's window: the rest is held back here, and plain operations still pass.
  const auto source = *pair_.a.buffer(4096);
  const auto target = *pair_.b.buffer(4096);
  fill_pattern(span_of(source), 3);
  const auto remote = *pair_.ab.import(*target.descriptor(), soon());
  const auto payload = pattern(max_notify_payload, 1);
  constexpr std::size_t count = 3000;  // some 3 MiB
  std::vector<Work> works;
  for (std::size_t i = 0; i < count; ++i) {
    auto work = pair_.ab.put(*source.slice(0, 1), *remote.slice(0, 1), {as_payload(payload), Complete::remote});
    ASSERT_TRUE(work.ok()) << work.status().str();
    works.push_back(*work);
  }
  HMC_ASSERT_OK(pair_.ab.put(source, remote, {5, Complete::remote})->wait(soon()));
  HMC_ASSERT_OK(pair_.ba.wait_notify(5, 1, soon()));
  EXPECT_FALSE(works.back().done()) << "the receiver's window has no bound";
  std::size_t seen = 0;
  while (seen < count) {
    const auto got = pair_.ba.notifications(soon());
    ASSERT_TRUE(got.ok()) << got.status().str();
    ASSERT_FALSE(got->empty()) << seen;
    for (const auto& n : *got) ASSERT_EQ(n.payload, payload);
    seen += got->size();
  }
  EXPECT_EQ(seen, count);
  HMC_ASSERT_OK(wait_all(works, soon()));
}

TEST_P(Notifications, CancelOfAHeldBackPut) {
  const auto source = *pair_.a.buffer(64);
  const auto target = *pair_.b.buffer(64);
  fill_pattern(span_of(source), 7);
  fill_pattern(span_of(target), 8);  // from the first put on its bytes may be written
  const auto remote = *pair_.ab.import(*target.descriptor(), soon());
  const auto payload = pattern(max_notify_payload, 1);
  std::vector<Work> works;
  for (int i = 0; i < 1500; ++i) {
    works.push_back(*pair_.ab.put(*source.slice(0, 1), *remote.slice(0, 1), {as_payload(payload), Complete::remote}));
  }
  works.push_back(*pair_.ab.put(*source.slice(1, 9), *remote.slice(1, 9), {as_payload(payload), Complete::remote}));
  ASSERT_FALSE(works.back().done());
  HMC_ASSERT_OK(works.back().cancel());
  EXPECT_EQ(works.back().status().code(), Code::cancelled);
  EXPECT_NE(works.back().status().message().find("nothing was written"), std::string_view::npos);
  std::size_t seen = 0;
  while (seen < works.size() - 1) seen += pair_.ba.notifications(soon())->size();
  HMC_ASSERT_OK(pair_.ab.fence());
  HMC_ASSERT_OK(pair_.ab.notify(1));
  HMC_ASSERT_OK(pair_.ba.wait_notify(1, 1, soon()));
  EXPECT_TRUE(pair_.ba.notifications()->empty());
  auto expected = pattern(64, 8);
  expected[0] = span_of(source)[0];
  EXPECT_TRUE(same_bytes(span_of(target), expected));
}

// Those that come after a Communicator was closed here are discarded, and hold no credit.
TEST_P(Notifications, LateOnesOfAClosedGroupHoldNothingUp) {
  constexpr std::uint32_t scope = 77;
  {
    const auto lock = pair_.b.state()->engine()->lock();
    pair_.b.state()->scopes().add(scope, {pair_.ba.state(), pair_.b.state()->self()});
    pair_.b.state()->scopes().remove(scope);
  }
  Notifier& notifier = pair_.a.state()->notifier();
  const auto payload = pattern(max_notify_payload, 1);
  for (std::uint64_t i = 0; i < 3000; ++i) {
    HMC_ASSERT_OK(notifier.notify(pair_.ab.state(), as_payload(payload), {scope, 0, 1}, soon()));
    HMC_ASSERT_OK(notifier.notify(pair_.ab.state(), i, {scope, 0, 1}, soon()));
  }
  HMC_ASSERT_OK(pair_.ab.inotify(as_payload(payload))->wait(soon(20)));
  HMC_ASSERT_OK(pair_.ab.notify(1));
  HMC_ASSERT_OK(pair_.ba.wait_notify(1, 1, soon()));
  EXPECT_EQ(pair_.ba.notifications(soon())->size(), 1U);
  EXPECT_EQ(testing::counter(pair_.b, "notifications.discarded"), 6000U);
}

// A peer that does not poll takes no more: this side sleeps until there is room, and the rest arrives then.
TEST_P(Notifications, WaitForRoomWithoutPolling) {
  ContextOptions manual;
  manual.progress = Progress::manual;
  const auto slow = make_context(GetParam(), {}, manual);
  const auto connecting = *pair_.a.iconnect(slow.addresses().front(), soon());
  const auto from = *slow.accept(soon());
  HMC_ASSERT_OK(connecting.wait(soon()));
  const auto to = *connecting.take();
  const auto locked = [&](auto look) {
    const auto lock = pair_.a.state()->engine()->lock();
    return look();
  };
  PeerTable& peers = impl_of(*pair_.a.state()).peers();
  std::uint64_t count = 0;
  while (to.notify(3, soon(0.5)).ok()) ++count;
  const auto limit = soon();
  while (locked([&] { return peers.to_pump(); }) && !limit.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_FALSE(locked([&] { return peers.to_pump(); }));
  HMC_ASSERT_OK(from.wait_notify(3, count, soon()));
  EXPECT_TRUE(locked([&] { return to.state()->posts().empty(); }));
}

TEST_P(Notifications, ManyBeforeAnybodyWaits) {
  constexpr std::uint64_t count = 20000;
  for (std::uint64_t i = 0; i < count; ++i) HMC_ASSERT_OK(pair_.ab.notify(i));
  for (std::uint64_t i = 0; i < count; ++i) HMC_ASSERT_OK(pair_.ba.wait_notify(count - 1 - i, 1, soon()));
}

TEST_P(Notifications, SeveralWaitersOnOneId) {
  std::atomic<int> served{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      HMC_EXPECT_OK(pair_.ba.wait_notify(3, 5, soon()));
      ++served;
    });
  }
  for (int i = 0; i < 20; ++i) HMC_ASSERT_OK(pair_.ab.notify(3));
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(served.load(), 4);
  EXPECT_EQ(pair_.ba.wait_notify(3, 1, soon(0)).code(), Code::timeout);
}

// A rank that nothing was sent to yet, and that is dead.
TEST(IdlePeer, IsConnectedByAWaitForPayloads) {
  const Context context = make_context();
  Notifier& notifier = context.state()->notifier();
  for (const std::uint64_t id : {2U, 3U}) {
    std::shared_ptr<PeerState> dead;
    {
      const auto lock = context.state()->engine()->lock();
      dead = context.state()->expect_peer({1, id}, {"unix:/nonexistent"}, "rank 1");
    }
    const Envelope to{7, 0, 1};
    const Status end = id == 2 ? notifier.notifications(dead, to, soon(20)).status()
                               : notifier.inotifications(dead, to, soon(20)).value()->wait(soon());
    EXPECT_EQ(end.code(), Code::peer_lost) << end.str();
  }
}

TEST_P(Notifications, WhatCameBeforeTheGoodbyeIsStillThere) {
  HMC_ASSERT_OK(pair_.ab.notify(1));
  HMC_ASSERT_OK(pair_.ab.notify(as_payload(pattern(8, 8))));
  pair_.ab.close();
  HMC_ASSERT_OK(pair_.ba.wait_notify(1, 1, soon()));
  const auto got = pair_.ba.notifications(soon());
  ASSERT_TRUE(got.ok()) << got.status().str();
  ASSERT_EQ(got->size(), 1U);
  EXPECT_EQ(pair_.ba.wait_notify(1, 1, soon()).code(), Code::closed);
  EXPECT_EQ(pair_.ba.notifications(soon()).status().code(), Code::closed);
  EXPECT_EQ(pair_.ab.notify(1).code(), Code::closed);
}

TEST_P(Notifications, WaiterIsReleasedByContextClose) {
  std::thread closer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    HMC_EXPECT_OK(pair_.b.close(soon()));
  });
  EXPECT_EQ(pair_.ba.wait_notify(1, 1, soon()).code(), Code::closed);
  closer.join();
  EXPECT_EQ(pair_.ba.wait_notify(1, 1, soon()).code(), Code::closed);
}

}  // namespace
}  // namespace hmc
