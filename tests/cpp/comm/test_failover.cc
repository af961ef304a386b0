// Connections that end while the peer lives: what was posted arrives once and in order over the next one, or its error says what
// may have been written; the peer is lost only where neither can be had.
#include <algorithm>
#include <chrono>
#include <thread>

#include "breaking.h"
#include "support.h"

namespace hmc {
namespace {

using namespace testing;
using std::chrono::milliseconds;

// Cuts the tcp connection of two Contexts, `times`, while something else goes on, each time once it is made again: a peer whose
// connection fails five times in a row while it is made is lost.
class Cutter {
 public:
  Cutter(const Pair& pair, int times)
      : thread_([this, &pair, times] {
          for (int i = 0; i < times && !stop_; ++i) {
            std::this_thread::sleep_for(milliseconds(30 + 17 * (i % 5)));
            const std::uint64_t of_a = failures(pair.a), of_b = failures(pair.b);
            cut_ += cut_data_connections();
            while (!stop_ && (!reconnected(pair.a, of_a) || !reconnected(pair.b, of_b)))
              std::this_thread::sleep_for(milliseconds(1));
          }
          over_ = true;
        }) {}
  ~Cutter() { join(); }
  void join() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  [[nodiscard]] bool over() const { return over_; }
  [[nodiscard]] int cut() const { return cut_; }

