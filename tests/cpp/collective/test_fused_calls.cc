// Fused reductions among processes: what ends them, who notices, and what happens where a rank cannot take part.

#include "collective/job.h"

namespace hmc {
namespace {

using testing::Bytes;
using testing::Process;
using testing::run_job;
using testing::soon;
using testing::view;
using testing::wait_until_stopped;

// Of a rank's input: in one shot (within the announcement, and beside it), and in chunks.
std::size_t fused_bytes = 0;
class FusedCalls : public ::testing::TestWithParam<std::size_t> {
 protected:
  void SetUp() override { fused_bytes = GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Bytes, FusedCalls, ::testing::Values(24, 5'001, 1 << 20));
constexpr Reduction xored{DataType::u8, ReduceOp::bxor};

Bytes input(int rank, std::size_t bytes) { return testing::pattern(bytes, static_cast<std::uint64_t>(rank) * 31 + 5); }

Bytes expected(int ranks, std::size_t bytes) {
  Bytes all(bytes);
  for (int r = 0; r < ranks; ++r) {
    const Bytes each = input(r, bytes);
    for (std::size_t i = 0; i < bytes; ++i) all[i] ^= each[i];
  }
  return all;
}

Status all_reduce(const Member& me, Deadline deadline, std::size_t bytes) {
  Bytes in = input(me.rank(), bytes), out(bytes);
  const Status status = me.all_reduce(view(out), view(in), xored, deadline);
  if (status.ok()) {
    EXPECT_EQ(out, expected(me.size(), bytes));
  }
  return status;
}

Status all_reduce(const Member& me, Deadline deadline) { return all_reduce(me, deadline, fused_bytes); }

// A rank is in another collective, and may only wait there for what this one does not send.
TEST_P(FusedCalls, AMismatchIsNamedOnEveryRank) {
  for (const std::string other : {"barrier", "broadcast", "gather", "all_reduce", "another way", "reduce_scatter", "reduce"}) {
    for (const int odd : {0, 2}) {
      run_job(3, [&](const Process& process) {
        const Communicator world = process.init();
        const Member me = *world.self();
        HMC_ASSERT_OK(all_reduce(me, soon()));
        Status status;
        Bytes in(fused_bytes * 3), out(fused_bytes * 3);
        const MemoryView large{out.data(), fused_bytes};
        if (me.rank() != odd) {
          status = all_reduce(me, soon());
        } else if (other == "barrier") {
          status = me.barrier(soon());
        } else if (other == "broadcast") {
          status = me.broadcast(large, (odd + 1) % 3, soon());
        } else if (other == "gather") {
          status = me.gather(view(out), {in.data(), fused_bytes}, odd, soon());
        } else if (other == "all_reduce") {
          status = all_reduce(me, soon(), fused_bytes + 1);
        } else if (other == "another way") {
          status = all_reduce(me, soon(), fused_bytes > 100'000 ? 100 : 100'000);
        } else if (other == "reduce_scatter") {
          status = me.reduce_scatter(large, view(in), xored, soon());
        } else {
          status = me.reduce(large, {in.data(), fused_bytes}, odd, xored, soon());
        }
        EXPECT_EQ(status.code(), Code::invalid_argument) << status.str();
        for (const std::string& word :
             {other == "another way" ? "all_reduce" : other, std::string("all_reduce"), "rank " + std::to_string(odd) + " ("})
          EXPECT_NE(status.message().find(word), std::string_view::npos) << word << ": " << status.str();
        process.board[0].fetch_add(1);
        EXPECT_TRUE(process.board.wait(0, 3));
      });
    }
  }
}

TEST(FusedCallsOfAllSizes, ManyUnderWayAmongOthersThatAreNot) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    constexpr std::size_t calls = 150;  // more than announcements are kept
    std::vector<Bytes> in, out;
    std::vector<Work> works;
    for (std::size_t i = 0; i < calls; ++i) {
      in.push_back(input(me.rank(), i % 3 == 0 ? 40'001 + i : i));
      out.emplace_back(in.back().size());
    }
    for (std::size_t i = 0; i < calls; ++i) {
      works.push_back(*me.iall_reduce(view(out[i]), view(in[i]), xored));
      if (i % 10 == 0) works.push_back(*me.ibarrier());
    }
    HMC_ASSERT_OK(wait_all(works, soon()));
    for (std::size_t i = 0; i < calls; ++i) ASSERT_EQ(out[i], expected(3, in[i].size())) << i;
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

// Sleepers are woken, also by a process that they were never connected with.
TEST_P(FusedCalls, RanksThatSleepAreWoken) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    for (int late = 0; late < 3; ++late) {
      if (me.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(150));
      const auto before = std::chrono::steady_clock::now();
      HMC_ASSERT_OK(all_reduce(me, soon()));
      EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(30));
    }
    // In the background, with nobody waiting.
    Bytes in = input(me.rank(), fused_bytes), out(fused_bytes);
    std::atomic<bool> done{false};
    const Work work = *me.iall_reduce(view(out), view(in), xored);
    work.then([&done](const Status&) { done = true; });
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!done && std::chrono::steady_clock::now() < give_up) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(done);
    EXPECT_EQ(out, expected(3, fused_bytes));
    process.board[0].fetch_add(1);
    EXPECT_TRUE(process.board.wait(0, 3));
  });
}

TEST(FusedCallsInChunks, AStoppedRankHoldsNobodyBeyondTheDeadline) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    HMC_ASSERT_OK(all_reduce(me, soon()));
    if (me.rank() == 1) {
      static Bytes in = input(1, testing::lengthy(64 << 20)), out(in.size());
      const auto work = me.iall_reduce(view(out), view(in), xored);
      process.board[1].store(getpid());
      raise(SIGSTOP);
      HMC_ASSERT_OK(work.status());
      EXPECT_FALSE(work->wait(soon()).ok());
      return;
    }
    ASSERT_TRUE(process.board.wait(1, 1));
    ASSERT_TRUE(wait_until_stopped(static_cast<pid_t>(process.board[1].load())));
    Bytes in = input(me.rank(), testing::lengthy(64 << 20)), out(in.size(), std::byte{0x5C});
    const auto before = std::chrono::steady_clock::now();
    const Status status = me.all_reduce(view(out), view(in), xored, Deadline::after_seconds(0.3));
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(30));
    if (me.rank() == 0 || !status.ok()) {
      EXPECT_FALSE(status.ok());
    }
    // Nobody writes after the error.
    const Bytes kept = out;
    process.board[2].fetch_add(1);
    EXPECT_TRUE(process.board.wait(2, 2));
    if (me.rank() == 0) kill(static_cast<pid_t>(process.board[1].load()), SIGCONT);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(out, kept);
  });
}

