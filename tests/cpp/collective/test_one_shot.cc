// Small reductions in one exchange, of all ranks in one process: in random order, and by a thread for each.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "collective/fused/one_shot.h"
#include "collective/fused/segment.h"
#include "testing.h"

namespace hmc::fused {
namespace {

using Bytes = std::vector<std::byte>;

constexpr ReduceStep sum_of_u16{.type = DataType::u16, .op = ReduceOp::sum};

enum class Kind { all_reduce, in_place, reduce, scatter, scatter_apart };
constexpr Kind kinds[] = {Kind::all_reduce, Kind::scatter, Kind::in_place, Kind::reduce, Kind::scatter_apart};

// One rank's arrays in call `call`, what they are to hold, and how it takes part.
struct Rank {
  Rank(Kind kind, std::uint32_t rank, std::uint32_t ranks, std::uint64_t bytes, std::uint64_t call) {
    std::vector<Bytes> inputs;
    std::vector<const void*> sources;
    for (std::uint32_t r = 0; r < ranks; ++r) inputs.push_back(testing::pattern(bytes, call * 100 + r));
    for (const Bytes& each : inputs) sources.push_back(each.data());
    Bytes all(bytes);
    reduce_on_cpu(all.data(), sources, bytes / 2, sum_of_u16);
    in = inputs[rank];
    if (kind == Kind::scatter || kind == Kind::scatter_apart) {
      std::uint64_t at = 0;
      for (std::uint32_t r = 0; r < ranks; ++r) {
        counts.push_back(r + 1 == ranks ? bytes - at : (bytes - at) / 4 * 2);
        packed.push_back(at);
        at += counts.back();
      }
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(packed[rank]);
      want.assign(begin, begin + static_cast<std::ptrdiff_t>(counts[rank]));
      displacements = packed;
      if (kind == Kind::scatter_apart) lie_apart(rank, ranks);
      way = way_of_reduce_scatter(rank, {counts, displacements});
    } else if (kind == Kind::reduce) {
      way = way_of_reduce(rank, ranks, ranks - 1, bytes, 2);
      if (rank + 1 == ranks) want = all;
    } else {
      way = way_of_all_reduce(rank, ranks, bytes, 2);
      want = all;
    }
    out.assign(want.size(), std::byte{0x5C});
    if (kind == Kind::in_place) out = in;
    const MemoryView to{out.data(), out.size()};
    buffers = {kind == Kind::in_place ? to : MemoryView{in.data(), in.size()}, to, sum_of_u16};
  }
  // The last block first, and as many bytes as the rank's number between the blocks: other displacements at every rank.
  void lie_apart(std::uint32_t rank, std::uint32_t ranks) {
    Bytes apart(in.size() + std::size_t{rank} * ranks, std::byte{0x33});
    std::uint64_t at = 0;
    for (std::uint32_t r = ranks; r-- > 0;) {
      displacements[r] = at;
      std::copy_n(in.begin() + static_cast<std::ptrdiff_t>(packed[r]), counts[r], apart.begin() + static_cast<std::ptrdiff_t>(at));
      at += counts[r] + rank;
    }
    in = apart;
  }
  Announced announces(std::uint64_t sequence) const { return {sequence, way.bytes, 9, by_cpu}; }

  Bytes in, out, want;
  std::vector<std::uint64_t> counts, packed, displacements;
  Way way;
  CollectiveBuffers buffers;
};

bool all_announced(const Slots& slots, std::uint64_t sequence, std::uint64_t bytes) {
  for (std::uint32_t r = 0; r < slots.ranks(); ++r) {
    const auto theirs = in_one_shot_under(slots.board(r), sequence);
    if (!theirs) return false;
    EXPECT_EQ(theirs->bytes, bytes);
    EXPECT_EQ(theirs->call, 9U);
    EXPECT_EQ(theirs->ways, by_cpu);
  }
  return true;
}

std::vector<std::uint64_t> sizes_among(std::uint32_t ranks) {
  const std::uint64_t most = shot_bytes / (ranks - 1) / 2 * 2;
  std::vector<std::uint64_t> sizes{0, 2, 38, 40, 42, 4094, 4096, 4098, most - 2, most};
  std::erase_if(sizes, [most](std::uint64_t bytes) { return bytes > most; });
  return sizes;
}

TEST(OneShot, IsForSmallInputs) {
  for (const std::uint32_t ranks : {2U, 3U, 32U}) {
    for (const std::uint64_t bytes : sizes_among(ranks)) EXPECT_FALSE(way_of_all_reduce(0, ranks, bytes, 2).chunks) << bytes;
    const std::uint64_t more = shot_bytes / (ranks - 1) + 2;
    EXPECT_TRUE(way_of_all_reduce(0, ranks, more, 2).chunks);
    EXPECT_TRUE(way_of_reduce(0, ranks, 1, more, 2).chunks);
    EXPECT_TRUE(way_of_all_reduce(0, ranks, std::uint64_t{1} << 62, 2).chunks);
  }
}

TEST(OneShot, EveryByteWhateverTheOrder) {
  std::mt19937 random(11);
  for (const std::uint32_t ranks : {2U, 3U, 7U}) {
    const auto segment = Segment::create(ranks);
    ASSERT_TRUE(segment.ok()) << segment.status().str();
    const Slots& slots = (*segment)->slots();
    std::vector<OneShots> shots(ranks);
    std::uint64_t sequence = 3;
    for (const Kind kind : kinds) {
      for (const std::uint64_t bytes : sizes_among(ranks)) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, kind " + std::to_string(static_cast<int>(kind)) + ", " +
                     std::to_string(bytes) + " bytes");
        std::vector<std::unique_ptr<Rank>> all;
        std::vector<std::uint32_t> order;
        for (std::uint32_t r = 0; r < ranks; ++r) {
          all.push_back(std::make_unique<Rank>(kind, r, ranks, bytes, sequence));
          order.push_back(r);
        }
        std::shuffle(order.begin(), order.end(), random);
        for (const std::uint32_t r : order) {
          ASSERT_FALSE(in_one_shot_under(slots.board(r), sequence));
          ASSERT_TRUE(shots[r].can_publish(slots)) << "all have published the call before";
          shots[r].publish(slots, r, all[r]->announces(sequence), all[r]->way, all[r]->buffers);
          ASSERT_EQ(in_one_shot_under(slots.board(r), sequence)->bytes, bytes);
          ASSERT_EQ(all_announced(slots, sequence, bytes), r == order.back());
        }
        std::shuffle(order.begin(), order.end(), random);
        for (const std::uint32_t r : order) {
          EXPECT_EQ(OneShots::finish(slots, r, sequence, all[r]->way, all[r]->buffers), all[r]->want.size() * (ranks - 1));
          ASSERT_EQ(all[r]->out, all[r]->want) << "rank " << r;
        }
        sequence += random() % 3 + 1;
      }
    }
  }
}

