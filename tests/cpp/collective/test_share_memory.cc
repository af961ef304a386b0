// Communicators that are made after init(): their ranks come to share memory, and what happens where one of them does not.
#include <numeric>

#include "collective/communicator_state.h"
#include "collective/group.h"
#include "collective/job.h"
#include "collective/world.h"

namespace hmc {
namespace {

using testing::Process;
using testing::run_job;
using testing::soon;

constexpr Reduction added{DataType::i64, ReduceOp::sum};

std::uint64_t fused_calls(const Communicator& communicator) { return communicator.context().counters()["fused.count"]; }

Status add_up(const Communicator& communicator, std::size_t count, std::vector<std::int64_t>& values) {
  const int me = communicator.self()->rank();
  values.resize(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<std::int64_t>(i) * (me + 1) - me;
  const MemoryView view(values.data(), count * sizeof(std::int64_t));
  return communicator.self()->all_reduce(view, view, added, soon());
}

// Every element, of sums in one shot and in chunks; and whether they went through shared memory.
void expect_sums(const Communicator& communicator, bool shared) {
  for (const std::size_t count : {1U, 1'001U, 100'003U}) {
    const std::uint64_t before = fused_calls(communicator);
    std::vector<std::int64_t> values;
    HMC_ASSERT_OK(add_up(communicator, count, values));
    const std::int64_t size = communicator.size();
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(values[i], static_cast<std::int64_t>(i) * size * (size + 1) / 2 - size * (size - 1) / 2) << i << " of " << count;
    }
    EXPECT_EQ(fused_calls(communicator) > before, shared) << count;
  }
}

// Nobody uses the group before all have made it.
Communicator subgroup(const Process& process, const Communicator& world, std::vector<int> ranks, std::size_t word = 0) {
  auto made = world.subgroup(ranks, 90 + static_cast<std::uint32_t>(word));
  EXPECT_TRUE(made.ok()) << made.status().str();
  process.board[word].fetch_add(1);
  EXPECT_TRUE(process.board.wait(word, static_cast<long>(ranks.size())));
  return made.ok() ? *made : Communicator();
}

TEST(ShareMemory, OfASubgroup) {
  run_job(4, [](const Process& process) {
    const Communicator world = process.init();
    if (process.rank != 1) {
      const Communicator group = subgroup(process, world, {3, 0, 2});
      HMC_ASSERT_OK(group.share_memory(soon()));
      HMC_EXPECT_OK(group.share_memory(soon()));  // it has
      expect_sums(group, true);
    }
    HMC_EXPECT_OK(world.barrier(soon()));
    HMC_EXPECT_OK(world.share_memory(soon()));  // it always had
    expect_sums(world, true);
  });
}

TEST(ShareMemory, OfASubgroupThatHasBegun) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const Communicator group = subgroup(process, world, {0, 1});
    expect_sums(group, false);
    EXPECT_EQ(group.share_memory(soon()).code(), Code::invalid_argument);
    expect_sums(group, false);
    EXPECT_EQ(Communicator().share_memory().code(), Code::invalid_argument);
  });
}

TEST(ShareMemory, WhereOneRankCannot) {
  run_job(3, [](const Process& process) {
    if (process.rank == 1) setenv("HMC_FUSED", "0", 1);
    const Communicator world = process.init();
    const Communicator group = subgroup(process, world, {0, 1, 2});
    HMC_ASSERT_OK(group.share_memory(soon()));
    expect_sums(group, false);
    const auto shrunk = world.shrink(soon());
    HMC_ASSERT_OK(shrunk.status());
    expect_sums(*shrunk, false);
  });
}

TEST(ShareMemory, AnotherCallIsNamed) {
  for (const int odd : {0, 2}) {  // the one whose process makes the memory, and another
    for (const int others_too : {0, 1}) {
      run_job(3, [&](const Process& process) {
        const Communicator world = process.init();
        const Communicator group = subgroup(process, world, {0, 1, 2});
        const bool adds = process.rank == odd || (others_too == 1 && process.rank == 1);
        std::vector<std::int64_t> values;
        const Status status = adds ? add_up(group, 10, values) : group.share_memory(soon());
        EXPECT_EQ(status.code(), Code::invalid_argument) << status.str();
        for (const char* word : {"share_memory", "all_reduce"})
          EXPECT_NE(status.message().find(word), std::string_view::npos) << word << ": " << status.str();
        process.board[1].fetch_add(1);
        EXPECT_TRUE(process.board.wait(1, 3));
      });
    }
  }
}

