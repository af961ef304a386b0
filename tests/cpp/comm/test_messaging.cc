// Two-sided messages: every size and order of posting, matching, truncation.
#include <atomic>
#include <chrono>
#include <thread>

#include "ways.h"

namespace hmc {
namespace {

using namespace testing;

class Messaging : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Ways, Messaging, ::testing::ValuesIn(all_ways()), [](const auto& p) { return p.param; });

// Around the eager limits, the ring's slots and the ring itself.
std::vector<std::size_t> message_sizes() {
  auto sizes = awkward_sizes();
  for (const std::size_t size : {8191U, 8192U, 8193U, 65536U - 24, 65536U, 65537U, 131072U, 262144U, 262145U, 5'000'001U})
    sizes.push_back(size);
  return sizes;
}

// Gives what was sent time to arrive where nothing can be waited for.
void let_arrive() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

TEST_P(Messaging, EverySizePostedAndUnexpected) {
  const WayPair pair(GetParam());
  std::uint64_t seed = 1;
  for (const std::size_t size : message_sizes()) {
    for (const bool posted : {true, false}) {
      SCOPED_TRACE(std::to_string(size) + (posted ? " posted" : " unexpected"));
      auto message = pattern(size + 3, ++seed);
      const MemoryView out(message.data() + 3, size);
      Guarded target(size + 5);
      Result<Work> received = Work(), sent = Work();
      if (posted) received = pair.ba.irecv(target.view(), 7);
      sent = pair.ab.isend(out, 7);
      ASSERT_TRUE(sent.ok()) << sent.status().str();
      if (!posted) {
        let_arrive();
        received = pair.ba.irecv(target.view(), 7);
      }
      ASSERT_TRUE(received.ok()) << received.status().str();
      HMC_ASSERT_OK(received->wait(soon()));
      HMC_ASSERT_OK(sent->wait(soon()));
      EXPECT_EQ(received->info().bytes, size);
      EXPECT_EQ(received->info().tag, 7);
      EXPECT_EQ(received->info().source, -1);
      for (std::size_t i = 0; i < size; ++i) ASSERT_EQ(target.inner()[i], pattern_byte(i + 3, seed)) << i;
      fill_pattern(target.inner().first(size), 5);
      EXPECT_TRUE(target.holds(size, 5)) << "bytes beyond the message were written";
    }
  }
}

TEST_P(Messaging, BlockingBothWays) {
  const WayPair pair(GetParam());
  std::thread echo([&] {
    for (const std::size_t size : message_sizes()) {
      std::vector<std::byte> bytes(size);
      const auto info = pair.ba.recv(view(bytes), 1, soon());
      EXPECT_TRUE(info.ok()) << info.status().str();
      HMC_EXPECT_OK(pair.ba.send(view(bytes), 2, soon()));
    }
  });
  std::uint64_t seed = 100;
  for (const std::size_t size : message_sizes()) {
    auto bytes = pattern(size, ++seed);
    HMC_EXPECT_OK(pair.ab.send(view(bytes), 1, soon()));
    Guarded back(size);
    const auto info = pair.ab.recv(back.view(), 2, soon());
    EXPECT_TRUE(info.ok()) << info.status().str();
    EXPECT_TRUE(back.holds(size, seed)) << size;
  }
  echo.join();
}

TEST_P(Messaging, AnyMixOfMemory) {
  const WayPair pair(GetParam());
  for (const std::size_t size : {100U, 300'001U}) {
    const auto registered_out = *pair.a.buffer(size), registered_in = *pair.b.buffer(size);
    const auto owned_out = *Memory::allocate(size), owned_in = *Memory::allocate(size);
    std::vector<std::byte> plain_out(size), plain_in(size);
    const std::vector<MemoryView> out{registered_out, owned_out, view(plain_out)};
    const std::vector<MemoryView> in{registered_in, owned_in, view(plain_in)};
    std::uint64_t seed = size;
    for (const auto& from : out) {
      for (const auto& to : in) {
        fill_pattern({static_cast<std::byte*>(from.data), size}, ++seed);
        fill_pattern({static_cast<std::byte*>(to.data), size}, 0);
        const auto received = *pair.ba.irecv(to, 0);
        HMC_ASSERT_OK(pair.ab.send(from, 0, soon()));
        HMC_ASSERT_OK(received.wait(soon()));
        EXPECT_EQ(first_mismatch({static_cast<std::byte*>(to.data), size}, seed), -1);
      }
    }
  }
}

// Slices of buffers that peers know already: the slice moves, not the buffer's beginning.
TEST_P(Messaging, SlicesOfRegisteredBuffers) {
  const WayPair pair(GetParam());
  constexpr std::size_t size = 700'000;
  const auto source = *pair.a.buffer(size), target = *pair.b.buffer(size);
  const auto there = *pair.ab.import(*target.descriptor(), soon()), here = *pair.ba.import(*source.descriptor(), soon());
  HMC_ASSERT_OK(pair.ab.put(source, there)->wait(soon()));
  HMC_ASSERT_OK(pair.ba.get(target, here)->wait(soon()));
  // The owner learns that its memory was read by being told, as in any program.
  HMC_ASSERT_OK(pair.ba.notify(9));
  HMC_ASSERT_OK(pair.ab.wait_notify(9, 1, soon()));
  fill_pattern(span_of(source), 1);
  for (const std::size_t length : {300U, 20'000U, 400'001U}) {
    fill_pattern(span_of(target), 2);
    const std::size_t from = 123'457, to = 200'003;
    const auto received = *pair.ba.irecv(*target.slice(to, length), 1);
    HMC_ASSERT_OK(pair.ab.send(*source.slice(from, length), 1, soon()));
    HMC_ASSERT_OK(received.wait(soon()));
    for (std::size_t i = 0; i < size; ++i) {
      const bool inside = i >= to && i < to + length;
      ASSERT_EQ(span_of(target)[i], inside ? pattern_byte(i - to + from, 1) : pattern_byte(i, 2)) << i << " of " << length;
    }
  }
}

TEST_P(Messaging, TooLongIsAnErrorAndWritesNothing) {
  const WayPair pair(GetParam());
  std::uint64_t seed = 1;
  for (const std::size_t size : {1U, 8U, 8193U, 70'000U, 1'000'003U}) {
    for (const bool posted : {true, false}) {
      SCOPED_TRACE(std::to_string(size) + (posted ? " posted" : " unexpected"));
      auto message = pattern(size, ++seed);
      Guarded small(size - 1);
      Result<Work> received = Work();
      if (posted) received = pair.ba.irecv(small.view(), 3);
      const auto sent = *pair.ab.isend(view(message), 3);
      if (!posted) {
        let_arrive();
        received = pair.ba.irecv(small.view(), 3);
      }
      const Status refused = received->wait(soon());
      EXPECT_EQ(refused.code(), Code::invalid_argument) << refused.str();
      EXPECT_NE(refused.message().find(std::to_string(size) + " bytes"), std::string_view::npos) << refused.str();
      HMC_EXPECT_OK(sent.wait(soon()));
      EXPECT_TRUE(small.untouched());
      // It is consumed, and the next one is not it. The blocking form, too.
      const auto again = *pair.ab.isend(view(message), 3);
      EXPECT_EQ(pair.ba.recv(small.view(), 3, soon()).status().code(), Code::invalid_argument);
      HMC_EXPECT_OK(again.wait(soon()));
      EXPECT_TRUE(small.untouched());
      Guarded enough(size);
      const auto last = *pair.ab.isend(view(message), 3);
      EXPECT_EQ(pair.ba.recv(enough.view(), 3, soon())->bytes, size);
      EXPECT_TRUE(enough.holds(size, seed));
      HMC_EXPECT_OK(last.wait(soon()));
    }
  }
}

// The tag's order is kept although small ones could overtake large ones.
TEST_P(Messaging, OrderPerTagAcrossSizes) {
  const WayPair pair(GetParam());
  constexpr std::size_t count = 90;
  const auto size_of = [](std::size_t i) -> std::size_t {
    return i % 3 == 0 ? 70'000 + i : i % 3 == 1 ? 8 + i : i % 2 == 0 ? 0 : 400'000 - i;
  };
  for (const std::size_t ahead : {count, count / 2, std::size_t{0}}) {  // receives posted before the sends
    std::vector<std::vector<std::byte>> out, in;
    std::vector<Work> works;
    for (std::size_t i = 0; i < count; ++i) {
      out.push_back(pattern(size_of(i), i));
      in.emplace_back(400'000);
    }
    const auto receive = [&](std::size_t i) { works.push_back(*pair.ba.irecv(view(in[i]), i % 2 == 0 ? 11 : any_tag)); };
    for (std::size_t i = 0; i < ahead; ++i) receive(i);
    for (std::size_t i = 0; i < count; ++i) works.push_back(*pair.ab.isend(view(out[i]), 11));
    if (ahead == 0) let_arrive();
    for (std::size_t i = ahead; i < count; ++i) receive(i);
    HMC_ASSERT_OK(wait_all(works, soon()));
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(first_mismatch(std::span(in[i]).first(size_of(i)), i), -1) << i;
    for (std::size_t i = 0, r = 0; i < works.size(); ++i) {
      if (i >= ahead && i < ahead + count) continue;  // the sends
      EXPECT_EQ(works[i].info().bytes, size_of(r++));
    }
  }
}

TEST_P(Messaging, TagsMatchWhateverTheOrderOfArrival) {
  const WayPair pair(GetParam());
  const std::vector<std::int64_t> tags{5, 3, 5, 0, std::int64_t{1} << 62, 3};
  std::vector<std::vector<std::byte>> out;
  for (std::size_t i = 0; i < tags.size(); ++i) {
    out.push_back(pattern(i % 2 == 0 ? 50 + i : 90'000 + i, i));
    HMC_ASSERT_OK(pair.ab.isend(view(out[i]), tags[i]).status());
  }
  let_arrive();
  // By name in an order of the receiver's, then the rest as it came.
  for (const auto& [tag, expected] : std::vector<std::pair<std::int64_t, std::size_t>>{
           {3, 1}, {std::int64_t{1} << 62, 4}, {any_tag, 0}, {any_tag, 2}, {3, 5}, {any_tag, 3}}) {
    Guarded in(100'000);
    const auto info = pair.ba.recv(in.view(), tag, soon());
    ASSERT_TRUE(info.ok()) << info.status().str();
    EXPECT_EQ(info->tag, tags[expected]);
    EXPECT_EQ(info->bytes, out[expected].size());
    EXPECT_TRUE(in.holds(out[expected].size(), expected));
  }
  // Posted receives: the earliest that fits takes it, wildcard or not.
  Guarded any(64), exact(64), last(64);
  const auto first = *pair.ba.irecv(any.view(), any_tag);
  const auto second = *pair.ba.irecv(exact.view(), 9);
  const auto third = *pair.ba.irecv(last.view(), any_tag);
  for (const std::uint64_t seed : {21U, 22U, 23U}) {
    auto bytes = pattern(64, seed);
    HMC_ASSERT_OK(pair.ab.send(view(bytes), seed == 23 ? 1 : 9, soon()));
  }
  HMC_ASSERT_OK(wait_all(std::vector<Work>{first, second, third}, soon()));
  EXPECT_TRUE(any.holds(64, 21));
  EXPECT_TRUE(exact.holds(64, 22));
  EXPECT_TRUE(last.holds(64, 23));
}

TEST_P(Messaging, ManyThreadsEachWithItsTag) {
  const WayPair pair(GetParam());
  constexpr int rounds = 60;
  const auto size_of = [](int thread, int round) -> std::size_t {
    return static_cast<std::size_t>(round % 5 == 0 ? 100'000 + thread : round * 13 + thread);
  };
  const auto seed_of = [](bool from_a, int thread, int round) {
    return static_cast<std::uint64_t>(thread * 1000 + round * 2 + (from_a ? 1 : 0));
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    for (const bool a : {true, false}) {
      threads.emplace_back([&, thread, a] {
        const Peer& peer = a ? pair.ab : pair.ba;
        for (int round = 0; round < rounds; ++round) {
          auto out = pattern(size_of(thread, round), seed_of(a, thread, round));
          Guarded in(100'010);
          const auto sent = peer.isend(view(out), thread);
          const auto info = peer.recv(in.view(), thread, soon());
          if (!info.ok() || !sent.ok()) {
            ADD_FAILURE() << info.status().str() << sent.status().str();
            return;
          }
          EXPECT_TRUE(in.holds(size_of(thread, round), seed_of(!a, thread, round))) << thread << " in round " << round;
          HMC_EXPECT_OK(sent->wait(soon()));
        }
      });
    }
  }
  for (auto& thread : threads) thread.join();
}

TEST_P(Messaging, WrongArgumentsAreRefusedAtOnce) {
  const WayPair pair(GetParam());
  std::vector<std::byte> bytes(8);
  for (const std::int64_t tag : {std::int64_t{-1}, std::int64_t{-2}, (std::int64_t{1} << 62) + 1, INT64_MIN, INT64_MAX}) {
    EXPECT_EQ(pair.ab.isend(view(bytes), tag).status().code(), Code::invalid_argument) << tag;
    EXPECT_EQ(pair.ab.send(view(bytes), tag, soon()).code(), Code::invalid_argument) << tag;
    if (tag == any_tag) continue;
    EXPECT_EQ(pair.ab.irecv(view(bytes), tag).status().code(), Code::invalid_argument) << tag;
    EXPECT_EQ(pair.ab.recv(view(bytes), tag, soon()).status().code(), Code::invalid_argument) << tag;
  }
  EXPECT_EQ(pair.ab.isend({nullptr, 8}).status().code(), Code::invalid_argument);
  EXPECT_EQ(pair.ab.recv({nullptr, 8}, 0, soon()).status().code(), Code::invalid_argument);
  EXPECT_EQ(Peer().send(view(bytes)).code(), Code::invalid_argument);
  EXPECT_EQ(Peer().irecv(view(bytes)).status().code(), Code::invalid_argument);
  // A null pointer is fine where there is nothing to read or write.
  const auto received = *pair.ba.irecv({nullptr, 0}, 4);
  HMC_EXPECT_OK(pair.ab.send({nullptr, 0}, 4, soon()));
  HMC_EXPECT_OK(received.wait(soon()));
  EXPECT_EQ(received.info().bytes, 0U);
}

}  // namespace
}  // namespace hmc