TEST_P(FusedCalls, ARankThatDiesOrLeavesIsNamed) {
  for (const int gone : {0, 2}) {
    for (const bool dies : {true, false}) {
      run_job(3,
              [gone, dies](const Process& process) {
                const Communicator world = process.init();
                const Member me = *world.self();
                HMC_ASSERT_OK(all_reduce(me, soon()));
                if (me.rank() == gone) {
                  EXPECT_TRUE(process.board.wait(0, 2));
                  std::this_thread::sleep_for(std::chrono::milliseconds(30));
                  if (dies) testing::die();
                  HMC_EXPECT_OK(world.close(soon()));
                  return;
                }
                process.board[0].fetch_add(1);
                const auto before = std::chrono::steady_clock::now();
                const Status status = all_reduce(me, soon());
                EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(30));
                EXPECT_TRUE(status.code() == Code::peer_lost || (!dies && status.code() == Code::closed)) << status.str();
                if (dies) {
                  EXPECT_NE(status.message().find("rank " + std::to_string(gone)), std::string_view::npos) << status.str();
                }
                EXPECT_EQ(all_reduce(me, soon()).code(), Code::closed);
                process.board[1].fetch_add(1);
                EXPECT_TRUE(process.board.wait(1, 2));
              },
              {.killed = dies ? std::set<int>{gone} : std::set<int>{}, .rendezvous = {}});
    }
  }
}

