// Waits as Works: served in turn, ended by their deadline without anybody waiting, cancelled without a trace.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "comm/context_state.h"
#include "comm/onesided/notifier.h"
#include "comm/session/rank_scopes.h"
#include "support.h"

namespace hmc {
namespace {

using testing::make_context;
using testing::Pair;
using testing::pattern;
using testing::soon;

Notify as_payload(const std::vector<std::byte>& bytes) { return Notify(std::span<const std::byte>(bytes)); }

class Waits : public ::testing::TestWithParam<std::string> {
 protected:
  Pair pair_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(, Waits, ::testing::ValuesIn(testing::peer_transports()), [](const auto& param) { return param.param; });

TEST_P(Waits, DeadlinesExpireByThemselves) {
  const auto deadline = [] { return Deadline::after_seconds(0.05); };
  std::vector<Work> works = {*pair_.ab.ilookup("nothing", deadline()), *pair_.ab.iwait_notify(1, 1, deadline()),
                             *pair_.b.iaccept(deadline())};
  const Work empty = *pair_.ab.inotifications(deadline());
  const auto limit = soon();
  const auto all_done = [&] { return empty.done() && std::ranges::all_of(works, [](const Work& work) { return work.done(); }); };
  while (!all_done() && !limit.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(all_done());
  for (const Work& work : works) EXPECT_EQ(work.status().code(), Code::timeout) << work.status().str();
  HMC_EXPECT_OK(empty.status());
}

TEST_P(Waits, DeliverWhatArrives) {
  const auto counted = *pair_.ba.iwait_notify(3, 2);
  const auto payloads = *pair_.ba.inotifications();
  const auto found = *pair_.ab.ilookup("later");
  EXPECT_EQ(payloads.take().status().code(), Code::would_block);
  const auto target = *pair_.b.buffer(4096);
  HMC_ASSERT_OK(pair_.b.publish("later", target));
  HMC_ASSERT_OK(pair_.ab.notify(3));
  HMC_ASSERT_OK(pair_.ab.inotify(3)->wait(soon()));
  const auto bytes = pattern(77, 5);
  HMC_ASSERT_OK(pair_.ab.inotify(as_payload(bytes))->wait(soon()));
  HMC_ASSERT_OK(counted.wait(soon()));
  HMC_ASSERT_OK(payloads.wait(soon()));
  const auto taken = payloads.take();
  ASSERT_TRUE(taken.ok()) << taken.status().str();
  ASSERT_EQ(taken->size(), 1U);
  EXPECT_EQ(taken->front().payload, bytes);
  EXPECT_EQ(payloads.take().status().code(), Code::invalid_argument);
  HMC_ASSERT_OK(found.wait(soon()));
  const auto remote = found.take();
  ASSERT_TRUE(remote.ok()) << remote.status().str();
  EXPECT_EQ(remote->size(), 4096U);
  const auto again = *pair_.ab.iimport(*target.descriptor(), soon());
  HMC_ASSERT_OK(again.wait(soon()));
  EXPECT_TRUE(again.take()->alive());
}

TEST_P(Waits, CancelConsumesNothing) {
  for (int round = 0; round < 20; ++round) {
    const auto counted = *pair_.ba.iwait_notify(3, 2);
    const auto payloads = *pair_.ba.inotifications();
    HMC_ASSERT_OK(pair_.ab.notify(3));
    HMC_ASSERT_OK(counted.cancel());
    HMC_ASSERT_OK(payloads.cancel());
    EXPECT_EQ(counted.status().code(), Code::cancelled);
    EXPECT_EQ(payloads.take().status().code(), Code::cancelled);
    HMC_ASSERT_OK(pair_.ab.notify(3));
    const auto bytes = pattern(100, static_cast<std::uint64_t>(round));
    HMC_ASSERT_OK(pair_.ab.notify(as_payload(bytes)));
    HMC_ASSERT_OK(pair_.ba.wait_notify(3, 2, soon()));
    const auto got = pair_.ba.notifications(soon());
    ASSERT_TRUE(got.ok() && got->size() == 1);
    EXPECT_EQ(got->front().payload, bytes);
  }
}

// Their Communicator is closed before they return: they are discarded, and hold no credit.
TEST_P(Waits, WhatReturnsToAClosedGroupHoldsNothingUp) {
  Notifier& from = pair_.a.state()->notifier();
  Notifier& to = pair_.b.state()->notifier();
  RankScopes& scopes = pair_.b.state()->scopes();
  const auto payload = pattern(max_notify_payload, 1);
  const auto groups = static_cast<std::uint32_t>(notify_window / notify_cost(payload.size()) + 1);
  for (std::uint32_t scope = 100; scope < 100 + groups; ++scope) {
    const Envelope envelope{scope, 0, 1};
    {
      const auto lock = pair_.b.state()->engine()->lock();
      scopes.add(scope, {pair_.ba.state(), pair_.b.state()->self()});
    }
    const auto payloads = *to.inotifications(pair_.ba.state(), envelope, Deadline::never());
    const auto counted = *to.iwait_notify(pair_.ba.state(), envelope, 3, 1, Deadline::never());
    HMC_ASSERT_OK(from.notify(pair_.ab.state(), as_payload(payload), envelope, soon()));
    HMC_ASSERT_OK(from.notify(pair_.ab.state(), 3, envelope, soon()));
    HMC_ASSERT_OK(payloads->wait(soon()));
    HMC_ASSERT_OK(counted->wait(soon()));
    {
      const auto lock = pair_.b.state()->engine()->lock();
      scopes.remove(scope);
    }
    HMC_EXPECT_OK(counted->withdraw());
  }
  HMC_ASSERT_OK(pair_.ab.inotify(as_payload(payload), soon(20))->wait(soon()));
  EXPECT_EQ(pair_.ba.notifications(soon())->size(), 1U);
}

TEST_P(Waits, WithdrawReturnsWhatWasConsumed) {
  const auto first = pattern(50, 1), second = pattern(60, 2);
  {
    const auto counted = *pair_.ba.iwait_notify(3, 2);
    const auto payloads = *pair_.ba.inotifications();
    HMC_ASSERT_OK(pair_.ab.notify(3));
    HMC_ASSERT_OK(pair_.ab.notify(3));
    HMC_ASSERT_OK(pair_.ab.notify(as_payload(first)));
    HMC_ASSERT_OK(counted.wait(soon()));
    HMC_ASSERT_OK(payloads.wait(soon()));
    HMC_EXPECT_OK(counted.withdraw());
    HMC_EXPECT_OK(payloads.withdraw());
    EXPECT_EQ(counted.withdraw().code(), Code::invalid_argument);
    EXPECT_EQ(payloads.take().status().code(), Code::invalid_argument);
  }
  HMC_ASSERT_OK(pair_.ba.wait_notify(3, 2, soon()));
  {
    const auto dropped = *pair_.ba.inotifications();  // gets it again, and is dropped with it
    HMC_ASSERT_OK(dropped.wait(soon()));
  }
  pair_.b.progress();  // a dropped payload returns to its queue at the next poll, which may see what comes behind it first
  HMC_ASSERT_OK(pair_.ab.notify(as_payload(second)));
  std::vector<Notification> got;
  while (got.size() < 2) {
    auto more = pair_.ba.notifications(soon());
    ASSERT_TRUE(more.ok() && !more->empty());
    got.insert(got.end(), more->begin(), more->end());
  }
  EXPECT_EQ(got[0].payload, first);
  EXPECT_EQ(got[1].payload, second);
}

// What was sent, or found, is not taken back.
TEST_P(Waits, WhatConsumedNothingIsNotWithdrawnOnceComplete) {
  const auto raised = *pair_.ab.inotify(9);
  HMC_ASSERT_OK(raised.wait(soon()));
  EXPECT_EQ(raised.withdraw().code(), Code::invalid_argument);
  HMC_ASSERT_OK(pair_.ba.wait_notify(9, 1, soon()));
  const auto target = *pair_.b.buffer(64);
  const auto imported = *pair_.ab.iimport(*target.descriptor(), soon());
  HMC_ASSERT_OK(imported.wait(soon()));
  EXPECT_EQ(imported.withdraw().code(), Code::invalid_argument);
  EXPECT_TRUE(imported.take().ok());
  HMC_ASSERT_OK(pair_.ab.notify(as_payload(pattern(7, 7))));
  const auto payloads = *pair_.ba.inotifications(soon());
  HMC_ASSERT_OK(payloads.wait(soon()));
  EXPECT_EQ(payloads.take()->size(), 1U);
  EXPECT_EQ(payloads.withdraw().code(), Code::invalid_argument) << "taken before";
}

TEST_P(Waits, WithdrawnPayloadsKeepTheirCredit) {
  const auto bytes = pattern(max_notify_payload, 9);
  constexpr std::size_t count = 5000;  // several windows
  for (std::size_t i = 0; i < count; ++i) HMC_ASSERT_OK(pair_.ab.notify(as_payload(bytes)));
  std::size_t seen = 0;
  for (int round = 0; seen < count; ++round) {
    const auto payloads = *pair_.ba.inotifications(soon());
    HMC_ASSERT_OK(payloads.wait(soon()));
    if (round % 2 == 0) {
      HMC_ASSERT_OK(payloads.withdraw());
      continue;
    }
    const auto taken = payloads.take();
    ASSERT_TRUE(taken.ok() && !taken->empty());
    for (const auto& one : *taken) ASSERT_EQ(one.payload, bytes);
    seen += taken->size();
  }
  EXPECT_EQ(seen, count);
  EXPECT_TRUE(pair_.ab.alive());
}

TEST_P(Waits, EndWithPeerAndContext) {
  const auto counted = *pair_.ba.iwait_notify(1);
  const auto payloads = *pair_.ba.inotifications();
  const auto lookup = *pair_.ba.ilookup("x");
  pair_.ab.close();
  EXPECT_EQ(counted.wait(soon()).code(), Code::closed);
  EXPECT_EQ(payloads.wait(soon()).code(), Code::closed);
  EXPECT_FALSE(lookup.wait(soon()).ok());
  const auto accepted = *pair_.b.iaccept();
  HMC_ASSERT_OK(pair_.b.close(soon()));
  EXPECT_EQ(accepted.wait(soon()).code(), Code::closed);
  EXPECT_EQ(pair_.b.iaccept().status().code(), Code::closed);
}

// A process that is stopped answers nobody, and every attempt takes a connection.
TEST(JoiningWaits, GiveUpTheirConnections) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string path = "/tmp/hmc-silent-" + std::to_string(getpid());
  path.copy(name.sun_path, sizeof name.sun_path - 1);
  unlink(path.c_str());  // of a process that had the same number
  const int silent = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(bind(silent, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  ASSERT_EQ(listen(silent, 64), 0);
  const Context context = make_context();
  const int before = testing::open_descriptors();
  for (int i = 0; i < 20; ++i) HMC_EXPECT_OK(context.iconnect("unix:" + path)->cancel());
  EXPECT_EQ(testing::open_descriptors(), before);
  close(silent);
  unlink(path.c_str());
}

// A peer that is never connected keeps nothing of them.
TEST(JoiningWaits, AreFreedWhenTheyAreCancelled) {
  const Context context = make_context();
  const auto expect = [&context] {
    const auto lock = context.state()->engine()->lock();
    return context.state()->expect_peer({1, 2}, {}, "rank 1");
  };
  const Peer nowhere(expect());
  auto lookup = *nowhere.ilookup("x");
  const std::weak_ptr<WorkState> left = lookup.state();
  HMC_EXPECT_OK(lookup.cancel());
  lookup = {};
  EXPECT_TRUE(left.expired());
}

TEST(JoiningWaits, AcceptsAreServedInTurnAndLoseNoPeer) {
  const Context server = make_context();
  const auto first = *server.iaccept();
  auto second = *server.iaccept();
  HMC_ASSERT_OK(first.cancel());
  const Context client = make_context();
  const auto connecting = *client.iconnect(server.addresses().front(), soon());
  HMC_ASSERT_OK(connecting.wait(soon()));
  EXPECT_TRUE(connecting.take()->alive());
  HMC_ASSERT_OK(second.wait(soon()));
  HMC_EXPECT_OK(second.withdraw());
  EXPECT_EQ(second.take().status().code(), Code::invalid_argument);
  {
    const auto dropped = *server.iaccept();
    HMC_ASSERT_OK(dropped.wait(soon()));
  }
  const auto peer = server.accept(soon());
  ASSERT_TRUE(peer.ok()) << peer.status().str();
  EXPECT_EQ(peer->name(), client.name());
  EXPECT_EQ(server.accept(soon(0)).status().code(), Code::timeout);
}

TEST(JoiningWaits, OwnNamesAreLookedUp) {
  const Context context = make_context();
  const auto self = *context.connect(context.addresses().front(), soon());
  const auto found = *self.ilookup("mine", soon());
  const auto given_up = *self.ilookup("mine");
  HMC_ASSERT_OK(given_up.cancel());
  const auto buffer = *context.buffer(100);
  HMC_ASSERT_OK(context.publish("mine", buffer));
  HMC_ASSERT_OK(found.wait(soon()));
  EXPECT_EQ(found.take()->size(), 100U);
}

}  // namespace
}  // namespace hmc
