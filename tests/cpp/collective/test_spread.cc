// broadcast, all_gather, gather and scatter among processes: every byte, every root, in place, uneven blocks.
#include "collective/job.h"

namespace hmc {
namespace {

using testing::Bytes;
using testing::Process;
using testing::run_job;
using testing::soon;
using testing::view;

Bytes made(std::size_t bytes, std::size_t seed) {
  Bytes result(bytes);
  testing::fill_pattern(result, seed);
  return result;
}

constexpr std::size_t sizes[] = {0, 1, 777, 4097, 300'001};

TEST(Broadcast, EveryRootAndSize) {
  for (const int ranks : {1, 2, 3, 5}) {
    run_job(ranks, [](const Process& process) {
      const Communicator world = process.init();
      const Member me = *world.self();
      for (const std::size_t bytes : sizes) {
        for (int root = 0; root < me.size(); ++root) {
          const auto seed = static_cast<std::size_t>(root) + bytes;
          Bytes data = me.rank() == root ? made(bytes, seed) : Bytes(bytes);
          HMC_ASSERT_OK(me.broadcast(view(data), root, soon()));
          ASSERT_EQ(data, made(bytes, seed)) << bytes << " bytes from " << root;
        }
      }
      HMC_EXPECT_OK(world.barrier(soon()));
    });
  }
}

TEST(AllGather, EqualUnevenAndInPlace) {
  for (const int ranks : {1, 2, 3, 5}) {
    run_job(ranks, [](const Process& process) {
      const Communicator world = process.init();
      const Member me = *world.self();
      const auto size = static_cast<std::size_t>(me.size()), rank = static_cast<std::size_t>(me.rank());
      for (const std::size_t bytes : sizes) {
        Bytes in = made(bytes, rank), out(bytes * size), want;
        for (std::size_t r = 0; r < size; ++r) {
          const Bytes block = made(bytes, r);
          want.insert(want.end(), block.begin(), block.end());
        }
        HMC_ASSERT_OK(me.all_gather(view(out), view(in), soon()));
        ASSERT_EQ(out, want) << bytes;
        Bytes both(bytes * size);
        std::copy(in.begin(), in.end(), both.begin() + static_cast<std::ptrdiff_t>(rank * bytes));
        HMC_ASSERT_OK(me.all_gather(view(both), {both.data() + rank * bytes, bytes}, soon()));
        ASSERT_EQ(both, want) << bytes << ", in place";
      }
      std::vector<std::uint64_t> counts(size), displacements(size);
      std::uint64_t at = 0;
      for (std::size_t r = size; r-- > 0;) {  // in reverse, with gaps
        counts[r] = r == 1 ? 0 : 100 + r;
        displacements[r] = at + 2;
        at = displacements[r] + counts[r];
      }
      Bytes in = made(counts[rank], rank), out(at, std::byte{0x5C});
      HMC_ASSERT_OK(me.all_gather_v(view(out), {counts, displacements}, view(in), soon()));
      for (std::size_t r = 0; r < size; ++r) {
        const Bytes block = made(counts[r], r);
        ASSERT_TRUE(std::equal(block.begin(), block.end(), out.begin() + static_cast<std::ptrdiff_t>(displacements[r])));
        ASSERT_EQ(out[displacements[r] - 1], std::byte{0x5C});
      }
      HMC_EXPECT_OK(world.barrier(soon()));
    });
  }
}

TEST(GatherAndScatter, EveryRootEqualAndInPlace) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    const auto rank = static_cast<std::size_t>(me.rank());
    for (const std::size_t bytes : sizes) {
      for (int root = 0; root < 3; ++root) {
        const bool at_root = me.rank() == root;
        Bytes in = made(bytes, rank), all(at_root ? 3 * bytes : 0);
        HMC_ASSERT_OK(me.gather(view(all), view(in), root, soon()));
        Bytes out(bytes);
        HMC_ASSERT_OK(me.scatter(view(out), view(all), root, soon()));
        ASSERT_EQ(out, in) << bytes << " bytes, root " << root;
        for (std::size_t r = 0; at_root && r < 3; ++r) {
          const Bytes block = made(bytes, r);
          ASSERT_TRUE(std::equal(block.begin(), block.end(), all.begin() + static_cast<std::ptrdiff_t>(r * bytes)));
        }
        if (at_root) in = all;
        const MemoryView own{in.data() + (at_root ? rank * bytes : 0), bytes};
        HMC_ASSERT_OK(me.gather(at_root ? view(in) : MemoryView{}, own, root, soon()));
        HMC_ASSERT_OK(me.scatter(own, at_root ? view(in) : MemoryView{}, root, soon()));
        ASSERT_EQ(in, at_root ? all : made(bytes, rank)) << "in place";
      }
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(GatherAndScatter, UnevenBlocks) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    const auto rank = static_cast<std::size_t>(me.rank());
    const std::vector<std::uint64_t> counts{70'000, 0, 3}, displacements{5, 1, 70'010};
    Bytes in = made(counts[rank], rank), all(me.rank() == 1 ? 70'013 : 0), out(counts[rank]);
    HMC_ASSERT_OK(me.gather_v(view(all), {counts, displacements}, view(in), 1, soon()));
    HMC_ASSERT_OK(me.scatter_v(view(out), view(all), {counts, displacements}, 1, soon()));
    ASSERT_EQ(out, in);
    // Other ranks' layouts are not looked at.
    HMC_ASSERT_OK(
        me.gather_v(view(all), me.rank() == 1 ? Member::Layout{counts, displacements} : Member::Layout{}, view(in), 1, soon()));
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

// A root does not wait for the others, so it may have ended before.
TEST(Broadcast, AnotherRootIsNamedWhereItIsAwaited) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    HMC_ASSERT_OK(world.barrier(soon()));
    Bytes data(100);
    const Status status = me.broadcast(view(data), me.rank() == 2 ? 1 : 0, soon());
    if (me.rank() == 2) {
      EXPECT_EQ(status.code(), Code::invalid_argument) << status.str();
      EXPECT_NE(status.message().find("another size, root or factor"), std::string::npos) << status.str();
    }
    process.board[0].fetch_add(1);
    EXPECT_TRUE(process.board.wait(0, 3));
  });
}

}  // namespace
}  // namespace hmc
