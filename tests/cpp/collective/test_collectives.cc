// Barrier and all-to-all among processes: every byte, sizes that do not fit, overlap with other work.
#include "collective/job.h"

namespace hmc {
namespace {

using testing::Bytes;
using testing::first_mismatch;
using testing::Process;
using testing::run_job;
using testing::soon;
using testing::view;

std::uint64_t seed(std::size_t from, std::size_t to, std::size_t block) { return from * 100 + to * 7 + block; }

Bytes input(std::size_t me, std::size_t size, std::size_t block, std::size_t offset) {
  Bytes in(size * block + offset);
  for (std::size_t to = 0; to < size; ++to)
    testing::fill_pattern(std::span(in).subspan(offset + to * block, block), seed(me, to, block));
  return in;
}

void check(const Bytes& out, std::size_t me, std::size_t size, std::size_t block, std::size_t offset) {
  for (std::size_t i = 0; i < offset; ++i) ASSERT_EQ(out[i], std::byte{0x5C}) << "written before the buffer";
  for (std::size_t from = 0; from < size; ++from) {
    ASSERT_EQ(first_mismatch(std::span(out).subspan(offset + from * block, block), seed(from, me, block)), -1)
        << block << " bytes from " << from;
  }
}

TEST(AllToAll, EverySizeEveryByte) {
  for (const int ranks : {1, 2, 4, 5}) {
    run_job(ranks, [](const Process& process) {
      const Communicator world = process.init();
      const Member me = *world.self();
      const auto size = static_cast<std::size_t>(world.size()), rank = static_cast<std::size_t>(me.rank());
      for (const std::size_t block : testing::awkward_sizes()) {
        const std::size_t offset = block % 3 * 5;
        Bytes in = input(rank, size, block, offset), out(size * block + offset, std::byte{0x5C});
        HMC_ASSERT_OK(me.all_to_all(view(out, offset), view(in, offset), soon()));
        check(out, rank, size, block, offset);
      }
      HMC_EXPECT_OK(world.barrier(soon()));
    });
  }
}

TEST(AllToAll, LargeBlocks) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    const std::size_t block = testing::large(6 << 20) + 12345;
    Bytes in = input(static_cast<std::size_t>(me.rank()), 3, block, 0), out(3 * block);
    for (int round = 0; round < 2; ++round) {
      std::fill(out.begin(), out.end(), std::byte{0});
      HMC_ASSERT_OK(me.all_to_all(view(out), view(in), soon()));
      check(out, static_cast<std::size_t>(me.rank()), 3, block, 0);
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(AllToAll, ManyInFlightWithoutFurtherCalls) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    const auto rank = static_cast<std::size_t>(me.rank());
    std::vector<Bytes> ins, outs;
    std::vector<Work> works;
    const std::vector<std::size_t> blocks{1, 64, 5000, 200000, 3, 1 << 20};
    for (const std::size_t block : blocks) {
      ins.push_back(input(rank, 3, block, 0));
      outs.emplace_back(3 * block);
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      auto work = me.iall_to_all(view(outs[i]), view(ins[i]));
      ASSERT_TRUE(work.ok()) << work.status().str();
      works.push_back(*work);
    }
    // Nobody waits: the background alone brings them to an end.
    for (const Work& work : works) {
      const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      while (!work.done() && std::chrono::steady_clock::now() < give_up) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ASSERT_TRUE(work.done());
      HMC_EXPECT_OK(work.status());
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) check(outs[i], rank, 3, blocks[i], 0);
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(AllToAll, SixteenRanksAreRelayed) {
  run_job(17, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    for (const std::size_t block : {1U, 63U, 1024U, 1025U}) {
      Bytes in = input(static_cast<std::size_t>(me.rank()), 17, block, 0), out(17 * block);
      HMC_ASSERT_OK(me.all_to_all(view(out), view(in), soon()));
      check(out, static_cast<std::size_t>(me.rank()), 17, block, 0);
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

std::uint64_t count_of(std::size_t from, std::size_t to, std::size_t scale) {
  return (from + 2 * to) % 3 == 0 ? 0 : (from * 5 + to * 3 + 1) * scale;
}

struct Uneven {
  std::vector<std::uint64_t> counts, displacements;
  std::uint64_t total = 0;
  void add(std::uint64_t count) {
    total += 11;
    counts.push_back(count);
    displacements.push_back(total);
    total += count;
  }
  [[nodiscard]] Member::Layout layout() const { return {counts, displacements}; }
};

TEST(AllToAllV, UnevenWithEmptyBlocks) {
  run_job(4, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    const auto rank = static_cast<std::size_t>(me.rank());
    for (const std::size_t scale : {1U, 100U, 9001U, 100003U}) {
      Uneven in_layout, out_layout;
      for (std::size_t r = 0; r < 4; ++r) {
        in_layout.add(count_of(rank, r, scale));
        out_layout.add(count_of(r, rank, scale));
      }
      Bytes in(in_layout.total), out(out_layout.total, std::byte{0x5C});
      for (std::size_t r = 0; r < 4; ++r) {
        testing::fill_pattern(std::span(in).subspan(in_layout.displacements[r], in_layout.counts[r]), seed(rank, r, scale));
      }
      HMC_ASSERT_OK(me.all_to_all_v(view(out), out_layout.layout(), view(in), in_layout.layout(), soon()));
      for (std::size_t r = 0; r < 4; ++r) {
        EXPECT_EQ(first_mismatch(std::span(out).subspan(out_layout.displacements[r], out_layout.counts[r]), seed(r, rank, scale)),
                  -1);
        for (std::size_t gap = 1; gap <= 11; ++gap) EXPECT_EQ(out[out_layout.displacements[r] - gap], std::byte{0x5C});
      }
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

// Rank 0 sends rank 1 something else than rank 1 expects: rank 1 sees it, all else arrives, and the group goes on.
TEST(AllToAllV, MismatchIsSeenAndHangsNobody) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    const auto rank = static_cast<std::size_t>(me.rank());
    struct Case {
      std::uint64_t sent, expected;
    };
    for (const Case& one :
         {Case{50, 100}, Case{100, 50}, Case{0, 100}, Case{100, 0}, Case{300000, 200000}, Case{200000, 300000}, Case{0, 1}}) {
      Uneven in_layout, out_layout;
      for (std::size_t r = 0; r < 3; ++r) {
        in_layout.add(rank == 0 && r == 1 ? one.sent : 40 + r);
        out_layout.add(rank == 1 && r == 0 ? one.expected : 40 + rank);
      }
      Bytes in(in_layout.total), out(out_layout.total);
      for (std::size_t r = 0; r < 3; ++r) {
        testing::fill_pattern(std::span(in).subspan(in_layout.displacements[r], in_layout.counts[r]), seed(rank, r, 0));
      }
      const Status status = me.all_to_all_v(view(out), out_layout.layout(), view(in), in_layout.layout(), soon());
      if (rank == 1) {
        EXPECT_EQ(status.code(), Code::invalid_argument) << status.str();
        EXPECT_NE(status.message().find("rank 0"), std::string_view::npos) << status.str();
      } else {
        HMC_EXPECT_OK(status);
      }
      for (std::size_t r = 0; r < 3; ++r) {
        if (rank == 1 && r == 0) continue;
        EXPECT_EQ(first_mismatch(std::span(out).subspan(out_layout.displacements[r], out_layout.counts[r]), seed(r, rank, 0)), -1);
      }
      HMC_ASSERT_OK(world.barrier(soon()));
    }
  });
}

TEST(AllToAll, OneRankWithAnotherBlockSizeHangsNobody) {
  for (const int ranks : {3, 16}) {
    run_job(ranks, [](const Process& process) {
      const Communicator world = process.init();
      const Member me = *world.self();
      const auto size = static_cast<std::size_t>(world.size());
      Bytes in(size * (process.rank == 1 ? 100 : 60)), out(in.size());
      const Status status = me.all_to_all(view(out), view(in), soon());
      EXPECT_EQ(status.code(), Code::invalid_argument) << status.str();
      HMC_EXPECT_OK(world.barrier(soon()));
    });
  }
}

TEST(AllToAll, WrongBuffersAreRefusedBeforeAnythingMoves) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    Bytes a(64), b(64), odd(63);
    const auto code = [&](const MemoryView& out, const MemoryView& in) { return me.all_to_all(out, in, soon()).code(); };
    EXPECT_EQ(code(view(a), view(odd)), Code::invalid_argument);
    EXPECT_EQ(code(view(odd), view(odd)), Code::invalid_argument);
    EXPECT_EQ(code(view(a), view(a)), Code::invalid_argument);
    EXPECT_EQ(code({a.data() + 32, 32}, {a.data() + 1, 32}), Code::invalid_argument);
    EXPECT_EQ(code({nullptr, 64}, view(a)), Code::invalid_argument);
    const std::vector<std::uint64_t> counts{32, 32}, fine{0, 32}, overlapping{0, 31}, outside{0, 33},
        huge{0, ~std::uint64_t{0} - 8}, one{0};
    const auto code_v = [&](const Member::Layout& out, const Member::Layout& in) {
      return me.all_to_all_v(view(a), out, view(b), in, soon()).code();
    };
    EXPECT_EQ(code_v({counts, overlapping}, {counts, fine}), Code::invalid_argument);
    EXPECT_EQ(code_v({counts, outside}, {counts, fine}), Code::invalid_argument);
    EXPECT_EQ(code_v({counts, huge}, {counts, fine}), Code::invalid_argument);
    EXPECT_EQ(code_v({counts, fine}, {counts, huge}), Code::invalid_argument);
    EXPECT_EQ(code_v({counts, fine}, {one, one}), Code::invalid_argument);
    HMC_EXPECT_OK(me.all_to_all({nullptr, 0}, {nullptr, 0}, soon()));
    HMC_EXPECT_OK(me.all_to_all(view(a), view(b), soon()));
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(Barrier, NobodyLeavesBeforeEverybodyHasCome) {
  for (const int ranks : {2, 3, 6}) {
    run_job(ranks, [](const Process& process) {
      const Communicator world = process.init();
      for (long round = 0; round < 20; ++round) {
        if ((process.rank + round) % process.size == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
        process.board[0].fetch_add(1);
        HMC_ASSERT_OK(world.barrier(soon()));
        EXPECT_GE(process.board[0].load(), (round + 1) * process.size);
      }
    });
  }
}

TEST(Barrier, ThousandsInARow) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    for (int i = 0; i < (testing::slow() ? 2000 : 5000); ++i) HMC_ASSERT_OK(world.barrier(soon()));
  });
}

// Who closes right after the last barrier must not make the others' last barrier fail.
TEST(Barrier, LeavingAtOnceHurtsNobody) {
  for (int round = 0; round < 5; ++round) {
    run_job(4, [](const Process& process) {
      const Communicator world = process.init();
      HMC_EXPECT_OK(world.barrier(soon()));
      HMC_EXPECT_OK(world.close());
    });
  }
}

TEST(Barrier, TimeoutNamesTheRankAndEndsCollectives) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    HMC_ASSERT_OK(world.barrier(soon()));
    if (me.rank() == 2) {
      ASSERT_TRUE(process.board.wait(0, 2));
      EXPECT_GE(process.board[2].load(), 1);
      const Status late = world.barrier(soon());  // the news may come before it or meet it under way
      EXPECT_TRUE(late.code() == Code::closed || late.code() == Code::timeout) << late.str();
      EXPECT_EQ(world.barrier(soon()).code(), Code::closed);
    } else {
      const Status status = world.barrier(Deadline::after_seconds(0.3));
      // The first to time out tells the other, whichever rank that is waiting for. The news may come before the other's call.
      if (status.code() == Code::timeout) process.board[2].fetch_add(1);
      EXPECT_TRUE(status.code() == Code::timeout || status.code() == Code::closed) << status.str();
      EXPECT_NE(status.message().find("rank "), std::string_view::npos) << status.str();
      const Status again = world.barrier(soon());
      EXPECT_EQ(again.code(), Code::closed) << again.str();
      process.board[0].fetch_add(1);
    }
    // Messages still go.
    Bytes bytes(10);
    if (me.rank() == 2) HMC_EXPECT_OK(me.send(view(bytes), 0, 1, soon()));
    if (me.rank() == 0) HMC_EXPECT_OK(me.recv(view(bytes), 2, 1, soon()).status());
    process.board[1].fetch_add(1);
    EXPECT_TRUE(process.board.wait(1, 3));
  });
}

TEST(AllToAll, CancelEndsItAndTellsTheOthers) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    HMC_ASSERT_OK(world.barrier(soon()));
    Bytes in(64), out(64, std::byte{7});
    if (me.rank() == 0) {
      const auto work = me.iall_to_all(view(out), view(in));
      ASSERT_TRUE(work.ok());
      HMC_EXPECT_OK(work->cancel());
      EXPECT_EQ(work->wait(soon()).code(), Code::cancelled);
      process.board[0].store(1);
    } else {
      ASSERT_TRUE(process.board.wait(0, 1));
      static_cast<void>(me.all_to_all(view(out), view(in), soon()));  // may have all it needs
      EXPECT_FALSE(world.barrier(soon()).ok());
    }
    process.board[1].fetch_add(1);
    EXPECT_TRUE(process.board.wait(1, 2));
  });
}

}  // namespace
}  // namespace hmc