 private:
  static std::uint64_t failures(const Context& context) { return counter(context, "routes.quarantined.tcp"); }
  // The connection has failed since there were `failures_before`, and works again.
  static bool reconnected(const Context& context, std::uint64_t failures_before) {
    auto counters = context.counters();
    const std::uint64_t failed = counters["routes.quarantined.tcp"];
    return failed > failures_before && counters["routes.restored.tcp"] == failed;
  }
  std::atomic<bool> stop_{false}, over_{false};
  std::atomic<int> cut_{0};
  std::thread thread_;
};

// Eager ones, some that fill a socket, and some that the receiver fetches.
std::size_t size_of(std::uint64_t i) {
  constexpr std::size_t sizes[] = {8, 1, 3000, 0, 30'000, 77, 300'001, 4096};
  return sizes[i % std::size(sizes)];
}

TEST(Failover, MessagesArriveOnceAndInOrder) {
  const Pair pair("tcp");
  Cutter cutter(pair, 6);
  std::uint64_t sent = 0, received = 0;
  std::thread sender([&] {
    for (; sent < 400 || !cutter.over(); ++sent) {
      auto out = pattern(size_of(sent), sent);
      HMC_ASSERT_OK(pair.ab.send(view(out), 7, soon()));
    }
    std::vector<std::byte> last(2);
    HMC_ASSERT_OK(pair.ab.send(view(last), 7, soon()));
  });
  std::vector<std::byte> in(300'001);
  for (;; ++received) {
    const auto info = pair.ba.recv(view(in), 7, soon());
    EXPECT_TRUE(info.ok()) << info.status().str();
    if (!info.ok() || info->bytes == 2) break;
    EXPECT_EQ(info->bytes, size_of(received)) << "message " << received;
    EXPECT_EQ(first_mismatch(std::span(in).first(info->bytes), received), -1) << "message " << received;
  }
  sender.join();
  EXPECT_EQ(received, sent);
  EXPECT_EQ(pair.ba.recv(view(in), any_tag, soon(0.05)).status().code(), Code::timeout) << "a message came twice";
  EXPECT_GT(cutter.cut(), 0);
  EXPECT_GT(counter(pair.a, "routes.quarantined.tcp"), 0U);
  EXPECT_GT(counter(pair.a, "messages.moved"), 0U);
}

TEST(Failover, NotificationsAreCountedOnce) {
  const Pair pair("tcp");
  Cutter cutter(pair, 5);
  std::uint64_t raised = 0, queued = 0;
  std::thread taker([&] {  // gives the credit back
    std::uint64_t next = 0;
    for (bool over = false; !over;) {
      const auto taken = pair.ba.notifications(soon());
      ASSERT_TRUE(taken.ok()) << taken.status().str();
      for (const auto& each : *taken) {
        over = each.payload.size() == 1;
        if (over) break;
        ASSERT_EQ(each.payload.size(), 600 + next % 7);
        ASSERT_EQ(first_mismatch(each.payload, next), -1) << "payload " << next;
        ++next;
      }
    }
    queued = next;
  });
  std::uint64_t sent = 0;
  while (raised < 2000 || !cutter.over()) {
    for (int burst = 0; burst < 50; ++burst, ++raised) HMC_ASSERT_OK(pair.ab.notify(5));
    const auto payload = pattern(600 + sent % 7, sent);
    HMC_ASSERT_OK(pair.ab.notify(Notify(payload)));
    ++sent;
    std::this_thread::sleep_for(milliseconds(1));
  }
  HMC_ASSERT_OK(pair.ab.notify(Notify(pattern(1, 0))));
  taker.join();
  EXPECT_EQ(queued, sent);
  HMC_ASSERT_OK(pair.ba.wait_notify(5, raised, soon()));
  EXPECT_EQ(pair.ba.wait_notify(5, 1, soon(0.05)).code(), Code::timeout) << "a notification came twice";
  EXPECT_GT(cutter.cut(), 0);
}

// A put that was under way says so and is posted again by its user; its notification may have come all the same.
TEST(Failover, PutsUnderWaySayWhatMayBeWritten) {
  const Pair pair("tcp");
  const auto source = *pair.a.buffer(lengthy(8 << 20)), target = *pair.b.buffer(source.size());
  const auto remote = *pair.ab.import(*target.descriptor(), soon());
  Cutter cutter(pair, 6);
  std::uint64_t done = 0, failed = 0;
  for (std::uint64_t i = 0; i < 20 || !cutter.over(); ++i) {
    fill_pattern(span_of(source), i);
    for (int tries = 0;; ++tries) {
      ASSERT_LT(tries, 50);
      const auto work = pair.ab.put(source, remote, {3, Complete::remote});
      const Status status = work.ok() ? work->wait(soon()) : work.status();
      if (status.ok()) break;
      ++failed;
      ASSERT_EQ(status.code(), Code::transport) << status.str();
      const bool says = status.str().find("part of the target may have been written") != std::string::npos;
      ASSERT_TRUE(says || !work.ok()) << status.str();
    }
    ++done;
    ASSERT_EQ(first_mismatch(span_of(target), i), -1);
  }
  EXPECT_TRUE(pair.ab.alive());
  HMC_ASSERT_OK(pair.ba.wait_notify(3, done, soon()));
  EXPECT_GT(failed, 0U);
}

// Behind a fence, nothing was posted: it goes over the next connection, and its user notices nothing.
TEST(Failover, WhatWasNotPostedMoves) {
  struct {
    Context a, b;
    Peer ab, ba;
  } pair;
  ContextOptions manual;
  manual.progress = Progress::manual;  // nothing of this side moves until it waits, so the large put is under way when it is cut
  pair.a = make_context("tcp", {}, manual);
  pair.b = make_context("tcp");
  pair.ab = *pair.a.connect(pair.b.addresses().front(), soon());
  pair.ba = *pair.b.accept(soon());
  const auto large = *pair.a.buffer(lengthy(64 << 20)), large_target = *pair.b.buffer(large.size());
  const auto small = *pair.a.buffer(100'000), small_target = *pair.b.buffer(small.size());
  const auto large_remote = *pair.ab.import(*large_target.descriptor(), soon());
  const auto small_remote = *pair.ab.import(*small_target.descriptor(), soon());
  std::vector<std::uint64_t> here, there;
  for (std::uint64_t i = 0; i < 50; ++i) {
    here.push_back(i * 2000);
    there.push_back((49 - i) * 2000);
  }
  const BlockPair blocks{small, small_remote, here, there};
  const auto batch = *pair.ab.prepare_blocks({&blocks, 1}, 1000);
  std::vector<std::byte> message = pattern(5000, 3), in(5000);
  for (int round = 0; round < 4; ++round) {
    const auto seed = static_cast<std::uint64_t>(round) + 10;
    fill_pattern(span_of(small), seed);
    fill_pattern(span_of(small_target), seed + 100);
    const auto under_way = pair.ab.put(large, large_remote);
    ASSERT_TRUE(under_way.ok()) << under_way.status().str();
    HMC_ASSERT_OK(pair.ab.fence());
    const auto put = *pair.ab.put(*small.slice(1000, 1000), *small_remote.slice(1000, 1000), {4, Complete::remote});
    const auto scattered = *pair.ab.put_blocks(batch, {5, Complete::remote});
    const auto sent = *pair.ab.isend(view(message), 1);
    ASSERT_FALSE(put.done());
    ASSERT_GT(cut_data_connections(), 0);
    EXPECT_EQ(under_way->wait(soon()).code(), Code::transport) << under_way->wait(soon()).str();
    HMC_ASSERT_OK(put.wait(soon()));
    HMC_ASSERT_OK(scattered.wait(soon()));
    HMC_ASSERT_OK(sent.wait(soon()));
    HMC_ASSERT_OK(pair.ba.wait_notify(4, 1, soon()));
    HMC_ASSERT_OK(pair.ba.wait_notify(5, 1, soon()));
    HMC_ASSERT_OK(pair.ba.recv(view(in), 1, soon()).status());
    EXPECT_EQ(first_mismatch(in, 3), -1);
    const auto result = span_of(small_target);
    for (std::size_t i = 0; i < result.size(); ++i) {
      const std::size_t block = i / 2000, within = i % 2000;
      auto expected = pattern_byte(i, seed + 100);
      if (within < 1000) expected = pattern_byte((49 - block) * 2000 + within, seed);
      if (i >= 1000 && i < 2000) expected = pattern_byte(i, seed);
      ASSERT_EQ(result[i], expected) << "byte " << i;
    }
  }
  EXPECT_GT(counter(pair.a, "operations.moved"), 0U);
}

// ---- two transports ----

struct SwiftPair {
  SwiftPair() {
    add_swift_transport();
    swift_refuses = false;
    pair = std::make_unique<Pair>("swift,tcp");
  }
  ~SwiftPair() { swift_refuses = false; }
  std::unique_ptr<Pair> pair;
};

void expect_traffic(const Pair& pair, std::uint64_t seed) {
  for (const auto& [from, to] : {std::pair(&pair.ab, &pair.ba), std::pair(&pair.ba, &pair.ab)}) {
    for (const std::size_t size : {9U, 20'000U, 500'000U}) {
      auto out = pattern(size, seed);
      std::vector<std::byte> in(size);
      const auto sending = *from->isend(view(out), 2);
      HMC_ASSERT_OK(to->recv(view(in), 2, soon()).status());
      HMC_ASSERT_OK(sending.wait(soon()));
      ASSERT_EQ(first_mismatch(in, seed), -1);
    }
  }
  const auto source = *pair.a.buffer(70'001), target = *pair.b.buffer(70'001);
  fill_pattern(span_of(source), seed);
  const auto remote = *pair.ab.import(*target.descriptor(), soon());
  HMC_ASSERT_OK(pair.ab.put(source, remote, {9, Complete::remote})->wait(soon()));
  HMC_ASSERT_OK(pair.ba.wait_notify(9, 1, soon()));
  ASSERT_EQ(first_mismatch(span_of(target), seed), -1);
  fill_pattern(span_of(source), seed + 1);
  HMC_ASSERT_OK(pair.ab.get(source, remote)->wait(soon()));
  ASSERT_EQ(first_mismatch(span_of(source), seed), -1);
}

TEST(Failover, TheNextTransportTakesOverUntilTheFirstIsBack) {
  const SwiftPair swift;
  const Pair& pair = *swift.pair;
  const auto before = *pair.ab.path();
  EXPECT_EQ(before.transport, "swift");
  EXPECT_EQ(before.runner_up, "tcp");
  EXPECT_NE(before.str().find("next: tcp"), std::string::npos) << before.str();
  expect_traffic(pair, 1);
  const auto kept = *pair.b.buffer(5000), mine = *pair.a.buffer(5000);
  const auto kept_remote = *pair.ab.import(*kept.descriptor(), soon());
  swift_refuses = true;
  ASSERT_GT(cut_data_connections(), 0);
  while (counter(pair.a, "routes.quarantined.swift") == 0) std::this_thread::sleep_for(milliseconds(1));
  const auto after = *pair.ab.path();
  EXPECT_EQ(after.transport, "tcp") << after.str();
  EXPECT_EQ(after.runner_up, "");
  EXPECT_NE(after.str().find("not swift: failed"), std::string::npos) << after.str();
  expect_traffic(pair, 2);
  // A buffer that was imported before.
  fill_pattern(span_of(mine), 3);
  HMC_ASSERT_OK(pair.ab.put(mine, kept_remote)->wait(soon()));
  EXPECT_EQ(first_mismatch(span_of(kept), 3), -1);
  EXPECT_EQ(counter(pair.a, "messages.moved"), 1U);
  EXPECT_EQ(counter(pair.b, "messages.moved"), 1U);
  // Left alone for a second: it fails again on both sides before it may connect. (Each has failed to reach itself, and then broke.)
  while (counter(pair.a, "endpoints.failed.swift") + counter(pair.b, "endpoints.failed.swift") < 6) {
    ASSERT_TRUE(pair.ab.alive());
    std::this_thread::sleep_for(milliseconds(5));
  }
  swift_refuses = false;
  while (counter(pair.a, "routes.restored.swift") == 0) std::this_thread::sleep_for(milliseconds(5));
  const auto again = *pair.ab.path();
  EXPECT_EQ(again.transport, "swift") << again.str();
  expect_traffic(pair, 4);
  EXPECT_EQ(counter(pair.a, "routes.quarantined.swift"), 1U);
}

// As for a moment when a transport fails or returns on one side first.
TEST(Failover, TheReceiverAsksForATransportThatTheSenderDoesNotUse) {
  add_swift_transport();
  swift_refuses = false;
  swift_hides = true;
  const Pair pair("swift,tcp");
  ASSERT_FALSE(swift_hides);
  expect_traffic(pair, 1);
  EXPECT_EQ(counter(pair.b, "routes.refused.swift"), 1U);
  // Several at once, each announced before the first is refused.
  constexpr std::size_t count = 5;
  std::vector<std::vector<std::byte>> out, in(count, std::vector<std::byte>(300'000));
  std::vector<Work> works;
  for (std::size_t i = 0; i < count; ++i) out.push_back(pattern(in[i].size(), i));
  for (std::size_t i = 0; i < count; ++i) works.push_back(*pair.ab.isend(view(out[i]), 7));
  for (std::size_t i = 0; i < count; ++i) works.push_back(*pair.ba.irecv(view(in[i]), 7));
  for (const Work& work : works) HMC_EXPECT_OK(work.wait(soon()));
  for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(first_mismatch(in[i], i), -1);
}

TEST(Failover, MessagesSurviveAChangeOfTransportAmidTraffic) {
  const SwiftPair swift;
  const Pair& pair = *swift.pair;
  constexpr std::uint64_t count = 600;
  std::thread sender([&] {
    for (std::uint64_t i = 0; i < count; ++i) {
      auto out = pattern(size_of(i), i);
      HMC_ASSERT_OK(pair.ba.send(view(out), 1, soon()));
    }
  });
  std::vector<std::byte> in(300'001);
  for (std::uint64_t i = 0; i < count; ++i) {
    if (i == 100) swift_refuses = true;
    if (i == 101 || i == 300) {
      EXPECT_GT(cut_data_connections(), 0);
    }
    const auto info = pair.ab.recv(view(in), 1, soon());
    EXPECT_TRUE(info.ok()) << i << ": " << info.status().str();
    if (!info.ok()) break;
    EXPECT_EQ(info->bytes, size_of(i));
    EXPECT_EQ(first_mismatch(std::span(in).first(info->bytes), i), -1) << "message " << i;
  }
  sender.join();
}

TEST(Failover, ThePeerIsLostWhereNothingConnects) {
  add_swift_transport();
  swift_refuses = false;
  const Pair pair("swift");
  std::vector<std::byte> in(10);
  const auto receiving = *pair.ab.irecv(view(in), 1);
  swift_refuses = true;
  ASSERT_GT(cut_data_connections(), 0);
  EXPECT_EQ(receiving.wait(soon()).code(), Code::peer_lost) << receiving.wait(soon()).str();
  while (pair.ab.alive() || pair.ba.alive()) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(pair.ab.notify(1).code(), Code::peer_lost);
  swift_refuses = false;
}

// One attempt is not enough where the cut comes while the connection is being made again. Either side may try first: the one that
// has something to put, or the one that chooses who carries messages.
TEST(Failover, AConnectionThatFailsWhileItIsMadeIsTriedAgain) {
  const struct Reset {
    ~Reset() { swift_refusals = 0; }
  } reset;
  add_swift_transport();
  swift_refuses = false;
  const Pair pair("swift");
  const auto source = *pair.a.buffer(5000), target = *pair.b.buffer(5000);
  const auto remote = *pair.ab.import(*target.descriptor(), soon());
  std::uint64_t moved = 0;
  for (const bool puts : {false, true}) {
    for (const int refusals : {1, 2, 3}) {
      std::vector<std::byte> in(10);
      const auto receiving = *pair.ab.irecv(view(in), 1);
      swift_refusals = refusals;
      ASSERT_GT(cut_data_connections(), 0);
      ++moved;
      while (counter(pair.a, "messages.moved") < moved) {
        ASSERT_TRUE(pair.ab.alive() && pair.ba.alive());
        if (puts) {
          const auto work = pair.ab.put(source, remote);
          const Status status = work.ok() ? work->wait(soon()) : work.status();
          ASSERT_TRUE(status.ok() || status.code() == Code::transport) << status.str();
        }
        std::this_thread::sleep_for(milliseconds(1));
      }
      auto out = pattern(in.size(), moved);
      HMC_ASSERT_OK(pair.ba.send(view(out), 1, soon()));
      HMC_ASSERT_OK(receiving.wait(soon()));
      EXPECT_EQ(first_mismatch(in, moved), -1);
      expect_traffic(pair, 10 + moved);
    }
  }
}

// What was complete at this end only may be gone, and nobody would ever say so.
TEST(Failover, ThePeerIsLostWithPutsThatAreCompleteAtThisEndOnly) {
  const Pair pair("tcp");
  const auto source = *pair.a.buffer(lengthy(32 << 20)), target = *pair.b.buffer(source.size());
  const auto remote = *pair.ab.import(*target.descriptor(), soon());
  HMC_ASSERT_OK(pair.ab.put(source, remote, {Notify(), Complete::local})->wait(soon()));
  ASSERT_GT(cut_data_connections(), 0);
  while (pair.ab.alive() || pair.ba.alive()) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(pair.ab.notify(1).code(), Code::peer_lost);
}

// Nothing is left hanging when a side leaves while connections are being made anew.
TEST(Failover, ClosingAmidACut) {
  for (int round = 0; round < 6; ++round) {
    Pair pair("tcp");
    std::vector<std::byte> in(10);
    const auto receiving = *pair.ba.irecv(view(in), 1);
    ASSERT_GT(cut_data_connections(), 0);
    std::this_thread::sleep_for(milliseconds(60 * round));
    HMC_EXPECT_OK(pair.a.close(soon()));
    const Status end = receiving.wait(soon());
    EXPECT_TRUE(end.code() == Code::closed || end.code() == Code::peer_lost) << end.str();
  }
}

}  // namespace
}  // namespace hmc