TEST(ShareMemory, AnAbortAndACloseEndIt) {
  for (const int missing : {0, 2}) {
    for (const bool aborts : {true, false}) {
      run_job(3, [&](const Process& process) {
        const Communicator world = process.init();
        const Communicator group = subgroup(process, world, {0, 1, 2});
        if (process.rank == missing) {
          ASSERT_TRUE(process.board.wait(1, 2));  // they are about to call it
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          HMC_EXPECT_OK(aborts ? group.abort("enough") : group.close(soon()));
        } else {
          process.board[1].fetch_add(1);
          const auto began = std::chrono::steady_clock::now();
          const Status status = group.share_memory(soon());
          EXPECT_EQ(status.code(), aborts ? Code::cancelled : Code::closed) << status.str();
          EXPECT_NE(status.message().find("rank " + std::to_string(missing)), std::string_view::npos) << status.str();
          EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30));
        }
        process.board[2].fetch_add(1);
        EXPECT_TRUE(process.board.wait(2, 3));
        HMC_EXPECT_OK(world.barrier(soon()));
      });
    }
  }
}

// Also while the rank that makes the memory has not sent it.
TEST(ShareMemory, AnotherThreadsCloseEndsIt) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const Communicator group = subgroup(process, world, {0, 1});
    if (process.rank == 1) {
      std::thread closer([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        HMC_EXPECT_OK(group.close(soon()));
      });
      const Deadline deadline = soon(30);
      EXPECT_EQ(group.state()->group->world()->offers().share(*group.state()->group, true, deadline), nullptr);
      EXPECT_FALSE(deadline.passed());
      closer.join();
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(ShareMemory, TheDeadlineEndsItWhereARankDoesNotCome) {
  for (const int missing : {0, 2}) {  // the one whose process makes the memory, and another
    run_job(3, [missing](const Process& process) {
      const Communicator world = process.init();
      const Communicator group = subgroup(process, world, {0, 1, 2});
      if (process.rank != missing) {
        const Status status = group.share_memory(soon(0.3));
        EXPECT_EQ(status.code(), Code::timeout) << status.str();
      }
      process.board[1].fetch_add(1);
      EXPECT_TRUE(process.board.wait(1, 3));
      HMC_EXPECT_OK(world.barrier(soon()));
    });
  }
}

TEST(ShareMemory, ADeadRankIsNamed) {
  for (const int killed : {0, 2}) {
    run_job(3,
            [killed](const Process& process) {
              const Communicator world = process.init();
              const Communicator group = subgroup(process, world, {0, 1, 2});
              if (process.rank == killed) testing::die();
              const Status status = group.share_memory(soon());
              EXPECT_EQ(status.code(), Code::peer_lost) << status.str();
              EXPECT_NE(status.message().find("rank " + std::to_string(killed)), std::string_view::npos) << status.str();
              const auto left = world.shrink(soon());
              HMC_ASSERT_OK(left.status());
              EXPECT_EQ(left->size(), 2);
              expect_sums(*left, true);
            },
            {.killed = {killed}});
  }
}

TEST(ShareMemory, OfTheLivingAndOfTheGrown) {
  run_job(4,
          [](const Process& process) {
            const Communicator world = process.init();
            expect_sums(world, true);
            if (process.rank == 0) testing::die();
            const auto left = world.shrink(soon());
            HMC_ASSERT_OK(left.status());
            expect_sums(*left, true);
            const auto again = left->shrink(soon());
            HMC_ASSERT_OK(again.status());
            expect_sums(*again, true);
            expect_sums(*left, true);
            HMC_EXPECT_OK(again->barrier(soon()));
          },
          {.killed = {0}});
}

// Ranks that leave as soon as they have the Communicator leave nobody behind in the call.
TEST(ShareMemory, RanksMayLeaveAtOnce) {
  for (int round = 0; round < 10; ++round) {
    run_job(4, [](const Process& process) {
      const Communicator world = process.init();
      const auto left = world.shrink(soon());
      HMC_ASSERT_OK(left.status());
      HMC_EXPECT_OK(left->close(soon()));
      const Communicator group = subgroup(process, world, {3, 1, 0, 2}, 1);
      HMC_EXPECT_OK(group.share_memory(soon()));
      HMC_EXPECT_OK(group.close(soon()));
    });
  }
}

}  // namespace
}  // namespace hmc
