// Bytes handed on through shared slots, of all ranks in one process: in random order, and by a thread for each.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "collective/fused/one_shot.h"
#include "collective/fused/segment.h"
#include "testing.h"

namespace hmc::fused::spread_tests {
namespace {

using Bytes = std::vector<std::byte>;

enum class Kind { all_to_all, all_gather, in_place, uneven, broadcast };
constexpr Kind kinds[] = {Kind::all_to_all, Kind::all_gather, Kind::in_place, Kind::uneven, Kind::broadcast};
constexpr Algorithm both[] = {Algorithm::shared_whole, Algorithm::shared_pass};

Bytes block(std::uint64_t call, std::uint32_t from, std::uint32_t to, std::uint64_t bytes) {
  return testing::pattern(bytes, call * 1009 + from * 37 + to + 1);
}

// One rank's arrays in call `call`, what they are to hold, and how it takes part. Blocks of at most `bytes`.
struct Rank {
  Rank(Kind kind, std::uint32_t rank, std::uint32_t ranks, std::uint64_t bytes, std::uint64_t call,
       Algorithm algorithm = Algorithm::chosen) {
    if (kind == Kind::broadcast) {
      const auto root = static_cast<std::uint32_t>(call % ranks);
      want = block(call, root, 0, bytes);
      out = rank == root ? want : Bytes(bytes, std::byte{0x5C});
      way = way_of_broadcast(rank, root, bytes, algorithm);
      buffers = {{}, view(out)};
      taken = rank == root ? 0 : bytes;
      return;
    }
    const bool exchanges = kind == Kind::all_to_all;
    std::vector<std::uint64_t> counts(ranks, bytes), at(ranks);
    if (kind == Kind::uneven) {  // one is empty, the last one comes first, and there are gaps
      for (std::uint32_t r = 0; r < ranks; ++r) counts[r] = bytes * r / (ranks - 1);
      for (std::uint32_t r = ranks - 1; r-- > 0;) at[r] = at[r + 1] + counts[r + 1] + 3;
    } else {
      for (std::uint32_t r = 0; r < ranks; ++r) at[r] = r * bytes;
    }
    out.assign(std::reduce(counts.begin(), counts.end()) + 3 * ranks, std::byte{0x5C});
    want = out;
    for (std::uint32_t r = 0; r < ranks; ++r) {
      const Bytes from = block(call, r, exchanges ? rank : 0, counts[r]);
      std::ranges::copy(from, want.begin() + static_cast<std::ptrdiff_t>(at[r]));
      if (r != rank) taken += from.size();
      const Bytes mine = block(call, rank, exchanges ? r : 0, counts[rank]);
      if (exchanges || r == rank) in.insert(in.end(), mine.begin(), mine.end());
    }
    way = exchanges ? way_of_all_to_all(ranks, bytes, algorithm) : way_of_all_gather(rank, {counts, at}, algorithm);
    buffers = {view(in), view(out)};
    if (kind == Kind::in_place) {
      std::ranges::copy(in, out.begin() + static_cast<std::ptrdiff_t>(at[rank]));
      buffers.in.data = out.data() + at[rank];
    }
  }
  static MemoryView view(Bytes& bytes) { return {bytes.data(), bytes.size()}; }

