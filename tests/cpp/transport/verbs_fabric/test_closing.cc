// What arrived before a peer's end is received, and what has not left is known.
#include "transport/verbs_fabric/support.h"

#ifdef HMC_FABRIC_LIBRARY

namespace hmc::testing {
namespace {

class VerbsClosing : public OnFabric {
 protected:
  void send(std::uint32_t first, std::uint32_t count) {
    for (std::uint32_t i = first; i < first + count; ++i) HMC_ASSERT_OK(send_signal(pair->a(), numbered_signal(1, i, false)));
  }
  [[nodiscard]] bool unsent() {
    const auto lock = pair->a().lock();
    return pair->a().endpoint->has_unsent();
  }
  // The other end is as if stopped.
  void leave() {
    const Deadline deadline = Deadline::after_seconds(100);
    while (unsent()) {
      ASSERT_FALSE(deadline.passed());
      pair->a().node->poll();
    }
  }
  void receive_rest() {
    const auto lock = pair->b().lock();
    pair->b().endpoint->receive_rest();
  }
  void expect_received(std::uint32_t count) {
    ASSERT_EQ(pair->b().sink.signals.size(), count);
    for (std::uint32_t i = 0; i < count; ++i) EXPECT_EQ(pair->b().sink.signals[i], numbered_signal(1, i, false));
  }
};

TEST_F(VerbsClosing, WhatHasArrivedIsReceived) {
  connect();
  send(0, 20);
  EXPECT_TRUE(unsent());
  leave();
  ASSERT_TRUE(pair->b().sink.signals.empty());
  receive_rest();
  expect_received(20);
}

TEST_F(VerbsClosing, WhatWasFoundWhileArmingComesFirst) {
  connect();
  send(0, 10);
  leave();
  {
    const auto lock = pair->b().lock();
    EXPECT_FALSE(pair->b().node->transport->arm());
  }
  send(10, 10);
  leave();
  ASSERT_TRUE(pair->b().sink.signals.empty());
  receive_rest();
  expect_received(20);
}

// More than a poll takes, of many links that share a queue.
TEST_F(VerbsClosing, TheQueuesAreEmptied) {
  connect();
  constexpr std::size_t links = 12, each = 30;
  std::vector<std::unique_ptr<Link>> all;
  for (std::size_t i = 0; i < links; ++i) {
    all.push_back(std::make_unique<Link>());
    HMC_ASSERT_OK(all.back()->connect(*pair));
    for (std::uint32_t k = 0; k < each; ++k) HMC_ASSERT_OK(send_signal(all.back()->near, numbered_signal(1, k, false)));
  }
  send(0, 20);
  const auto others_unsent = [&] {
    const auto lock = pair->a().lock();
    return std::ranges::any_of(all, [](const auto& link) { return link->near.endpoint->has_unsent(); });
  };
  const Deadline deadline = Deadline::after_seconds(100);
  while (others_unsent()) {
    ASSERT_FALSE(deadline.passed());
    pair->a().node->poll();
  }
  leave();
  receive_rest();
  expect_received(20);
  for (const auto& link : all) EXPECT_EQ(link->far_side().sink.signals.size(), each);
}

TEST_F(VerbsClosing, ASignalMayEndTheEndpoint) {
  connect();
  send(0, 20);
  leave();
  int received = 0;
  pair->b().sink.handler = [&](ByteSpan) {
    ++received;
    pair->b().endpoint.reset();
  };
  receive_rest();
  EXPECT_EQ(received, 1);
  pair->b().sink.handler = nullptr;
}

// A handler may ask for the rest of another link, whose signals are in the batch that is being handed over.
TEST_F(VerbsClosing, OrderIsKeptWhereAHandlerAsksForTheRest) {
  connect();
  send(0, 20);
  leave();
  int depth = 0;
  pair->b().sink.handler = [&](ByteSpan signal) {
    pair->b().sink.signals.emplace_back(signal.begin(), signal.end());
    if (depth++ == 0) pair->b().endpoint->receive_rest();
  };
  pair->b().node->poll();
  receive_rest();
  pair->b().sink.handler = nullptr;
  expect_received(20);
}

// What completes several puts at once is one completion of the card, and the next may be in the same batch.
TEST_F(VerbsClosing, PutsEndOnceWhereACompletionAsksForTheRest) {
  setenv("HMC_NICS", "fabric0", 1);
  connect();
  constexpr std::size_t count = 600, size = 100;
  const AnyArea local(*pair->a().node, count * size, Device::cpu()), target(*pair->b().node, count * size, Device::cpu());
  local.fill(1);
  const auto remote = target.imported(pair->a()).value();
  std::vector<std::unique_ptr<Move>> puts;
  for (std::size_t i = 0; i < count; ++i) {
    puts.push_back(std::make_unique<Move>(pair->a(), local, *remote, size, i * size, i * size));
    puts.back()->done.then = [&] { pair->a().endpoint->receive_rest(); };
    HMC_ASSERT_OK(puts.back()->put());
  }
  for (const auto& put : puts) ends(*put);
  EXPECT_TRUE(same_bytes(target.bytes(), pattern(count * size, 1)));
}

TEST_F(VerbsClosing, WhatNoCardAcknowledgesIsUnsent) {
  connect();
  EXPECT_FALSE(unsent());
  fabric().hang_port(0, 0, 1);
  fabric().hang_port(1, 0, 1);
  send(0, 3);
  pair->settle(200);
  EXPECT_TRUE(unsent());
  EXPECT_TRUE(pair->b().sink.signals.empty());
  fabric().mend_ports();
  leave();
  ASSERT_TRUE(pair->until([&] { return pair->b().sink.signals.size() == 3; }));
}

TEST_F(VerbsClosing, WhatFindsNoCreditIsUnsent) {
  connect();
  const AnyArea local(*pair->a().node, 100, Device::cpu()), target(*pair->b().node, 100, Device::cpu());
  const auto remote = target.imported(pair->a()).value();
  Status sent;
  std::uint32_t count = 0;
  while ((sent = send_signal(pair->a(), numbered_signal(1, count, false))).ok()) ++count;
  ASSERT_EQ(sent.code(), Code::would_block) << sent.str();
  leave();
  Move put(pair->a(), local, *remote, 100);
  HMC_ASSERT_OK(put.put(numbered_signal(1, count, false)));
  const Deadline deadline = Deadline::after_seconds(100);
  while (!put.done.done()) {
    ASSERT_FALSE(deadline.passed());
    pair->a().node->poll();
  }
  HMC_EXPECT_OK(Status(put.done.status()));
  EXPECT_TRUE(unsent());
  receive_rest();
  ASSERT_TRUE(pair->until([&] { return !unsent(); }));
  ASSERT_TRUE(pair->until([&] { return pair->b().sink.signals.size() == count + 1; }));
  expect_received(count + 1);
}

}  // namespace
}  // namespace hmc::testing

#endif
