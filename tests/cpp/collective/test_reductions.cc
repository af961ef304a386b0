// all_reduce, reduce_scatter and reduce among processes: every type, operation and byte, against the same reduction made by one
// process in rank order.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "collective/reduction_data.h"

namespace hmc {
namespace {

using testing::Bytes;
using testing::expected;
using testing::input;
using testing::Process;
using testing::run_job;
using testing::soon;
using testing::view;

std::vector<Reduction> every_reduction() {
  std::vector<Reduction> all;
  for (std::size_t type = 0; type < data_types; ++type) {
    for (std::size_t op = 0; op < reduce_ops; ++op) {
      const Reduction reduction{static_cast<DataType>(type), static_cast<ReduceOp>(op), 0.5};
      if (check_reduction(reduction).ok()) all.push_back(reduction);
    }
  }
  return all;
}

std::string text(const Reduction& reduction, std::size_t count) {
  return std::string(name_of(reduction.op)) + " of " + std::to_string(count) + " " + std::string(name_of(reduction.type));
}

void check_all_reduce(const Member& me, const Reduction& reduction, std::size_t count, bool in_place) {
  const auto ranks = static_cast<std::size_t>(me.size());
  // Not aligned, and nothing around it is touched.
  constexpr std::size_t offset = 3, guard = 5;
  Bytes in(offset), out(offset + count * size_of(reduction.type) + guard, std::byte{0x5C});
  const Bytes mine = input(reduction.type, count, static_cast<std::size_t>(me.rank()));
  in.insert(in.end(), mine.begin(), mine.end());
  MemoryView target = view(out, offset), source = view(in, offset);
  target.bytes -= guard;
  if (in_place) {
    std::copy(mine.begin(), mine.end(), out.begin() + offset);
    source = target;
  }
  HMC_ASSERT_OK(me.all_reduce(target, source, reduction, soon()));
  const Bytes want = expected(reduction, count, ranks);
  ASSERT_TRUE(std::equal(want.begin(), want.end(), out.begin() + offset))
      << text(reduction, count) << (in_place ? ", in place" : "");
  for (std::size_t i = 0; i < offset; ++i) ASSERT_EQ(out[i], std::byte{0x5C});
  for (std::size_t i = 0; i < guard; ++i) ASSERT_EQ(out[out.size() - 1 - i], std::byte{0x5C});
}

TEST(AllReduce, EveryTypeAndOperation) {
  for (const int ranks : {1, 2, 3}) {
    run_job(ranks, [](const Process& process) {
      const Communicator world = process.init();
      const Member me = *world.self();
      for (const Reduction& reduction : every_reduction()) check_all_reduce(me, reduction, 257, false);
      HMC_EXPECT_OK(world.barrier(soon()));
    });
  }
}

TEST(AllReduce, EverySizeInPlaceAndNot) {
  for (const char* transports : {"", "tcp", "shm, but not fused"}) {
    for (const int ranks : {2, 5}) {
      run_job(ranks, [transports](const Process& process) mutable {
        InitOptions options = process.options();
        if (std::string_view(transports).starts_with("shm")) {
          setenv("HMC_FUSED", "0", 1);
          transports = "shm";
        }
        options.context.transports = transports;
        const Communicator world = process.init(options);
        const Member me = *world.self();
        for (const int each : {0, 1, 2, 7, 1023, 4097, 40'000, 300'001}) {
          const auto count = static_cast<std::size_t>(each);
          for (const bool in_place : {false, true}) {
            check_all_reduce(me, {DataType::f32, ReduceOp::sum}, count, in_place);
            check_all_reduce(me, {DataType::u8, ReduceOp::bxor}, count, in_place);
          }
        }
        HMC_EXPECT_OK(world.barrier(soon()));
      });
    }
  }
}

TEST(AllReduce, ManyAtOnce) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    constexpr std::size_t calls = 40;
    const Reduction reduction{DataType::f64, ReduceOp::product};
    std::vector<Bytes> in, out;
    std::vector<Work> works;
    for (std::size_t i = 0; i < calls; ++i) {
      const std::size_t count = i % 4 == 0 ? 100'000 + i : i;
      in.push_back(input(reduction.type, count, static_cast<std::size_t>(me.rank())));
      out.emplace_back(in.back().size());
    }
    for (std::size_t i = 0; i < calls; ++i) works.push_back(*me.iall_reduce(view(out[i]), view(in[i]), reduction));
    for (std::size_t i = 0; i < calls; ++i) {
      HMC_ASSERT_OK(works[i].wait(soon()));
      ASSERT_EQ(out[i], expected(reduction, in[i].size() / 8, 3)) << i;
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(ReduceScatter, EqualAndUnevenBlocks) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    const auto rank = static_cast<std::size_t>(me.rank());
    const Reduction reduction{DataType::i32, ReduceOp::sum};
    for (const int each : {0, 1, 1000, 200'000}) {
      const auto block = static_cast<std::size_t>(each);
      Bytes in = input(reduction.type, 3 * block, rank), out(block * 4, std::byte{0x5C});
      const Bytes want = expected(reduction, 3 * block, 3);
      HMC_ASSERT_OK(me.reduce_scatter(view(out), view(in), reduction, soon()));
      ASSERT_TRUE(std::equal(out.begin(), out.end(), want.begin() + static_cast<std::ptrdiff_t>(rank * block * 4))) << block;
      // In place.
      const MemoryView own{in.data() + rank * block * 4, block * 4};
      HMC_ASSERT_OK(me.reduce_scatter(own, view(in), reduction, soon()));
      ASSERT_TRUE(std::equal(out.begin(), out.end(), in.begin() + static_cast<std::ptrdiff_t>(rank * block * 4))) << block;
    }
    const std::vector<std::uint64_t> counts{400'000, 0, 12}, displacements{0, 400'000, 400'004};
    Bytes in = input(reduction.type, 100'004, rank), out(counts[rank]);
    const Bytes want = expected(reduction, 100'004, 3);
    HMC_ASSERT_OK(me.reduce_scatter_v(view(out), view(in), {counts, displacements}, reduction, soon()));
    ASSERT_TRUE(std::equal(out.begin(), out.end(), want.begin() + static_cast<std::ptrdiff_t>(displacements[rank])));
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(Reduce, EveryRoot) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    const auto rank = static_cast<std::size_t>(me.rank());
    const Reduction reduction{DataType::bf16, ReduceOp::avg};
    for (const int each : {0, 5, 300'000}) {
      const auto count = static_cast<std::size_t>(each);
      for (int root = 0; root < 3; ++root) {
        Bytes in = input(reduction.type, count, rank), out(me.rank() == root ? count * 2 : 0);
        HMC_ASSERT_OK(me.reduce(view(out), view(in), root, reduction, soon()));
        if (me.rank() == root) {
          ASSERT_EQ(out, expected(reduction, count, 3)) << count;
        }
      }
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(Reductions, SeveralMembersOfAProcess) {
  run_job(2, [](const Process& process) {
    InitOptions options = process.options();
    options.devices = {Device::cpu(), Device::cpu()};
    const Communicator world = process.init(options);
    const Reduction reduction{DataType::f32, ReduceOp::max};
    constexpr std::size_t count = 60'000;
    std::vector<Bytes> in, out;
    std::vector<MemberBuffers> all;
    for (const Member& member : world.local()) {
      in.push_back(input(reduction.type, count, static_cast<std::size_t>(member.rank())));
      out.emplace_back(count * 4);
    }
    for (std::size_t i = 0; i < 2; ++i) all.push_back({world.local()[i], view(out[i]), view(in[i])});
    HMC_ASSERT_OK(world.all_reduce(all, reduction, soon()));
    for (const Bytes& each : out) ASSERT_EQ(each, expected(reduction, count, 4));
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(Reductions, WrongArgumentsAreRefusedByName) {
  run_job(1, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    Bytes in(16), out(16);
    const auto refused = [](const Status& status, std::string_view part) {
      EXPECT_EQ(status.code(), Code::invalid_argument);
      EXPECT_NE(status.message().find(part), std::string::npos) << status.str();
    };
    refused(me.all_reduce(view(out, 8), view(in), {}), "16 bytes, the output 8");
    refused(me.all_reduce(view(out, 1), view(in, 1), {DataType::f32}), "15 bytes are no whole number of f32");
    refused(me.all_reduce(view(out), view(in), {DataType::f32, ReduceOp::band}), "band of f32");
    refused(me.reduce(view(out), view(in), 1, {}), "root 1 is no rank");
    Bytes both(24);
    refused(me.all_reduce({both.data() + 8, 16}, {both.data(), 16}, {}), "overlap");
    const std::uint64_t count = 8, at = 8;
    refused(me.reduce_scatter_v({both.data(), 8}, {both.data(), 24}, {{&count, 1}, {&at, 1}}, {}), "overlap");
    HMC_EXPECT_OK(me.reduce_scatter_v({both.data() + 8, 8}, {both.data(), 24}, {{&count, 1}, {&at, 1}}, {}));
    HMC_EXPECT_OK(me.all_reduce(view(out), view(in), {DataType::u8}));
  });
}

// Whichever differs: every rank gets an error that names both calls, and nobody waits for its deadline.
TEST(Reductions, MismatchesAreNamedOnEveryRank) {
  struct Wrong {
    Reduction reduction;
    std::size_t bytes;
    const char* expected;
  };
  for (const Wrong& wrong : {Wrong{{DataType::i32, ReduceOp::sum}, 64, "all_reduce of i32, sum"},
                             Wrong{{DataType::f32, ReduceOp::max}, 64, "all_reduce of f32, max"},
                             Wrong{{DataType::f32, ReduceOp::sum}, 1 << 20, "another size, root or factor"},
                             Wrong{{DataType::f32, ReduceOp::premul_sum, 3}, 64, "all_reduce of f32, premul_sum"}}) {
    run_job(3, [&wrong](const Process& process) {
      const Communicator world = process.init();
      const Member me = *world.self();
      HMC_ASSERT_OK(world.barrier(soon()));  // everybody is there
      const bool odd = me.rank() == 1;
      Bytes in(odd ? wrong.bytes : 64), out(in.size());
      const Reduction reduction = odd ? wrong.reduction : Reduction{DataType::f32, ReduceOp::sum};
      const Status status = me.all_reduce(view(out), view(in), reduction, soon());
      EXPECT_EQ(status.code(), Code::invalid_argument) << status.str();
      EXPECT_NE(status.message().find(wrong.expected), std::string::npos) << status.str();
    });
  }
}

// Whoever reduces would scale by its own factor, and ranks would differ.
TEST(Reductions, FactorsThatDifferAreAnErrorOnEveryRank) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    HMC_ASSERT_OK(world.barrier(soon()));
    Bytes in(64), out(64);
    const Status status = me.all_reduce(view(out), view(in), {DataType::f32, ReduceOp::premul_sum, 1.0 + me.rank()}, soon());
    EXPECT_EQ(status.code(), Code::invalid_argument) << status.str();
    EXPECT_NE(status.message().find("another size, root or factor"), std::string::npos) << status.str();
  });
}

// A thread makes exact sums of large blocks that came by messages.
TEST(Reductions, WithoutAThreadForItTheyFailEverywhere) {
  run_job(2, [](const Process& process) {
    setenv("HMC_FUSED", "0", 1);
    const Communicator world = process.init();
    const Member me = *world.self();
    Bytes data = input(DataType::f32, 1 << 20, static_cast<std::size_t>(me.rank()));
    HMC_ASSERT_OK(world.barrier(soon()));
    std::optional<testing::NoThreads> refused;
    if (me.rank() == 1) refused.emplace();
    const Status status = me.all_reduce(view(data), view(data), {.type = DataType::f32, .exact = true}, soon());
    EXPECT_EQ(status.code(), Code::out_of_memory) << status.str();
    process.board[0].fetch_add(1);
    EXPECT_TRUE(process.board.wait(0, 2));
  });
}

TEST(Reductions, ADeadRankIsNamed) {
  run_job(3,
          [](const Process& process) {
            const Communicator world = process.init();
            const Member me = *world.self();
            Bytes in(8 << 20), out(in.size());
            HMC_ASSERT_OK(me.all_reduce(view(out), view(in), {}, soon()));
            if (me.rank() == 2) {
              const auto work = me.iall_reduce(view(out), view(in), {});
              kill(getpid(), SIGKILL);
            }
            Status status;
            while (status.ok()) status = me.all_reduce(view(out), view(in), {}, soon());
            EXPECT_EQ(status.code(), Code::peer_lost) << status.str();
            EXPECT_NE(status.message().find("rank 2"), std::string::npos) << status.str();
          },
          {.killed = {2}, .rendezvous = ""});
}

TEST(Reductions, ARankThatNeverCallsEndsAtTheDeadline) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    Bytes in(1 << 20, std::byte{1}), out(in.size(), std::byte{2});
    if (me.rank() == 0) {
      const Status status = me.all_reduce(view(out), view(in), {DataType::u8}, Deadline::after_seconds(0.2));
      EXPECT_EQ(status.code(), Code::timeout) << status.str();
      EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.str();
      process.board[0].store(1);
    } else {
      EXPECT_TRUE(process.board.wait(0, 1));
    }
  });
}

}  // namespace
}  // namespace hmc