// Before anybody calls: nothing is under way that its death could end.
TEST_P(FusedCalls, ARankThatDiedBeforeIsNamed) {
  run_job(3,
          [](const Process& process) {
            const Communicator world = process.init();
            const Member me = *world.self();
            HMC_ASSERT_OK(all_reduce(me, soon()));
            HMC_ASSERT_OK(world.barrier(soon()));
            if (me.rank() == 1) {
              std::this_thread::sleep_for(std::chrono::milliseconds(50));
              testing::die();
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(600));
            const auto before = std::chrono::steady_clock::now();
            const Status status = all_reduce(me, soon());
            EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(30));
            EXPECT_TRUE(status.code() == Code::peer_lost || status.code() == Code::closed) << status.str();
            EXPECT_NE(status.message().find("rank 1"), std::string_view::npos) << status.str();
            process.board[1].fetch_add(1);
            EXPECT_TRUE(process.board.wait(1, 2));
          },
          {.killed = {1}, .rendezvous = {}});
}

TEST_P(FusedCalls, ARankWhoseContextIsClosedIsNamed) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    HMC_ASSERT_OK(all_reduce(me, soon()));
    HMC_ASSERT_OK(world.barrier(soon()));
    if (me.rank() == 1) {
      HMC_EXPECT_OK(world.context().close(soon()));
      process.board[0].store(1);
      EXPECT_TRUE(process.board.wait(1, 2));
      return;
    }
    EXPECT_TRUE(process.board.wait(0, 1));
    const auto before = std::chrono::steady_clock::now();
    const Status status = all_reduce(me, soon());
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(30));
    EXPECT_EQ(status.code(), Code::closed) << status.str();
    EXPECT_NE(status.message().find("rank 1"), std::string_view::npos) << status.str();
    process.board[1].fetch_add(1);
    EXPECT_TRUE(process.board.wait(1, 2));
  });
}

// It has not called: the others have nothing to reduce, and what it does later changes nothing.
TEST_P(FusedCalls, ARankThatIsStoppedBeforeTheCallHoldsNobody) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    for (int i = 0; i < 3; ++i) HMC_ASSERT_OK(all_reduce(me, soon()));
    if (me.rank() == 1) {
      process.board[1].store(getpid());
      raise(SIGSTOP);
      // In one shot it has all that it needs until it learns that the others gave up.
      const Status status = all_reduce(me, soon());
      EXPECT_TRUE(fused_bytes < 100'000 || !status.ok());
      process.board[3].store(1);
      return;
    }
    ASSERT_TRUE(process.board.wait(1, 1));
    ASSERT_TRUE(wait_until_stopped(static_cast<pid_t>(process.board[1].load())));
    Bytes in = input(me.rank(), fused_bytes), out(in.size(), std::byte{0x5C});
    const Bytes untouched = out;
    const auto before = std::chrono::steady_clock::now();
    const Status status = me.all_reduce(view(out), view(in), xored, Deadline::after_seconds(0.3));
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(30));
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(out, untouched);
    process.board[2].fetch_add(1);
    EXPECT_TRUE(process.board.wait(2, 2));
    if (me.rank() == 0) kill(static_cast<pid_t>(process.board[1].load()), SIGCONT);
    EXPECT_TRUE(process.board.wait(3, 1));
    EXPECT_EQ(out, untouched);
  });
}

TEST_P(FusedCalls, CancelledAtOneRankTheyEndAtAll) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    HMC_ASSERT_OK(all_reduce(me, soon()));
    Bytes in = input(me.rank(), fused_bytes), out(fused_bytes);
    if (me.rank() == 2) {
      EXPECT_TRUE(process.board.wait(0, 2));
      process.board[1].store(1);
      EXPECT_TRUE(process.board.wait(2, 2));
      return;
    }
    const Work work = *me.iall_reduce(view(out), view(in), xored);
    process.board[0].fetch_add(1);
    EXPECT_TRUE(process.board.wait(1, 1));
    if (me.rank() == 0) {
      HMC_EXPECT_OK(work.cancel());
    }
    EXPECT_EQ(work.wait(soon()).code(), Code::cancelled) << work.status().str();
    process.board[2].fetch_add(1);
    EXPECT_TRUE(process.board.wait(2, 2));
  });
}