// A rank that is ahead leaves alone what another has not taken.
TEST(OneShot, ASlotIsFreeOnceAllArePastItsCall) {
  const auto segment = Segment::create(2);
  ASSERT_TRUE(segment.ok()) << segment.status().str();
  const Slots& slots = (*segment)->slots();
  OneShots fast, slow;
  const Way way{nullptr, 0};
  for (const std::uint64_t sequence : {0U, 1U}) {
    ASSERT_TRUE(fast.can_publish(slots));
    fast.publish(slots, 0, {sequence, 0, 9, 0}, way, {});
  }
  EXPECT_FALSE(fast.can_publish(slots));
  slow.publish(slots, 1, {0, 0, 9, by_cpu}, way, {});
  EXPECT_FALSE(fast.can_publish(slots)) << "the other rank may still look at call 0";
  EXPECT_EQ(in_one_shot_under(slots.board(0), 0)->ways, 0U);
  slow.publish(slots, 1, {1, 0, 9, by_cpu}, way, {});
  EXPECT_TRUE(fast.can_publish(slots));
  EXPECT_TRUE(slow.can_publish(slots));
}

// Where ranks call with other sizes, one of them does without one-shot calls that the others make.
TEST(OneShot, RanksMayHaveMadeOtherNumbersOfThem) {
  const auto segment = Segment::create(2);
  ASSERT_TRUE(segment.ok()) << segment.status().str();
  const Slots& slots = (*segment)->slots();
  OneShots one, other;
  const Way way{nullptr, 0};
  one.publish(slots, 0, {0, 0, 9, by_cpu}, way, {});
  one.declined(0);
  const auto both_call = [&](std::uint64_t sequence) {
    Rank first(kinds[0], 0, 2, 40 * sequence, sequence), second(kinds[0], 1, 2, 40 * sequence, sequence);
    ASSERT_TRUE(one.can_publish(slots) && other.can_publish(slots)) << sequence;
    one.publish(slots, 0, first.announces(sequence), first.way, first.buffers);
    other.publish(slots, 1, second.announces(sequence), second.way, second.buffers);
    OneShots::finish(slots, 0, sequence, first.way, first.buffers);
    OneShots::finish(slots, 1, sequence, second.way, second.buffers);
    EXPECT_EQ(first.out, first.want) << sequence;
    EXPECT_EQ(second.out, second.want) << sequence;
  };
  for (std::uint64_t sequence = 1; sequence < 8; ++sequence) both_call(sequence);
  // The other rank carries out calls in another form until it is past what was published.
  one.publish(slots, 0, {8, 0, 9, by_cpu}, way, {});
  EXPECT_FALSE(one.can_publish(slots));
  slots.board(1).past.store(7);
  EXPECT_FALSE(one.can_publish(slots)) << "it may still look at call 7";
  slots.board(1).past.store(8);
  EXPECT_TRUE(one.can_publish(slots));
}

TEST(OneShot, ByAThreadForEachRank) {
  constexpr std::uint32_t ranks = 3;
  const auto segment = Segment::create(ranks);
  ASSERT_TRUE(segment.ok()) << segment.status().str();
  const Slots& slots = (*segment)->slots();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      OneShots own;
      for (std::uint64_t call = 0; call < 300; ++call) {
        const std::uint64_t bytes = call % 3 == 0 ? call * 20 : call % 3 == 1 ? call / 2 * 2 : 8;
        Rank mine(kinds[call % 5], r, ranks, bytes, call);
        while (!own.can_publish(slots)) std::this_thread::yield();
        own.publish(slots, r, mine.announces(call), mine.way, mine.buffers);
        while (!all_announced(slots, call, bytes)) std::this_thread::yield();
        OneShots::finish(slots, r, call, mine.way, mine.buffers);
        if (mine.out != mine.want) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace hmc::fused
