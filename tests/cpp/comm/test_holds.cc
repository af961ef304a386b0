// Memory of a peer that this process reads and writes without an operation, and what closes wait for then.
#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "hmc/buffer_hold.h"
#include "support.h"

namespace hmc {
namespace {

using namespace testing;

// What is loaded stays, and stays loadable, when the owner closes it or ends.
TEST(Loadable, ReturnsTheOwnersBytes) {
  Pair pair("shm");
  const auto buffer = *pair.b.buffer(20001);
  fill_pattern(span_of(buffer), 5);
  const auto remote = *pair.ab.import(*buffer.descriptor(), soon());
  const LoadableBytes whole = remote.loadable();
  ASSERT_EQ(whole.bytes.size(), 20001U);
  EXPECT_TRUE(same_bytes(whole.bytes, span_of(buffer)));
  const LoadableBytes part = (*remote.slice(4097, 333)).loadable();
  ASSERT_EQ(part.bytes.data(), whole.bytes.data() + 4097);
  EXPECT_EQ(part.bytes.size(), 333U);
  fill_pattern(span_of(buffer), 6);
  EXPECT_TRUE(same_bytes(whole.bytes, span_of(buffer)));
  HMC_ASSERT_OK(buffer.close(soon()));
  EXPECT_EQ(remote.loadable().mapping, nullptr);
  HMC_ASSERT_OK(pair.a.close(soon()));
  std::vector<std::byte> expected(20001);
  fill_pattern(expected, 6);
  EXPECT_TRUE(same_bytes(whole.bytes, expected));
}

// What is stored is in the owner's memory, which grants it.
TEST(Storable, WritesTheOwnersBytes) {
  Pair pair("shm");
  const auto buffer = *pair.b.buffer(20001);
  fill_pattern(span_of(buffer), 5);
  const std::array remote{*pair.ab.import(*buffer.descriptor(), soon())};
  const StorableBytes part = (*remote[0].slice(4097, 333)).storable();
  ASSERT_EQ(part.bytes.size(), 333U);
  std::vector<std::byte> expected(20001);
  fill_pattern(expected, 5);
  {
    const auto hold = BufferHold::take({}, remote);
    HMC_ASSERT_OK(hold.status());
    fill_pattern(part.bytes, 6);
    fill_pattern(std::span(expected).subspan(4097, 333), 6);
  }
  EXPECT_TRUE(same_bytes(span_of(buffer), expected));
  HMC_ASSERT_OK(buffer.close(soon()));
  EXPECT_EQ(remote[0].storable().mapping, nullptr);
}

TEST(Storable, WhatIsNotGrantedIsNot) {
  Pair pair("shm");
  const auto read_only = *pair.b.buffer(5000, Device::cpu(), Access::read);
  const auto remote = *pair.ab.import(*read_only.descriptor(), soon());
  EXPECT_NE(remote.loadable().mapping, nullptr);
  EXPECT_EQ(remote.storable().mapping, nullptr);
  EXPECT_EQ(RemoteBuffer().storable().mapping, nullptr);
  Pair over_tcp("tcp");
  const auto elsewhere = *over_tcp.ab.import(*over_tcp.b.buffer(100)->descriptor(), soon());
  EXPECT_EQ(elsewhere.storable().mapping, nullptr);
  const Context context = make_context("local");
  const auto own = *context.connect(context.addresses()[0], soon());
  const auto mine = *context.buffer(5000), kept = *context.buffer(5000, Device::cpu(), Access::read);
  EXPECT_EQ((*own.import(*mine.descriptor(), soon())).storable().bytes.data(), bytes_of(mine));
  EXPECT_EQ((*own.import(*kept.descriptor(), soon())).storable().mapping, nullptr);
}

// Closes of either side wait for its end, as for an operation's.
TEST(BufferHold, HoldsBothSides) {
  Pair pair("shm");
  const std::array local{*pair.a.buffer(3001)};
  const auto theirs = *pair.b.buffer(20001);
  const std::array remote{*pair.ab.import(*theirs.descriptor(), soon())};
  std::optional<BufferHold> hold = *BufferHold::take(local, remote);
  EXPECT_EQ(local[0].close(Deadline::after_seconds(0.05)).code(), Code::timeout);
  EXPECT_EQ(theirs.close(Deadline::after_seconds(0.05)).code(), Code::timeout);
  EXPECT_EQ(BufferHold::take({}, remote).status().code(), Code::stale);
  EXPECT_EQ(BufferHold::take(local, {}).status().code(), Code::closed);
  EXPECT_EQ(pair.b.close(Deadline::after_seconds(0.05)).code(), Code::timeout);
  std::thread releases([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    hold.reset();
  });
  HMC_EXPECT_OK(local[0].close(soon()));
  HMC_EXPECT_OK(theirs.close(soon()));
  releases.join();
}

TEST(BufferHold, TheContextsCloseWaitsForItsEnd) {
  Pair pair("shm");
  const std::array local{*pair.a.buffer(3001)};
  std::atomic<bool> over = false;
  std::optional<BufferHold> hold = *BufferHold::take(local, {});
  EXPECT_EQ(pair.a.close(Deadline::after_seconds(0.05)).code(), Code::timeout);
  std::thread releases([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    over = true;
    hold.reset();
  });
  HMC_EXPECT_OK(pair.a.close(soon()));
  EXPECT_TRUE(over);
  releases.join();
  EXPECT_EQ(BufferHold::take(local, {}).status().code(), Code::closed);
}

// The end of its side of the connection would tell the peer that nothing here uses its memory.
TEST(BufferHold, TheEndOfTheLastHandleDoesNotLetGoOfThePeersMemory) {
  Pair pair("shm");
  const auto theirs = *pair.b.buffer(20001);
  const std::array remote{*pair.ab.import(*theirs.descriptor(), soon())};
  std::optional<BufferHold> hold = *BufferHold::take({}, remote);
  EXPECT_EQ(pair.a.close(Deadline::after_seconds(0.05)).code(), Code::timeout);
  pair.ab = Peer();
  pair.a = Context();
  EXPECT_EQ(theirs.close(Deadline::after_seconds(0.1)).code(), Code::timeout);
  hold.reset();
  EXPECT_EQ(theirs.close(Deadline::after_seconds(0.05)).code(), Code::timeout);  // the importer's Context is gone
  EXPECT_EQ(pair.b.close(Deadline::after_seconds(0.05)).code(), Code::timeout);
}

TEST(BufferHold, OfTheContextsOwnBuffersByImport) {
  const Context context = make_context("local");
  const auto buffer = *context.buffer(5000);
  const auto own = *context.connect(context.addresses()[0], soon());
  const std::array remote{*own.import(*buffer.descriptor(), soon())};
  std::optional<BufferHold> hold = *BufferHold::take({}, remote);
  EXPECT_EQ(buffer.close(Deadline::after_seconds(0.05)).code(), Code::timeout);
  hold.reset();
  HMC_EXPECT_OK(buffer.close(soon()));
}

// A peer is gone once nothing of it uses memory of this process.
TEST(BufferHold, OfThePeersMemoryKeepsThisSideFromBeingGone) {
  Pair pair("shm");
  const auto theirs = *pair.b.buffer(20001);
  const std::array remote{*pair.ab.import(*theirs.descriptor(), soon())};
  std::optional<BufferHold> hold = *BufferHold::take({}, remote);
  EXPECT_FALSE(pair.ba.gone());
  pair.ba.close();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(pair.ba.alive());
  EXPECT_FALSE(pair.ba.gone());
  hold.reset();
  const Deadline deadline = soon();
  while (!pair.ba.gone() && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(pair.ba.gone());
  EXPECT_FALSE(Peer().gone());
}

TEST(BufferHold, IsRefusedOnceThePeerCloses) {
  Pair pair("shm");
  const auto theirs = *pair.b.buffer(20001);
  const std::array remote{*pair.ab.import(*theirs.descriptor(), soon())};
  std::optional<BufferHold> hold = *BufferHold::take({}, remote);
  pair.ab.close();
  EXPECT_FALSE(BufferHold::take({}, remote).ok());
  EXPECT_EQ(pair.b.close(Deadline::after_seconds(0.05)).code(), Code::timeout);
  hold.reset();
  HMC_EXPECT_OK(pair.b.close(soon()));
}

TEST(BufferHold, ThatIsRefusedHoldsNothing) {
  Pair pair("shm");
  const std::array local{*pair.a.buffer(3001), ConnBuffer()};
  EXPECT_EQ(BufferHold::take(local, {}).status().code(), Code::invalid_argument);
  EXPECT_EQ(BufferHold::take({}, {}).status().code(), Code::invalid_argument);
  const std::array both{local[0], *pair.b.buffer(100)};
  EXPECT_EQ(BufferHold::take(both, {}).status().code(), Code::invalid_argument);
  HMC_EXPECT_OK(local[0].close(soon()));
  const std::array closed{*pair.a.buffer(10), local[0]};
  EXPECT_EQ(BufferHold::take(closed, {}).status().code(), Code::closed);
  HMC_EXPECT_OK(closed[0].close(soon()));
}

TEST(Loadable, OfTheContextItself) {
  const Context context = make_context("local");
  const auto buffer = *context.buffer(5000);
  const auto own = *context.connect(context.addresses()[0], soon());
  const LoadableBytes there = (*own.import(*buffer.descriptor(), soon())).loadable();
  EXPECT_EQ(there.bytes.data(), bytes_of(buffer));
  EXPECT_EQ(there.bytes.size(), 5000U);
}

TEST(Loadable, UserMemoryAndTcpAreNot) {
  std::vector<std::byte> users(4096);
  for (const char* const transport : {"shm", "tcp"}) {
    Pair pair(transport);
    const auto buffer = *pair.b.register_memory(*Memory::wrap(users.data(), users.size()));
    EXPECT_EQ((*pair.ab.import(*buffer.descriptor(), soon())).loadable().mapping, nullptr) << transport;
  }
  Pair pair("tcp");
  const auto remote = *pair.ab.import(*pair.b.buffer(100)->descriptor(), soon());
  EXPECT_EQ(remote.loadable().mapping, nullptr);
  EXPECT_EQ(RemoteBuffer().loadable().mapping, nullptr);
}

}  // namespace
}  // namespace hmc
