// What is posted behind a fence waits for the one-sided operations before it, by every call of a Peer.
#include <functional>
#include <thread>

#include "comm/onesided/notify.h"
#include "ways.h"

namespace hmc {
namespace {

using namespace testing;

class Fences : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Ways, Fences, ::testing::ValuesIn(all_ways()), [](const auto& p) { return p.param; });

// Keeps a fence of `from` pending: payload notifications beyond the credit wait until the peer takes some.
class PendingFence {
 public:
  PendingFence(const Peer& from, const Peer& at) : at_(at) {
    const auto payload = pattern(max_notify_payload, 1);
    for (int i = 0; i < sent; ++i) HMC_EXPECT_OK(from.notify(Notify(std::span<const std::byte>(payload))));
    HMC_EXPECT_OK(from.fence());
  }
  void release() const {
    for (int taken = 0; taken < sent;) {
      const auto some = at_.notifications(soon());
      ASSERT_TRUE(some.ok()) << some.status().str();
      taken += static_cast<int>(some->size());
    }
  }

 private:
  static constexpr int sent = 1200;
  Peer at_;
};

struct Door {
  const char* name;
  std::function<void(const Peer& from, std::uint64_t round)> post;
  std::function<void(const Peer& at, std::uint64_t round)> await;
};

TEST_P(Fences, EveryCallWaitsForThePut) {
  const WayPair pair(GetParam());
  const std::size_t size = large(8 << 20), small = 4096;
  const auto source = *pair.a.buffer(size), target = *pair.b.buffer(size);
  const auto flag = *pair.a.buffer(small), flags = *pair.b.buffer(small);
  const auto remote = *pair.ab.import(*target.descriptor()), remote_flags = *pair.ab.import(*flags.descriptor());
  const std::vector<std::uint64_t> offsets{0, 2048};
  const BlockPair blocks{flag, remote_flags, offsets, offsets};
  const auto batch = *pair.ab.prepare_blocks({&blocks, 1}, 1024);
  std::vector<Work> works;
  const auto keep = [&works](const Result<Work>& work) {
    ASSERT_TRUE(work.ok()) << work.status().str();
    works.push_back(*work);
  };
  std::vector<std::byte> message(300'000), received(300'000);
  const auto receive = [&](std::size_t bytes) {
    return [&received, bytes](const Peer& at, std::uint64_t round) {
      HMC_ASSERT_OK(at.recv({received.data(), bytes}, static_cast<std::int64_t>(round), soon()).status());
    };
  };
  const auto wait_notify = [](const Peer& at, std::uint64_t round) { HMC_ASSERT_OK(at.wait_notify(round, 1, soon())); };
  const auto tag = [](std::uint64_t round) { return static_cast<std::int64_t>(round); };
  const std::vector<Door> doors{
      {"send", [&](const Peer& from, std::uint64_t round) { HMC_ASSERT_OK(from.send({message.data(), 8}, tag(round), soon())); },
       receive(8)},
      {"empty send", [&](const Peer& from, std::uint64_t round) { HMC_ASSERT_OK(from.send({}, tag(round), soon())); }, receive(0)},
      {"isend", [&](const Peer& from, std::uint64_t round) { keep(from.isend({message.data(), 8}, tag(round))); }, receive(8)},
      {"large isend", [&](const Peer& from, std::uint64_t round) { keep(from.isend(view(message), tag(round))); },
       receive(message.size())},
      {"notify", [&](const Peer& from, std::uint64_t round) { HMC_ASSERT_OK(from.notify(round)); }, wait_notify},
      {"notify with a payload",
       [&](const Peer& from, std::uint64_t) { HMC_ASSERT_OK(from.notify(Notify(std::span<const std::byte>(message).first(100)))); },
       [&](const Peer& at, std::uint64_t) { ASSERT_EQ(at.notifications(soon())->size(), 1U); }},
      {"put", [&](const Peer& from, std::uint64_t round) { keep(from.put(flag, remote_flags, {.notify = round})); }, wait_notify},
      {"put_blocks", [&](const Peer& from, std::uint64_t round) { keep(from.put_blocks(batch, {.notify = round})); }, wait_notify},
  };
  std::uint64_t round = 100;
  for (int repeat = 0; repeat < 3; ++repeat) {
    for (const Door& door : doors) {
      SCOPED_TRACE(door.name);
      ++round;
      fill_pattern(span_of(source), round);
      std::thread other([&] {
        door.await(pair.ba, round);
        EXPECT_EQ(first_mismatch(span_of(target), round), -1) << door.name;
      });
      keep(pair.ab.put(source, remote, {{}, round % 2 == 0 ? Complete::local : Complete::remote}));
      HMC_EXPECT_OK(pair.ab.fence());
      door.post(pair.ab, round);
      other.join();
      HMC_ASSERT_OK(wait_all(works, soon()));
      works.clear();
      if (HasFailure()) return;
    }
  }
}

TEST_P(Fences, GetReadsWhatWasPutBefore) {
  const WayPair pair(GetParam());
  const std::size_t size = large(8 << 20);
  const auto source = *pair.a.buffer(size), back = *pair.a.buffer(size), target = *pair.b.buffer(size);
  const auto remote = *pair.ab.import(*target.descriptor());
  for (std::uint64_t round = 1; round < 4; ++round) {
    fill_pattern(span_of(source), round);
    const auto put = *pair.ab.put(source, remote, {{}, Complete::local});
    HMC_ASSERT_OK(pair.ab.fence());
    const auto get = *pair.ab.get(back, remote);
    HMC_ASSERT_OK(get.wait(soon()));
    EXPECT_EQ(first_mismatch(span_of(back), round), -1);
    HMC_ASSERT_OK(put.wait(soon()));
  }
}

TEST_P(Fences, SendsKeepTheirOrder) {
  const WayPair pair(GetParam());
  const PendingFence fence(pair.ab, pair.ba);
  std::vector<std::vector<std::byte>> messages;
  std::vector<Work> works;
  for (std::size_t i = 0; i < 20; ++i) messages.push_back(pattern(i % 3 == 1 ? 200'000 + i : 8 + i, i));
  for (auto& message : messages) works.push_back(*pair.ab.isend(view(message), 3));
  for (const Work& work : works) EXPECT_FALSE(work.done());
  fence.release();
  std::vector<std::byte> late = pattern(5, 99), got(300'000);
  const auto last = *pair.ab.isend(view(late), 3);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto info = pair.ba.recv(view(got), 3, soon());
    ASSERT_TRUE(info.ok()) << info.status().str();
    EXPECT_EQ(info->bytes, messages[i].size());
    EXPECT_EQ(first_mismatch(std::span(got).first(info->bytes), i), -1);
  }
  EXPECT_EQ(pair.ba.recv(view(got), 3, soon())->bytes, late.size());
  HMC_EXPECT_OK(wait_all(works, soon()));
  HMC_EXPECT_OK(last.wait(soon()));
}

TEST_P(Fences, TimedOutAndCancelledSendsAreNotSent) {
  const WayPair pair(GetParam());
  const PendingFence fence(pair.ab, pair.ba);
  auto small = pattern(8, 1), big = pattern(1 << 20, 2), kept = pattern(33, 3);
  for (auto* message : {&small, &big}) {
    const Status late = pair.ab.send(view(*message), 7, soon(0.05));
    EXPECT_EQ(late.code(), Code::timeout) << late.str();
    EXPECT_NE(late.message().find("withdrawn"), std::string_view::npos) << late.str();
    const auto cancelled = *pair.ab.isend(view(*message), 7);
    HMC_EXPECT_OK(cancelled.cancel());
    EXPECT_EQ(cancelled.status().code(), Code::cancelled);
    EXPECT_NE(cancelled.status().message().find("nothing was sent"), std::string_view::npos) << cancelled.status().str();
    fill_pattern(*message, 50);
  }
  const auto sent = *pair.ab.isend(view(kept), 7);
  fence.release();
  std::vector<std::byte> got(1 << 20);
  ASSERT_EQ(pair.ba.recv(view(got), 7, soon())->bytes, kept.size());
  EXPECT_EQ(first_mismatch(std::span(got).first(kept.size()), 3), -1);
  HMC_EXPECT_OK(sent.wait(soon()));
  EXPECT_EQ(pair.ba.recv(view(got), any_tag, soon(0.02)).status().code(), Code::timeout);
  HMC_EXPECT_OK(pair.ab.send(view(kept), 7, soon()));  // no fence is left
  EXPECT_EQ(pair.ba.recv(view(got), 7, soon())->bytes, kept.size());
}

// The peer takes nothing: only the end of what the fence waits for releases it.
TEST_P(Fences, IsReleasedWhenWhatItWaitsForIsCancelled) {
  const WayPair pair(GetParam());
  const auto source = *pair.a.buffer(100), target = *pair.b.buffer(100);
  const auto remote = *pair.ab.import(*target.descriptor());
  const auto payload = pattern(max_notify_payload, 1);
  const Notify notification(std::span<const std::byte>{payload});
  for (std::uint64_t left = notify_window; left >= notify_cost(payload.size()); left -= notify_cost(payload.size()))
    HMC_ASSERT_OK(pair.ab.notify(notification));
  HMC_ASSERT_OK(pair.ab.inotify(1)->wait(soon()));  // all those are out
  for (const bool by_deadline : {false, true}) {
    const auto held = *pair.ab.inotify(notification, by_deadline ? soon(0.05) : Deadline::never());
    HMC_ASSERT_OK(pair.ab.fence());
    fill_pattern(span_of(source), by_deadline ? 2 : 3);
    const auto put = *pair.ab.put(source, remote);
    ASSERT_FALSE(held.done() && !by_deadline);
    if (!by_deadline) HMC_ASSERT_OK(held.cancel());
    HMC_ASSERT_OK(put.wait(soon(20)));
    EXPECT_EQ(held.status().code(), by_deadline ? Code::timeout : Code::cancelled);
    EXPECT_EQ(first_mismatch(span_of(target), by_deadline ? 2 : 3), -1);
  }
}

TEST_P(Fences, OnePeerDoesNotHoldUpAnother) {
  const WayPair pair(GetParam());
  const Context c = make_context(pair.transports);
  const auto ac = pair.a.connect(c.addresses().front(), soon());
  ASSERT_TRUE(ac.ok()) << ac.status().str();
  const Peer ca = *c.accept(soon());
  const PendingFence fence(pair.ab, pair.ba);
  auto message = pattern(8, 1), got = pattern(8, 2);
  const auto held = *pair.ab.isend(view(message), 1);
  HMC_ASSERT_OK(ac->send(view(message), 1, soon()));
  HMC_ASSERT_OK(ca.recv(view(got), 1, soon()).status());
  EXPECT_EQ(first_mismatch(got, 1), -1);
  EXPECT_FALSE(held.done());
  fence.release();
  HMC_EXPECT_OK(held.wait(soon()));
}

TEST_P(Fences, SendsBehindOneEndWithThePeer) {
  for (const bool here : {true, false}) {
    const WayPair pair(GetParam());
    const PendingFence fence(pair.ab, pair.ba);
    auto message = pattern(8, 1), big = pattern(1 << 20, 1);
    const auto one = *pair.ab.isend(view(message), 1), two = *pair.ab.isend(view(big), 1);
    std::thread closer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      (here ? pair.ab : pair.ba).close();
    });
    const Status outcome = pair.ab.send(view(message), 1, soon());
    EXPECT_EQ(outcome.code(), Code::closed) << outcome.str();
    EXPECT_EQ(one.wait(soon()).code(), Code::closed) << one.status().str();
    EXPECT_EQ(two.wait(soon()).code(), Code::closed) << two.status().str();
    EXPECT_NE(one.status().message().find("not sent"), std::string_view::npos) << one.status().str();
    EXPECT_EQ(pair.ab.send(view(message), 1, soon()).code(), Code::closed);
    closer.join();
  }
}

}  // namespace
}  // namespace hmc
