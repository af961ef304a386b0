// What two-sided messages are made of, each by itself: matching, credit, which side still uses the memory.
#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "comm/messages/call_watchers.h"
#include "comm/messages/credit.h"
#include "comm/messages/matching.h"
#include "comm/messages/operations.h"
#include "testing.h"

namespace hmc::messaging {
namespace {

const auto* peer_at(std::uintptr_t n) { return reinterpret_cast<const PeerState*>(n << 6); }

TEST(Matching, TakesOnlyTheLastOfEachAddressThatMeetACondition) {
  OrderedEntries<int> entries;
  const Address one{peer_at(1), {1, 0, 0}}, other{peer_at(2), {1, 0, 0}};
  for (const int value : {1, 2, 3, 5, 7}) entries.add(one, value, value);
  for (const int value : {9, 11}) entries.add(other, value, value);
  const auto odd = [](const Address&, int value) { return value % 2 == 1; };
  EXPECT_EQ(entries.take_last_if([&](const Address& from, int value) { return from == one && odd(from, value); }),
            (std::vector<int>{7, 5, 3}));
  EXPECT_EQ(entries.size(), 4U);
  EXPECT_EQ(entries.take_last_if(odd).size(), 2U);
  EXPECT_FALSE(entries.find(other, [](const auto&) { return true; }));
  const auto first = entries.find(one, [](const auto&) { return true; });
  ASSERT_TRUE(first);
  EXPECT_EQ(entries.take(first), 1);
  entries.add(other, 0, 13);
  EXPECT_EQ(entries.size(), 2U);
}

// Against a plain list of posted receives and one of messages, both in order.
TEST(Matching, TakesTheEarliestThatFits) {
  struct Posted {
    Address wanted;
    std::int64_t tag;
    int value;
  };
  Matcher<std::shared_ptr<int>, std::shared_ptr<int>> matcher([](const Address&) { return true; });
  std::deque<Posted> receives, messages;
  std::mt19937 random(7);
  const auto below = [&](unsigned n) { return static_cast<std::uint32_t>(random() % n); };
  const auto meets = [](const Posted& receive, const Posted& message) {
    const Envelope &want = receive.wanted.envelope, &has = message.wanted.envelope;
    const bool from = receive.wanted.any() ? want.scope == has.scope && want.dst == has.dst : receive.wanted == message.wanted;
    return from && tag_fits(receive.tag, message.tag);
  };
  int wild = 0;
  for (int i = 0; i < 20000; ++i) {
    // Receives from any source only in the second half, and more addresses than empty lists are kept for.
    const bool any = i > 10000 && below(4) == 0;
    const std::uint32_t source = below(i % 8000 < 4000 ? 3 : 400);
    const Address from{peer_at(source + 1), {1, source, 0}};
    const std::int64_t tag = below(3);
    if (below(2) == 0) {
      const Posted receive{any ? Address{nullptr, {1, any_rank, 0}} : from, below(5) == 0 ? any_tag : tag, i};
      const auto fits = [&](const Posted& message) { return meets(receive, message); };
      const auto expected = std::ranges::find_if(messages, fits);
      const auto message = matcher.match_receive(receive.wanted, receive.tag);
      ASSERT_EQ(message != nullptr, expected != messages.end()) << i;
      wild += any;
      if (message == nullptr) {
        matcher.post(receive.wanted, receive.tag, std::make_shared<int>(i));
        receives.push_back(receive);
      } else {
        ASSERT_EQ(*message, expected->value);
        messages.erase(expected);
      }
    } else {
      const Posted message{from, tag, i};
      const auto fits = [&](const Posted& receive) { return meets(receive, message); };
      const auto expected = std::ranges::find_if(receives, fits);
      const auto receive = matcher.match_message(from, tag);
      ASSERT_EQ(receive != nullptr, expected != receives.end()) << i;
      if (receive == nullptr) {
        matcher.stash(from, tag, matcher.unexpected().arrival(), std::make_shared<int>(i));
        messages.push_back(message);
      } else {
        ASSERT_EQ(*receive, expected->value);
        receives.erase(expected);
      }
    }
    if (i % 2500 == 2499) {
      const auto odd = [](int value) { return value % 2 == 1; };
      static_cast<void>(matcher.posted().take_if([&](const Address&, const auto& value) { return odd(*value); }));
      std::erase_if(receives, [&](const Posted& receive) { return odd(receive.value); });
      ASSERT_EQ(matcher.posted().size(), receives.size());
      ASSERT_EQ(matcher.unexpected().size(), messages.size());
    }
  }
  EXPECT_GT(wild, 300);
}

TEST(Matching, EntriesTakenKeepNothing) {
  OrderedEntries<std::shared_ptr<int>> entries;
  const Address from{peer_at(1), {}};
  std::weak_ptr<int> gone;
  {
    auto value = std::make_shared<int>(1);
    gone = value;
    const auto place = entries.add(from, 0, std::move(value));
    EXPECT_EQ(*entries.take(place), 1);
  }
  EXPECT_TRUE(gone.expired());
}

TEST(MessageCredit, IsSpentAndGivenBackOnce) {
  SentCredit sent;
  for (std::uint64_t i = 0; i < head_credit; ++i) {
    ASSERT_TRUE(sent.has_head());
    sent.spend(i == 0 ? payload_credit : 0);
  }
  EXPECT_FALSE(sent.has_head());
  EXPECT_TRUE(sent.has_payload(0));
  EXPECT_FALSE(sent.has_payload(1));
  EXPECT_FALSE(sent.take_back({payload_credit + 1, 1})) << "of more than was sent";
  EXPECT_FALSE(sent.take_back({0, head_credit + 1}));
  EXPECT_TRUE(sent.take_back({payload_credit, head_credit}));
  EXPECT_TRUE(sent.has_payload(payload_credit));
  EXPECT_FALSE(sent.take_back({0, 1}));
}

TEST(MessageCredit, HoldsNoMoreThanWasGranted) {
  HeldCredit payloads, heads;
  EXPECT_TRUE(payloads.hold(payload_credit));
  EXPECT_FALSE(payloads.hold(1));
  for (std::uint64_t i = 0; i < head_credit; ++i) ASSERT_TRUE(heads.hold(0));
  EXPECT_EQ(heads.memory(), head_credit * unexpected_bytes);
  EXPECT_FALSE(heads.hold(0));
  heads.release_all();
  EXPECT_EQ(heads.memory(), 0U);
}

TEST(MessageCredit, IsGivenBackAtHalfOrWhenTheSenderMayWait) {
  HeldCredit credit;
  credit.consume(payload_credit / 2 - 1);
  EXPECT_FALSE(credit.take_due());
  credit.consume(1);
  const auto due = credit.take_due();
  ASSERT_TRUE(due);
  EXPECT_EQ(due->payload, payload_credit / 2);
  EXPECT_EQ(due->heads, 2U);
  EXPECT_FALSE(credit.take_due()) << "it was taken";
  // The sender has none left: the rest lies here unread.
  for (std::uint64_t i = 0; i < head_credit - head_credit / 16; ++i) ASSERT_TRUE(credit.hold(0));
  for (std::uint64_t i = 1; i < head_credit / 16; ++i) credit.consume(0);
  EXPECT_FALSE(credit.take_due());
  credit.consume(0);
  EXPECT_TRUE(credit.take_due());
}

TEST(CallWatchers, HearOfTheirScopeUntilTheyEnd) {
  struct Watcher final : CallWatcher {
    void on_call(const PeerState&, const Envelope& envelope, std::int64_t tag, std::uint32_t call) override {
      told.push_back({envelope.scope, tag, call});
    }
    std::vector<std::tuple<std::uint32_t, std::int64_t, std::uint32_t>> told;
  } one, two;
  CallWatchers watchers;
  const auto tell = [&](std::uint32_t scope) { watchers.tell(*peer_at(1), {{scope, 0, 1}, 5, 6}); };
  watchers.set(1, &one);
  watchers.set(2, &two);
  for (const std::uint32_t scope : {1U, 2U, 2U, 3U}) tell(scope);
  watchers.set(2, nullptr);
  watchers.set(3, nullptr);
  tell(2);
  EXPECT_EQ(one.told.size(), 1U);
  ASSERT_EQ(two.told.size(), 2U);
  EXPECT_EQ(two.told.back(), std::make_tuple(2U, 5, 6U));
}

TEST(MessageEnds, WaitForBothSides) {
  Ends ends;
  EXPECT_FALSE(ends.over());
  ends.move();
  ends.peer_over = true;
  EXPECT_FALSE(ends.over()) << "its own transfer moves";
  ends.own_over();
  EXPECT_TRUE(ends.over());
}

TEST(MessageEnds, WithoutThePeerOnlyWhereItAccessesNothing) {
  Ends ends;
  ends.exposed = ends.peer_hopeless = true;
  EXPECT_FALSE(ends.over());
  ends.exposed = false;
  EXPECT_TRUE(ends.over());
  ends.move();
  EXPECT_FALSE(ends.over()) << "the memory is in use whatever happened";
}

TEST(MessageEnds, ADeviceErrorIsDoubtedOnce) {
  Ends ends;
  ends.move();
  EXPECT_TRUE(ends.doubt());
  EXPECT_FALSE(ends.moving());
  ends.peer_over = true;
  EXPECT_FALSE(ends.over()) << "whether the peer lives is not known yet";
  EXPECT_FALSE(ends.doubt());
  EXPECT_TRUE(ends.over());
  ends.fail(Status());
  ends.fail(Status(Code::device, "first"));
  ends.fail(Status(Code::closed, "second"));
  EXPECT_EQ(ends.outcome.code(), Code::device);
}

}  // namespace
}  // namespace hmc::messaging