  Bytes in, out, want;
  std::uint64_t taken = 0;
  Way way;
  CollectiveBuffers buffers;
};

std::string text(std::uint32_t ranks, Kind kind, std::uint64_t bytes) {
  return std::to_string(ranks) + " ranks, kind " + std::to_string(static_cast<int>(kind)) + ", " + std::to_string(bytes) + " bytes";
}

// Until all are done, in random order. False: nothing moves any more.
bool carry_out(std::vector<std::unique_ptr<Spread>>& spreads, std::mt19937& random) {
  std::vector<std::size_t> order(spreads.size());
  std::iota(order.begin(), order.end(), 0U);
  for (bool left = true; left;) {
    left = false;
    std::shuffle(order.begin(), order.end(), random);
    bool moved = false, could = false;
    for (const std::size_t r : order) {
      if (spreads[r]->done()) continue;
      left = true;
      could = could || spreads[r]->can_advance();
      if (random() % 3 != 0) moved = spreads[r]->advance(random() % 2 == 0 ? 1 : 1 << 20) || moved;
    }
    if (left && !moved && !could) return false;
  }
  return true;
}

TEST(FusedSpread, EveryByteWhateverTheOrder) {
  std::mt19937 random(17);
  for (const std::uint32_t ranks : {2U, 3U, 7U}) {
    const auto segment = Segment::create(ranks);
    ASSERT_TRUE(segment.ok()) << segment.status().str();
    const Slots& slots = (*segment)->slots();
    const std::uint64_t chunk = spread_chunk(slots, true);
    std::uint64_t first = 0, call = 0;
    for (const Kind kind : kinds) {
      for (const std::uint64_t bytes :
           testing::swept<std::uint64_t>({1, 4097, chunk, chunk + 1, 11 * chunk - 1}, {4097, 3 * chunk - 1})) {
        SCOPED_TRACE(text(ranks, kind, bytes));
        std::vector<std::unique_ptr<Rank>> all;
        std::vector<std::unique_ptr<Spread>> spreads;
        for (std::uint32_t r = 0; r < ranks; ++r) {
          all.push_back(std::make_unique<Rank>(kind, r, ranks, bytes, call, Algorithm::shared_pass));
          ASSERT_TRUE(all[r]->way.in_chunks());
          spreads.push_back(std::make_unique<Spread>(slots, r, *all[r]->way.spread, all[r]->buffers, first));
        }
        ASSERT_TRUE(carry_out(spreads, random));
        for (std::uint32_t r = 0; r < ranks; ++r) {
          ASSERT_EQ(all[r]->out, all[r]->want) << "rank " << r;
          ASSERT_EQ(spreads[r]->bytes_taken(), all[r]->taken) << "rank " << r;
          ASSERT_EQ(spreads[r]->end(), spreads[0]->end());
          for (std::uint32_t other = 0; other < ranks; ++other) ASSERT_FALSE(spreads[r]->needs(other));
        }
        first = spreads[0]->end();
        ++call;
      }
    }
    EXPECT_GT(first, 4 * depth);
  }
}

// Else it would announce its next call before the others have seen this one.
TEST(FusedSpread, NoRankEndsBeforeAllHaveBegun) {
  constexpr std::uint32_t ranks = 3;
  for (const Kind kind : kinds) {
    for (std::uint32_t late = 0; late < ranks; ++late) {
      const auto segment = Segment::create(ranks);
      ASSERT_TRUE(segment.ok()) << segment.status().str();
      std::vector<std::unique_ptr<Rank>> all;
      std::vector<std::unique_ptr<Spread>> spreads;
      for (std::uint32_t r = 0; r < ranks; ++r) {
        all.push_back(std::make_unique<Rank>(kind, r, ranks, 200'000, late + 1, Algorithm::shared_pass));
        spreads.push_back(std::make_unique<Spread>((*segment)->slots(), r, *all[r]->way.spread, all[r]->buffers, 0));
      }
      for (int round = 0; round < 20; ++round) {
        for (std::uint32_t r = 0; r < ranks; ++r) {
          if (r != late) spreads[r]->advance(1 << 20);
        }
      }
      for (std::uint32_t r = 0; r < ranks; ++r) {
        SCOPED_TRACE(text(ranks, kind, 200'000) + ", rank " + std::to_string(r) + ", late " + std::to_string(late));
        EXPECT_FALSE(spreads[r]->done());
        EXPECT_EQ(spreads[r]->needs(late), r != late);
      }
      std::mt19937 random(3);
      ASSERT_TRUE(carry_out(spreads, random));
      for (std::uint32_t r = 0; r < ranks; ++r) EXPECT_EQ(all[r]->out, all[r]->want);
    }
  }
}

// Reductions and calls of both forms use the same slots.
TEST(FusedSpread, ByAThreadForEachRankBetweenReductions) {
  constexpr std::uint32_t ranks = 3;
  const auto segment = Segment::create(ranks);
  ASSERT_TRUE(segment.ok()) << segment.status().str();
  const Slots& slots = (*segment)->slots();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      std::uint64_t first = 0;
      const auto finish = [&](Passing& passing) {
        while (!passing.done()) {
          if (!passing.advance(1 << 16)) std::this_thread::yield();
        }
        first = passing.end();
      };
      for (std::uint64_t call = 0; call < 60; ++call) {
        Rank own(kinds[call % 5], r, ranks, 1 + call * 7001, call, Algorithm::shared_pass);
        Spread spread(slots, r, *own.way.spread, own.buffers, first);
        finish(spread);
        if (own.out != own.want) ++wrong;
        Bytes array(200'000, static_cast<std::byte>(r + call)), sum(array.size());
        Pass pass(slots, r, plan_all_reduce(r, ranks, array.size(), 1),
                  {Rank::view(array), Rank::view(sum), {.type = DataType::u8, .op = ReduceOp::sum}}, first);
        finish(pass);
        if (sum != Bytes(array.size(), static_cast<std::byte>(3 * call + 3))) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(FusedSpread, SmallCallsInOneShot) {
  std::mt19937 random(5);
  for (const std::uint32_t ranks : {2U, 3U, 7U}) {
    const auto segment = Segment::create(ranks);
    ASSERT_TRUE(segment.ok()) << segment.status().str();
    const Slots& slots = (*segment)->slots();
    std::vector<OneShots> shots(ranks);
    std::uint64_t sequence = 4;
    for (const Kind kind : kinds) {
      for (const std::uint64_t bytes : {0U, 1U, 5U, 13U, 40U, 41U, 4095U, 9362U}) {
        SCOPED_TRACE(text(ranks, kind, bytes));
        std::vector<std::unique_ptr<Rank>> all;
        std::vector<std::uint32_t> order(ranks);
        std::iota(order.begin(), order.end(), 0U);
        std::shuffle(order.begin(), order.end(), random);
        for (std::uint32_t r = 0; r < ranks; ++r) all.push_back(std::make_unique<Rank>(kind, r, ranks, bytes, sequence));
        for (const std::uint32_t r : order) {
          ASSERT_FALSE(all[r]->way.in_chunks());
          ASSERT_EQ(all[r]->way.bytes, all[0]->way.bytes);
          ASSERT_TRUE(shots[r].can_publish(slots));
          shots[r].publish(slots, r, {sequence, all[r]->way.bytes, 9, by_cpu}, all[r]->way, all[r]->buffers);
        }
        std::shuffle(order.begin(), order.end(), random);
        for (const std::uint32_t r : order) {
          EXPECT_EQ(OneShots::finish(slots, r, sequence, all[r]->way, all[r]->buffers), all[r]->taken);
          ASSERT_EQ(all[r]->out, all[r]->want) << "rank " << r;
        }
        sequence += random() % 3 + 1;
      }
    }
  }
}

TEST(FusedSpread, TheFormIsAlikeAtEveryRank) {
  for (const std::uint32_t ranks : {2U, 3U, 32U}) {
    for (const Kind kind : kinds) {
      for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{2048}, shot_bytes / ranks, shot_bytes / ranks + 1,
                                        shot_bytes, shot_bytes + 1, std::uint64_t{200'000}}) {
        SCOPED_TRACE(text(ranks, kind, bytes));
        for (const Algorithm algorithm : both) {
          const Rank front(kind, 0, ranks, bytes, 1, algorithm), back(kind, ranks - 1, ranks, bytes, 1, algorithm);
          EXPECT_EQ(front.way.in_chunks(), back.way.in_chunks());
          EXPECT_EQ(front.way.bytes, back.way.bytes);
          EXPECT_EQ(front.way.spread->longest, back.way.spread->longest);
          if (algorithm == Algorithm::shared_pass) {
            EXPECT_EQ(front.way.in_chunks(), bytes > 0);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace hmc::fused::spread_tests
