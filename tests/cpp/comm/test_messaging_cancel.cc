// Cancel, deadlines and ends of two-sided messages in every phase: nothing is written once the caller has its memory back.
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "progress/work_state.h"
#include "ways.h"

namespace hmc {
namespace {

using namespace testing;

class MessagingEnds : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Ways, MessagingEnds, ::testing::ValuesIn(all_ways()), [](const auto& p) { return p.param; });

void pause(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }
bool says(const Status& status, std::string_view words) { return status.message().find(words) != std::string_view::npos; }

TEST_P(MessagingEnds, ACancelledReceiveIsWithdrawn) {
  const WayPair pair(GetParam());
  for (const std::size_t size : {40U, 300'000U}) {
    Guarded first(size), second(size), third(size);
    const auto cancelled = *pair.ba.irecv(first.view(), 1);
    const auto kept = *pair.ba.irecv(second.view(), 1);
    HMC_EXPECT_OK(cancelled.cancel());
    EXPECT_EQ(cancelled.status().code(), Code::cancelled) << cancelled.status().str();
    EXPECT_EQ(cancelled.cancel().code(), Code::invalid_argument);
    auto bytes = pattern(size, 4);
    HMC_ASSERT_OK(pair.ab.send(view(bytes), 1, soon()));
    HMC_ASSERT_OK(kept.wait(soon()));
    EXPECT_EQ(kept.cancel().code(), Code::invalid_argument);
    EXPECT_TRUE(second.holds(size, 4));
    // A deadline withdraws as well, of the blocking forms alike.
    EXPECT_EQ(pair.ba.recv(third.view(), 1, soon(0.01)).status().code(), Code::timeout);
    EXPECT_EQ(pair.ba.recv(third.view(), any_tag, soon(0)).status().code(), Code::timeout);
    const auto sent = *pair.ab.isend(view(bytes), 1);
    pause(5);
    EXPECT_TRUE(third.untouched());
    EXPECT_TRUE(first.untouched());
    EXPECT_EQ(pair.ba.recv(third.view(), 1, soon())->bytes, size);
    EXPECT_TRUE(third.holds(size, 4));
    HMC_EXPECT_OK(sent.wait(soon()));
  }
}

// A timed-out wait is not a cancel.
TEST_P(MessagingEnds, AWorkOutlivesItsWaitAndItsHandle) {
  const WayPair pair(GetParam());
  Guarded first(100'000), second(100'000);
  const auto received = *pair.ba.irecv(first.view(), 1);
  EXPECT_EQ(received.wait(soon(0.01)).code(), Code::timeout);
  EXPECT_FALSE(received.done());
  std::atomic<bool> landed{false}, sent{false};
  {
    const auto dropped = *pair.ba.irecv(second.view(), 1);
    dropped.then([&landed](const Status& status) { landed = status.ok(); });
  }
  auto one = pattern(100'000, 1), two = pattern(100'000, 2);
  HMC_ASSERT_OK(pair.ab.send(view(one), 1, soon()));
  HMC_ASSERT_OK(received.wait(soon()));
  EXPECT_TRUE(first.holds(100'000, 1));
  {
    const auto dropped = *pair.ab.isend(view(two), 1);
    dropped.then([&sent](const Status& status) { sent = status.ok(); });
  }
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while ((!landed || !sent) && std::chrono::steady_clock::now() < give_up) pause(1);
  ASSERT_TRUE(landed && sent);
  EXPECT_TRUE(second.holds(100'000, 2));
}

// Announced but not matched: cancel asks the receiver, who gives it back; its place in the order is free.
TEST_P(MessagingEnds, ACancelledAnnouncementIsTakenBack) {
  const WayPair pair(GetParam());
  auto first = pattern(200'000, 1), second = pattern(200'000, 2);
  const auto cancelled = *pair.ab.isend(view(first), 1);
  const auto kept = *pair.ab.isend(view(second), 1);
  pause(5);
  const Status late = cancelled.cancel();
  EXPECT_TRUE(late.ok() || late.code() == Code::unsupported) << late.str();
  const Status end = cancelled.wait(soon());
  EXPECT_EQ(end.code(), Code::cancelled) << end.str();
  std::fill(first.begin(), first.end(), std::byte{0});
  Guarded in(200'000);
  EXPECT_EQ(pair.ba.recv(in.view(), 1, soon())->bytes, 200'000U);
  EXPECT_TRUE(in.holds(200'000, 2));
  HMC_EXPECT_OK(kept.wait(soon()));
  // So does a deadline, which is no cancellation to the caller, whenever the peer's answer to the withdrawal comes.
  for (int round = 0; round < 40; ++round) {
    const Status status = pair.ab.send(view(second), 1, soon(0.001));
    EXPECT_EQ(status.code(), Code::timeout) << status.str();
  }
  // What follows the withdrawal arrives behind it.
  auto behind = pattern(40, 3);
  HMC_ASSERT_OK(pair.ab.send(view(behind), 2, soon()));
  EXPECT_EQ(pair.ba.recv(in.view(), 2, soon())->bytes, 40U);
  EXPECT_EQ(pair.ba.recv(in.view(), 1, soon(0.02)).status().code(), Code::timeout);
}

// At any moment: it either ends as cancelled, nothing is written any more and the message is there for the next receive, or it
// completes with all of it.
TEST_P(MessagingEnds, CancelOfAReceiveAtAnyMoment) {
  const WayPair pair(GetParam());
  std::mt19937 random(7);
  int stopped = 0, completed = 0;
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    const std::size_t size = round % 3 == 0 ? 5000 : 3'000'001;
    const auto seed = static_cast<std::uint64_t>(round);
    auto out = pattern(size, seed);
    Guarded in(size);
    const bool posted = round % 2 == 0;
    Result<Work> received = Work();
    if (posted) received = pair.ba.irecv(in.view(), 2);
    const auto sent = *pair.ab.isend(view(out), 2);
    if (!posted) received = pair.ba.irecv(in.view(), 2);
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 1500);
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    const Status cancelled = received->cancel();
    if (cancelled.ok()) {
      ++stopped;
      EXPECT_EQ(received->status().code(), Code::cancelled);
      fill_pattern(in.inner(), 1000 + seed);
      // Whether they had met or not, the next receive gets the message.
      std::vector<std::byte> next(size);
      const auto after = *pair.ba.irecv(view(next), 2);
      HMC_ASSERT_OK(after.wait(soon()));
      EXPECT_EQ(first_mismatch(next, seed), -1);
      HMC_EXPECT_OK(sent.wait(soon()));
      EXPECT_TRUE(in.holds(size, 1000 + seed)) << "written after its cancel";
    } else {
      ++completed;
      EXPECT_TRUE(cancelled.code() == Code::unsupported || cancelled.code() == Code::invalid_argument) << cancelled.str();
      const Status end = received->wait(soon());
      HMC_EXPECT_OK(end);
      EXPECT_TRUE(in.holds(size, seed));
      HMC_EXPECT_OK(sent.wait(soon()));
    }
  }
  RecordProperty("stopped", stopped);
  RecordProperty("completed", completed);
}

// The blocking form has no handle to ask: what it says about the memory must hold.
TEST_P(MessagingEnds, ADeadlineAmidTheTransfer) {
  const WayPair pair(GetParam());
  std::mt19937 random(11);
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(round);
    constexpr std::size_t size = 3'000'001;
    const auto seed = static_cast<std::uint64_t>(round);
    auto out = pattern(size, seed);
    auto in = std::make_unique<Guarded>(size);
    const auto sent = *pair.ab.isend(view(out), 2);
    const auto info = pair.ba.recv(in->view(), 2, soon(static_cast<double>(random() % 1500) * 1e-6));
    if (info.ok()) {
      EXPECT_TRUE(in->holds(size, seed));
    } else {
      EXPECT_EQ(info.status().code(), Code::timeout) << info.status().str();
      const bool withdrawn = says(info.status(), "nothing more is read or written");
      EXPECT_NE(withdrawn, says(info.status(), "may still be used")) << info.status().str();
      if (withdrawn) fill_pattern(in->inner(), 500 + seed);
      if (withdrawn) {  // the message is still to be had
        Guarded next(size);
        HMC_EXPECT_OK(pair.ba.recv(next.view(), 2, soon()).status());
        EXPECT_TRUE(next.holds(size, seed));
      }
      if (withdrawn) {
        EXPECT_TRUE(in->holds(size, 500 + seed)) << "written after its deadline";
      }
    }
    HMC_EXPECT_OK(sent.wait(soon()));
  }
}

// The order stays, and a receive that waits already gets what another one gives back.
TEST_P(MessagingEnds, WhatACancelledReceiveGivesBackKeepsItsPlace) {
  const WayPair pair(GetParam());
  constexpr std::size_t size = 12'000'003;  // under way for a while
  auto first = pattern(size, 1), second = pattern(3000, 2), third = pattern(100'000, 3);
  int stopped = 0;
  for (int round = 0; round < 6; ++round) {
    SCOPED_TRACE(round);
    std::vector<std::byte> in(size), next(size), then(size), last(size);
    const auto received = *pair.ba.irecv(view(in), 5);
    const Work sent[] = {*pair.ab.isend(view(first), 5), *pair.ab.isend(view(second), 5), *pair.ab.isend(view(third), 6)};
    while (peek(in.front()) == std::byte{0} && !received.done()) std::this_thread::yield();
    Result<Work> after = Work(), wild = Work();
    const bool waits = round % 2 == 0;
    if (waits) after = pair.ba.irecv(view(next), 5);  // gets the second, which has come, or what is given back
    const Status cancelled = received.cancel();
    if (!waits) after = pair.ba.irecv(view(next), 5);
    HMC_ASSERT_OK(after->wait(soon()));
    HMC_ASSERT_OK(pair.ba.recv(view(then), any_tag, soon()).status());
    if (cancelled.ok()) {
      ++stopped;
      EXPECT_EQ(received.status().code(), Code::cancelled);
      HMC_ASSERT_OK(pair.ba.recv(view(last), any_tag, soon()).status());
      const bool held = !waits || after->info().bytes == size;  // else the second had met the waiting receive before
      EXPECT_EQ(after->info().bytes, held ? size : 3000U);
      EXPECT_EQ(first_mismatch(std::span(next).first(after->info().bytes), held ? 1 : 2), -1);
      EXPECT_EQ(first_mismatch(std::span(then).first(held ? 3000 : size), held ? 2 : 1), -1);
      EXPECT_EQ(first_mismatch(std::span(last).first(100'000), 3), -1);
    } else {
      HMC_ASSERT_OK(received.wait(soon()));
      EXPECT_EQ(first_mismatch(in, 1), -1);
      EXPECT_EQ(first_mismatch(std::span(next).first(3000), 2), -1);
      EXPECT_EQ(first_mismatch(std::span(then).first(100'000), 3), -1);
    }
    for (const Work& each : sent) HMC_EXPECT_OK(each.wait(soon()));
  }
  RecordProperty("stopped", stopped);
  EXPECT_EQ(pair.b.counters().at("messages.unread"), 0U);
}

// More often than there is credit for messages: what is given back costs none and frees none twice.
TEST_P(MessagingEnds, CreditOutlivesGivingBack) {
  const WayPair pair(GetParam());
  auto out = pattern(300'000, 8);
  for (int round = 0; round < 300; ++round) {
    const auto sent = *pair.ab.isend(view(out), 1);
    std::vector<std::byte> in(out.size());
    Work received = *pair.ba.irecv(view(in), 1);
    for (int turn = 0; turn < 20 && received.cancel().ok(); ++turn) received = *pair.ba.irecv(view(in), 1);
    HMC_ASSERT_OK(received.wait(soon()));
    EXPECT_EQ(first_mismatch(in, 8), -1);
    HMC_ASSERT_OK(sent.wait(soon()));
  }
  ASSERT_TRUE(pair.ab.alive());
}

// Peers and Contexts that go take every operation with them, once each, and nothing lands afterwards.
TEST_P(MessagingEnds, GoingAwayEndsEverything) {
  for (const std::string who : {"peer", "far peer", "context", "far context"}) {
    SCOPED_TRACE(who);
    const WayPair pair(GetParam());
    constexpr std::size_t size = 2'000'003;
    std::vector<std::unique_ptr<Guarded>> in;
    std::vector<std::vector<std::byte>> out;
    std::vector<Work> receives, sends;
    for (std::uint64_t i = 0; i < 6; ++i) {
      out.push_back(pattern(i % 2 == 0 ? 10 : size, i));
      in.push_back(std::make_unique<Guarded>(size));
      // Some match, some receives and some sends stay alone.
      receives.push_back(*pair.ba.irecv(in[i]->view(), static_cast<std::int64_t>(i < 4 ? 1 : 2)));
    }
    std::vector<std::atomic<int>> ended(12);
    for (std::size_t i = 0; i < 6; ++i) {
      const auto sent = pair.ab.isend(view(out[i]), i < 4 ? 1 : 3);
      ASSERT_TRUE(sent.ok()) << sent.status().str();
      sends.push_back(*sent);
      sends[i].then([&, i](const Status&) { ended[i].fetch_add(1); });
      receives[i].then([&, i](const Status&) { ended[6 + i].fetch_add(1); });
    }
    if (who == "peer") pair.ab.close();
    if (who == "far peer") pair.ba.close();
    if (who == "context") HMC_EXPECT_OK(pair.a.close(soon()));
    if (who == "far context") HMC_EXPECT_OK(pair.b.close(soon()));
    for (std::size_t i = 0; i < 6; ++i) {
      const Status received = receives[i].wait(soon());
      EXPECT_TRUE(received.ok() || received.code() == Code::closed) << received.str();
      if (received.ok()) {
        EXPECT_EQ(first_mismatch(in[i]->inner().first(receives[i].info().bytes), i), -1);
      }
      fill_pattern(in[i]->inner(), 900 + i);
      const Status sent = sends[i].wait(soon());
      EXPECT_TRUE(sent.ok() || sent.code() == Code::closed) << sent.str();
      EXPECT_TRUE(received.ok() || i < 4 || received.code() == Code::closed) << received.str();
    }
    EXPECT_FALSE(receives[4].status().ok());
    pause(5);
    for (std::size_t i = 0; i < 6; ++i) EXPECT_TRUE(in[i]->holds(size, 900 + i)) << "written after its end";
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (auto& count : ended) {
      while (count.load() == 0 && std::chrono::steady_clock::now() < give_up) pause(1);
      EXPECT_EQ(count.load(), 1);
    }
    // The other side says goodbye only after the last of these operations has ended.
    while (pair.ab.alive() && std::chrono::steady_clock::now() < give_up) pause(1);
    EXPECT_EQ(pair.ab.isend(view(out[0]), 1).status().code(), Code::closed);
  }
}

// As a collective does whose first receive ends.
TEST_P(MessagingEnds, ACompletionMayCancelOtherReceivesFromTheSamePeer) {
  const WayPair pair(GetParam());
  Guarded in(3 * 100);
  std::vector<Work> receives;
  for (std::size_t i = 0; i < 3; ++i) receives.push_back(*pair.ba.irecv({in.inner().data() + i * 100, 100}, 1));
  {
    const auto lock = receives[0].state()->engine()->lock();
    for (const Work& each : receives) {
      each.state()->on_complete_locked([&](const Status&) {
        for (const Work& other : receives) {
          if (!other.done()) static_cast<void>(other.state()->cancel_locked());
        }
      });
    }
  }
  pair.ab.close();
  for (const Work& each : receives) {
    const Status status = each.wait(soon());
    EXPECT_TRUE(status.code() == Code::closed || status.code() == Code::cancelled) << status.str();
  }
  EXPECT_TRUE(in.untouched());
}

// What came before the goodbye is still there for whoever asks.
TEST_P(MessagingEnds, WhatArrivedBeforeTheEndIsStillReceived) {
  const WayPair pair(GetParam());
  auto small = pattern(500, 1), large = pattern(500'000, 2);
  HMC_ASSERT_OK(pair.ab.send(view(small), 1, soon()));
  const auto announced = *pair.ab.isend(view(large), 2);
  pause(5);
  pair.ab.close();
  EXPECT_EQ(announced.wait(soon()).code(), Code::closed);
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (pair.ba.alive() && std::chrono::steady_clock::now() < give_up) pause(1);
  Guarded in(500'000);
  EXPECT_EQ(pair.ba.recv(in.view(), 2, soon()).status().code(), Code::closed);
  EXPECT_TRUE(in.untouched());
  EXPECT_EQ(pair.ba.recv(in.view(), 1, soon())->bytes, 500U);
  EXPECT_TRUE(in.holds(500, 1));
  EXPECT_EQ(pair.ba.recv(in.view(), 1, soon()).status().code(), Code::closed);
}

}  // namespace
}  // namespace hmc