// The Context's own close, while a thread waits.
TEST_P(FusedCalls, AClosedContextEndsThem) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    HMC_ASSERT_OK(all_reduce(me, soon()));
    if (me.rank() == 1) {
      EXPECT_TRUE(process.board.wait(0, 1));
      return;
    }
    std::thread waits([&] { EXPECT_EQ(all_reduce(me, soon()).code(), Code::closed); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    HMC_EXPECT_OK(world.context().close(soon()));
    waits.join();
    process.board[0].store(1);
  });
}

// Groups of a split have a segment of their own; both at once, and after the other is gone.
TEST_P(FusedCalls, InGroupsOfASplit) {
  run_job(4, [](const Process& process) {
    const Communicator world = process.init();
    const auto halves = world.split(std::vector{process.rank % 2}, std::vector{-process.rank}, soon());
    ASSERT_TRUE(halves.ok()) << halves.status().str();
    const Member me = *world.self(), in_half = *halves->self();
    for (int i = 0; i < (testing::slow() ? 5 : 20); ++i) {
      Bytes a = input(me.rank(), fused_bytes), b = input(in_half.rank(), 100'001), out_a(a.size()), out_b(b.size());
      const Work first = *me.iall_reduce(view(out_a), view(a), xored), second = *in_half.iall_reduce(view(out_b), view(b), xored);
      HMC_ASSERT_OK(second.wait(soon()));
      HMC_ASSERT_OK(first.wait(soon()));
      ASSERT_EQ(out_a, expected(4, a.size()));
      ASSERT_EQ(out_b, expected(2, b.size()));
    }
    HMC_EXPECT_OK(halves->close(soon()));
    HMC_EXPECT_OK(all_reduce(me, soon()));
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

// Blocking calls of several sizes one after the other, so that ranks are one call apart now and then.
TEST(FusedCallsOfAllSizes, OneAfterTheOther) {
  for (const int ranks : {2, 5}) {
    run_job(ranks, [](const Process& process) {
      const Communicator world = process.init();
      const Member me = *world.self();
      for (std::size_t i = 0; i < 400; ++i) {
        if (i % 40 == static_cast<std::size_t>(me.rank())) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        const std::size_t bytes = i % 50 == 0 ? 100'000 + i : i % 7 == 0 ? 3'000 + i : i;
        Bytes in(bytes), out(bytes);
        for (std::size_t at = 0; at < bytes; ++at)
          in[at] = static_cast<std::byte>(i * 7 + at * 13 + static_cast<std::size_t>(me.rank()) * 101);
        Bytes want(bytes);
        for (int r = 0; r < me.size(); ++r) {
          for (std::size_t at = 0; at < bytes; ++at)
            want[at] ^= static_cast<std::byte>(i * 7 + at * 13 + static_cast<std::size_t>(r) * 101);
        }
        const int root = static_cast<int>(i) % me.size();
        if (i % 3 == 0) {
          HMC_ASSERT_OK(me.reduce(me.rank() == root ? view(out) : MemoryView{}, view(in), root, xored, soon()));
        } else if (i % 3 == 1) {
          HMC_ASSERT_OK(me.all_reduce(view(out), view(in), xored, soon()));
        } else {
          HMC_ASSERT_OK(me.all_reduce(view(in), view(in), xored, soon()));
          out = in;
        }
        if (i % 3 != 0 || me.rank() == root) {
          ASSERT_EQ(out, want) << i;
        }
      }
      HMC_EXPECT_OK(world.barrier(soon()));
    });
  }
}

// Whichever process will not or cannot.
TEST_P(FusedCalls, OneThatCannotTakePartMakesAllUseMessages) {
  for (const int unwilling : {0, 1}) {
    run_job(2, [unwilling](const Process& process) {
      if (process.rank == unwilling) setenv("HMC_FUSED", "0", 1);
      const Communicator world = process.init();
      HMC_EXPECT_OK(all_reduce(*world.self(), soon()));
      const auto again = world.split(std::vector{0}, std::vector{0}, soon());
      ASSERT_TRUE(again.ok()) << again.status().str();
      HMC_EXPECT_OK(all_reduce(*again->self(), soon()));
      HMC_EXPECT_OK(world.barrier(soon()));
    });
  }
}

}  // namespace
}  // namespace hmc
