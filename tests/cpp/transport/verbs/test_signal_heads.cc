// Signals as immediates of writes: what fits, and what is told of it.

#include <gtest/gtest.h>

#include <cstring>

#include "testing.h"
#include "transport/verbs/signal_heads.h"

namespace hmc::testing {
namespace {

using namespace hmc::verbs;

Bytes head_of(std::size_t bytes, std::uint64_t seed) {
  Bytes head = pattern(bytes, seed);
  if (bytes != 0) head[0] = static_cast<std::byte>(seed);  // so that short ones differ, too
  return head;
}
Bytes signal_of(std::size_t head_bytes, std::uint64_t number, std::uint64_t seed = 1) {
  Bytes bytes = head_of(head_bytes, seed);
  bytes.resize(head_bytes + sizeof number);
  std::memcpy(bytes.data() + head_bytes, &number, sizeof number);
  return bytes;
}

TEST(SignalHeads, WhatFits) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{13}, max_signal_head}) {
    for (const std::uint64_t number : {0ULL, 1ULL, 0xA53C77ULL, (1ULL << 24) - 1}) {
      const Bytes signal = signal_of(bytes, number);
      const auto parts = split_signal(signal);
      ASSERT_TRUE(parts);
      EXPECT_EQ(parts->number, number);
      EXPECT_EQ(Bytes(parts->head.begin(), parts->head.end()), Bytes(signal.begin(), signal.begin() + static_cast<long>(bytes)));
    }
    for (const std::uint64_t number : {1ULL << 24, 1ULL << 63, ~0ULL}) EXPECT_FALSE(split_signal(signal_of(bytes, number)));
  }
  EXPECT_FALSE(split_signal(signal_of(0, 1)));
  EXPECT_FALSE(split_signal(signal_of(max_signal_head + 1, 1)));
  EXPECT_FALSE(split_signal({}));
  EXPECT_FALSE(split_signal(pattern(7, 1)));
}

TEST(SignalHeads, AreKnownOnceTold) {
  SignalHeads told, heard;
  for (unsigned i = 0; i < SignalHeads::capacity; ++i) {
    const Bytes signal = signal_of(4 + i % 20, 7 * i, i);
    const auto parts = split_signal(signal);
    ASSERT_TRUE(parts);
    EXPECT_FALSE(told.find(parts->head)) << i;
    EXPECT_TRUE(heard.expand(SignalHeads::immediate(static_cast<std::uint8_t>(i), 7 * i)).empty()) << i;
    ASSERT_EQ(told.add(parts->head), i);
    ASSERT_EQ(heard.add(parts->head), i);
  }
  for (unsigned i = 0; i < SignalHeads::capacity; ++i) {
    const Bytes signal = signal_of(4 + i % 20, (1U << 24) - 1 - i, i);
    const auto parts = split_signal(signal);
    const auto place = told.find(parts->head);
    ASSERT_EQ(place, i);
    const ByteSpan came = heard.expand(SignalHeads::immediate(*place, parts->number));
    EXPECT_EQ(Bytes(came.begin(), came.end()), signal) << i;
  }
  EXPECT_FALSE(told.add(pattern(5, 999)));
  EXPECT_FALSE(told.find(pattern(5, 999)));
}

TEST(SignalHeads, RecentOnes) {
  RecentHeads recent;
  EXPECT_FALSE(recent.again(head_of(4, 1)));
  EXPECT_TRUE(recent.again(head_of(4, 1)));
  EXPECT_FALSE(recent.again(head_of(5, 1)));
  for (std::uint64_t i = 0; i < 20; ++i) EXPECT_FALSE(recent.again(head_of(max_signal_head, 100 + i)));
  EXPECT_TRUE(recent.again(head_of(max_signal_head, 119)));
  EXPECT_FALSE(recent.again(head_of(4, 1)));
}

TEST(SignalHeads, OfASizeThatNoneHas) {
  SignalHeads heads;
  EXPECT_FALSE(heads.add({}));
  EXPECT_FALSE(heads.add(pattern(max_signal_head + 1, 1)));
  EXPECT_TRUE(heads.add(pattern(max_signal_head, 1)));
}

}  // namespace
}  // namespace hmc::testing
