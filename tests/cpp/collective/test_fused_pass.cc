// One pass over shared slots, of all ranks in one process: in random order, and by a thread for each.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "collective/fused/announcements.h"
#include "collective/fused/pass.h"
#include "collective/fused/segment.h"
#include "testing.h"

namespace hmc::fused {
namespace {

using Bytes = std::vector<std::byte>;

constexpr ReduceStep sum_of_u16{.type = DataType::u16, .op = ReduceOp::sum};

Bytes input(std::uint32_t rank, std::uint64_t bytes) { return testing::pattern(bytes, rank * 7919 + 1); }

Bytes reduced(std::uint32_t ranks, std::uint64_t bytes) {
  std::vector<Bytes> inputs;
  std::vector<const void*> sources;
  for (std::uint32_t r = 0; r < ranks; ++r) inputs.push_back(input(r, bytes));
  for (const Bytes& each : inputs) sources.push_back(each.data());
  Bytes result(bytes);
  reduce_on_cpu(result.data(), sources, bytes / 2, sum_of_u16);
  return result;
}

enum class Kind { all_reduce, all_reduce_in_place, reduce, reduce_scatter };

// One rank's arrays, what they are to hold, and how it takes part.
struct Rank {
  Rank(Kind kind, std::uint32_t rank, std::uint32_t ranks, std::uint64_t bytes) : in(input(rank, bytes)) {
    const Bytes all = reduced(ranks, bytes);
    const std::uint32_t root = ranks - 1;
    if (kind == Kind::reduce_scatter) {
      // Uneven, and the first block is empty.
      std::uint64_t at = 0;
      for (std::uint32_t r = 0; r < ranks; ++r) {
        counts.push_back(r == 0 ? 0 : r + 1 == ranks ? bytes - at : (bytes - at) / 4 * 2);
        displacements.push_back(at);
        at += counts.back();
      }
      plan = plan_reduce_scatter({counts, displacements});
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(displacements[rank]);
      want.assign(begin, begin + static_cast<std::ptrdiff_t>(counts[rank]));
    } else if (kind == Kind::reduce) {
      plan = plan_reduce(rank, ranks, root, bytes, 2);
      if (rank == root) want = all;
    } else {
      plan = plan_all_reduce(rank, ranks, bytes, 2);
      want = all;
    }
    out.assign(want.size(), std::byte{0x5C});
    if (kind == Kind::all_reduce_in_place) out = in;
    const MemoryView to{out.data(), out.size()};
    buffers = {kind == Kind::all_reduce_in_place ? to : MemoryView{in.data(), in.size()}, to, sum_of_u16};
  }

  Bytes in, out, want;
  std::vector<std::uint64_t> counts, displacements;
  std::shared_ptr<const Plan> plan;
  CollectiveBuffers buffers;
};

constexpr Kind kinds[] = {Kind::all_reduce, Kind::reduce_scatter, Kind::all_reduce_in_place, Kind::reduce};

TEST(FusedPass, EveryByteWhateverTheOrder) {
  std::mt19937 random(7);
  for (const std::uint32_t ranks : {2U, 3U, 7U}) {
    const auto segment = Segment::create(ranks);
    ASSERT_TRUE(segment.ok()) << segment.status().str();
    const Slots& slots = (*segment)->slots();
    const std::uint64_t chunk = slots.chunk();
    std::uint64_t first = 0;
    for (const Kind kind : kinds) {
      for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{2}, std::uint64_t{4098}, 2 * chunk * ranks,
                                        2 * chunk * ranks + 2, 11 * chunk * ranks - 2}) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, kind " + std::to_string(static_cast<int>(kind)) + ", " +
                     std::to_string(bytes) + " bytes");
        std::vector<std::unique_ptr<Rank>> all;
        std::vector<std::unique_ptr<Pass>> passes;
        for (std::uint32_t r = 0; r < ranks; ++r) {
          all.push_back(std::make_unique<Rank>(kind, r, ranks, bytes));
          passes.push_back(std::make_unique<Pass>(slots, r, all[r]->plan, all[r]->buffers, first));
        }
        for (bool left = true; left;) {
          left = false;
          bool moved = false;
          std::vector<std::uint32_t> order(ranks);
          for (std::uint32_t r = 0; r < ranks; ++r) order[r] = r;
          std::shuffle(order.begin(), order.end(), random);
          for (const std::uint32_t r : order) {
            if (passes[r]->done()) continue;
            left = true;
            if (random() % 3 == 0) continue;
            const bool could = passes[r]->can_advance();
            const bool did = passes[r]->advance(random() % 2 == 0 ? 1 : 1 << 20);
            ASSERT_EQ(could, did);
            moved = moved || did;
          }
          if (left && !moved) {
            bool stuck = true;
            for (const auto& pass : passes) stuck = stuck && !pass->can_advance();
            ASSERT_FALSE(stuck);
          }
        }
        for (std::uint32_t r = 0; r < ranks; ++r) {
          ASSERT_EQ(all[r]->out, all[r]->want) << "rank " << r;
          ASSERT_EQ(passes[r]->end(), passes[0]->end());
          for (std::uint32_t other = 0; other < ranks; ++other) ASSERT_FALSE(passes[r]->needs(other));
        }
        first = passes[0]->end();
      }
    }
    EXPECT_GT(first, 4 * depth);
  }
}

TEST(FusedPass, ByAThreadForEachRank) {
  constexpr std::uint32_t ranks = 3;
  const auto segment = Segment::create(ranks);
  ASSERT_TRUE(segment.ok()) << segment.status().str();
  const Slots& slots = (*segment)->slots();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (std::uint32_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      std::uint64_t first = 0;
      for (int call = 0; call < 12; ++call) {
        Rank own(kinds[call % 4], r, ranks, 300'000 + static_cast<std::uint64_t>(call) * 50'002);
        Pass pass(slots, r, own.plan, own.buffers, first);
        while (!pass.done()) {
          if (!pass.advance(1 << 16)) std::this_thread::yield();
        }
        first = pass.end();
        if (own.out != own.want) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(FusedPass, NeedsARankUntilItHasDoneItsPart) {
  const auto segment = Segment::create(2);
  ASSERT_TRUE(segment.ok()) << segment.status().str();
  Rank zero(Kind::all_reduce, 0, 2, 100), one(Kind::all_reduce, 1, 2, 100);
  Pass first((*segment)->slots(), 0, zero.plan, zero.buffers, 0), second((*segment)->slots(), 1, one.plan, one.buffers, 0);
  while (first.advance(1)) continue;
  EXPECT_TRUE(first.needs(1));
  EXPECT_FALSE(first.needs(0)) << "itself";
  while (second.advance(1)) continue;
  EXPECT_TRUE(second.needs(0)) << "its result is not there";
  EXPECT_TRUE(first.advance(1));
  while (first.advance(1)) continue;
  EXPECT_FALSE(first.needs(1));
  EXPECT_TRUE(first.done());
}

TEST(FusedSegment, WhatIsNoSegmentIsRefused) {
  EXPECT_FALSE(Segment::attach(UniqueFd(), 2).ok());
  UniqueFd unsealed = make_memfd("test");
  ASSERT_EQ(ftruncate(unsealed.get(), static_cast<off_t>(Slots::bytes_for(2))), 0);
  EXPECT_EQ(Segment::attach(std::move(unsealed), 2).status().code(), Code::protocol);
  const auto small = Segment::create(2);
  ASSERT_TRUE(small.ok()) << small.status().str();
  EXPECT_EQ(Segment::attach((*small)->fd().duplicate(), 3).status().code(), Code::protocol);
  const auto same = Segment::attach((*small)->fd().duplicate(), 2);
  ASSERT_TRUE(same.ok()) << same.status().str();
  (*same)->slots().board(1).published.store(7);
  EXPECT_EQ((*small)->slots().board(1).published.load(), 7U);
  EXPECT_TRUE((*same)->reserve(1).ok());
}

TEST(Announcements, AreFoundUnderTheirSequence) {
  const auto segment = Segment::create(2);
  ASSERT_TRUE(segment.ok()) << segment.status().str();
  Board& board = (*segment)->slots().board(0);
  EXPECT_FALSE(in_chunks_under(board, 0));
  announce_fused(board, {0, 100, 7, by_mapped | by_native});
  EXPECT_EQ(in_chunks_under(board, 0)->bytes, 100U);
  EXPECT_EQ(in_chunks_under(board, 0)->ways, by_mapped | by_native);
  EXPECT_FALSE(is_beyond(board, 0));
  announce_fused(board, {200, 50, 7, 0});
  EXPECT_EQ(in_chunks_under(board, 0)->bytes, 100U) << "the one before is kept";
  EXPECT_EQ(in_chunks_under(board, 200)->ways, 0U);
  EXPECT_FALSE(in_chunks_under(board, 150));
  EXPECT_TRUE(is_beyond(board, 150));
  announce_fused(board, {201, 60, 7, by_cpu});
  EXPECT_FALSE(in_chunks_under(board, 0));
  EXPECT_EQ(in_chunks_under(board, 200)->bytes, 50U);
  EXPECT_TRUE(is_beyond(board, 200));
  EXPECT_FALSE(is_beyond(board, 201));
  EXPECT_FALSE(other_call(board, 5));
  announce_other(board, 5, 9);
  EXPECT_EQ(other_call(board, 5), 9U);
  EXPECT_FALSE(other_call(board, 5 + announcement_count)) << "the entry is that of an earlier one";
  announce_other(board, 5 + announcement_count, 8);
  EXPECT_FALSE(other_call(board, 5)) << "a later one took its place";
}

}  // namespace
}  // namespace hmc::fused
