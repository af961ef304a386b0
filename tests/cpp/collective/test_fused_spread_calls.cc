// all_to_all, all_gather and broadcast through shared memory among processes: what ends them, who notices, and what happens where a
// rank cannot take part.

#include <algorithm>
#include <ostream>

#include "collective/job.h"

namespace hmc {
namespace {

using testing::Bytes;
using testing::Process;
using testing::run_job;
using testing::soon;
using testing::view;
using testing::wait_until_stopped;

struct SpreadCase {
  const char* call;
  std::size_t block;  // bytes
};
void PrintTo(const SpreadCase& one, std::ostream* out) { *out << one.call << " of " << one.block; }

// One rank's arrays of a call among `size` ranks; root 1.
struct Spreading {
  Spreading(const SpreadCase& one, const Member& me, std::uint64_t salt = 0) : one(one) {
    const auto rank = static_cast<std::size_t>(me.rank()), size = static_cast<std::size_t>(me.size());
    const std::string_view call = one.call;
    if (call == "broadcast") {
      want = block(1, 0, salt);
      out = rank == 1 ? want : Bytes(one.block, std::byte{0x5C});
      return;
    }
    const bool exchanges = call == "all_to_all";
    for (std::size_t r = 0; r < size; ++r) {
      const Bytes from = block(r, exchanges ? rank : 0, salt), mine = block(rank, exchanges ? r : 0, salt);
      want.insert(want.end(), from.begin(), from.end());
      if (exchanges || r == rank) in.insert(in.end(), mine.begin(), mine.end());
    }
    out.assign(want.size(), std::byte{0x5C});
  }
  [[nodiscard]] Bytes block(std::size_t from, std::size_t to, std::uint64_t salt) const {
    return testing::pattern(one.block, salt * 1013 + from * 31 + to + 3);
  }
  Result<Work> start(const Member& me) {
    const std::string_view call = one.call;
    if (call == "broadcast") return me.ibroadcast(view(out), 1);
    return call == "all_gather" ? me.iall_gather(view(out), view(in)) : me.iall_to_all(view(out), view(in));
  }
  Status run(const Member& me, Deadline deadline) {
    const std::string_view call = one.call;
    if (call == "broadcast") return me.broadcast(view(out), 1, deadline);
    return call == "all_gather" ? me.all_gather(view(out), view(in), deadline) : me.all_to_all(view(out), view(in), deadline);
  }

  const SpreadCase one;
  Bytes in, out, want;
};

Status spread(const SpreadCase& one, const Member& me, Deadline deadline, std::uint64_t salt = 0) {
  Spreading mine(one, me, salt);
  const Status status = mine.run(me, deadline);
  if (status.ok()) {
    EXPECT_EQ(mine.out, mine.want);
  }
  return status;
}

// Within the announcement, in one shot beside it, in chunks, and by messages.
class SpreadCalls : public ::testing::TestWithParam<SpreadCase> {};
INSTANTIATE_TEST_SUITE_P(Calls, SpreadCalls,
                         ::testing::Values(SpreadCase{"all_to_all", 7}, SpreadCase{"all_to_all", 5'001},
                                           SpreadCase{"all_to_all", 300'001}, SpreadCase{"all_gather", 11},
                                           SpreadCase{"all_gather", 60'001}, SpreadCase{"all_gather", 300'001},
                                           SpreadCase{"broadcast", 20'001}, SpreadCase{"broadcast", 700'001},
                                           SpreadCase{"broadcast", 3}, SpreadCase{"all_gather", 2'000'001}));

TEST_P(SpreadCalls, RanksThatSleepAreWoken) {
  run_job(3, [one = GetParam()](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    for (int late = 0; late < 3; ++late) {
      if (me.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(150));
      HMC_ASSERT_OK(spread(one, me, soon(), static_cast<std::uint64_t>(late)));
    }
    // In the background, with nobody waiting.
    Spreading mine(one, me, 9);
    std::atomic<bool> done{false};
    const Work work = *mine.start(me);
    work.then([&done](const Status&) { done = true; });
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!done && std::chrono::steady_clock::now() < give_up) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(done);
    EXPECT_EQ(mine.out, mine.want);
    process.board[0].fetch_add(1);
    EXPECT_TRUE(process.board.wait(0, 3));
  });
}

TEST_P(SpreadCalls, ARankThatDiesIsNamed) {
  for (const int gone : {0, 2}) {
    run_job(3,
            [gone, one = GetParam()](const Process& process) {
              const Communicator world = process.init();
              const Member me = *world.self();
              HMC_ASSERT_OK(spread(one, me, soon()));
              if (me.rank() == gone) {
                EXPECT_TRUE(process.board.wait(0, 2));
                std::this_thread::sleep_for(std::chrono::milliseconds(30));
                testing::die();
              }
              process.board[0].fetch_add(1);
              Status status;  // a broadcast by messages does not need every rank
              for (int i = 0; status.ok() && i < 100'000; ++i) status = spread(one, me, soon());
              EXPECT_EQ(status.code(), Code::peer_lost) << status.str();
              EXPECT_NE(status.message().find("rank " + std::to_string(gone)), std::string_view::npos) << status.str();
              const Status later = spread(one, me, soon());
              EXPECT_TRUE(later.code() == Code::closed || later.code() == Code::peer_lost) << later.str();
              process.board[1].fetch_add(1);
              EXPECT_TRUE(process.board.wait(1, 2));
            },
            {.killed = {gone}, .rendezvous = {}});
  }
}

// It has not called: nothing moves, and what it does later changes nothing.
TEST_P(SpreadCalls, ARankThatIsStoppedBeforeTheCallHoldsNobody) {
  const SpreadCase one = GetParam();
  if (std::string_view(one.call) == "broadcast" && one.block < 100) GTEST_SKIP() << "by messages, which do not wait for every rank";
  run_job(3, [one](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    for (std::uint64_t i = 0; i < 3; ++i) HMC_ASSERT_OK(spread(one, me, soon(), i));
    if (me.rank() == 0) {
      process.board[1].store(getpid());
      raise(SIGSTOP);
      static_cast<void>(spread(one, me, soon(), 7));
      process.board[3].store(1);
      return;
    }
    EXPECT_TRUE(process.board.wait(1, 1));
    ASSERT_TRUE(wait_until_stopped(static_cast<pid_t>(process.board[1].load())));
    Spreading mine(one, me, 7);
    const Status status = mine.run(me, Deadline::after_seconds(0.3));
    EXPECT_FALSE(status.ok());
    // By messages, blocks of the other two ranks may still be written after the deadline. That of rank 0 is the first.
    const std::size_t compared = one.block > 1 << 20 ? one.block : mine.out.size();
    const auto end = mine.out.begin() + static_cast<std::ptrdiff_t>(compared);
    const Bytes kept(mine.out.begin(), end);
    process.board[2].fetch_add(1);
    EXPECT_TRUE(process.board.wait(2, 2));
    if (me.rank() == 1) kill(static_cast<pid_t>(process.board[1].load()), SIGCONT);
    EXPECT_TRUE(process.board.wait(3, 1));
    EXPECT_TRUE(std::equal(mine.out.begin(), end, kept.begin()));
  });
}

TEST_P(SpreadCalls, CancelledAtOneRankTheyEndAtAll) {
  const SpreadCase one = GetParam();
  if (one.block > 1 << 20) GTEST_SKIP() << "by messages, which cannot all be stopped";
  run_job(3, [one](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    HMC_ASSERT_OK(spread(one, me, soon()));
    if (me.rank() == 1) {  // the root
      EXPECT_TRUE(process.board.wait(0, 2));
      process.board[1].store(1);
      EXPECT_TRUE(process.board.wait(2, 2));
      return;
    }
    Spreading mine(one, me);
    const Work work = *mine.start(me);
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

TEST_P(SpreadCalls, AMismatchIsNamedOnEveryRank) {
  const SpreadCase one = GetParam();
  if (std::string_view(one.call) == "broadcast" && one.block < 100) GTEST_SKIP() << "by messages: see test_mismatch.cc";
  for (const std::string other : {"barrier", "gather", "all_reduce", "all_to_all", "all_gather", "broadcast"}) {
    if (other == one.call) continue;
    for (const int odd : testing::swept({0, 2}, {2})) {
      run_job(3, [&](const Process& process) {
        const Communicator world = process.init();
        const Member me = *world.self();
        HMC_ASSERT_OK(spread(one, me, soon()));
        Bytes in(3 * one.block), out(9 * one.block);
        Status status;
        if (me.rank() != odd) {
          status = spread(one, me, soon());
        } else if (other == "barrier") {
          status = me.barrier(soon());
        } else if (other == "gather") {
          status = me.gather({out.data(), 3 * one.block}, {in.data(), one.block}, odd, soon());
        } else if (other == "all_reduce") {
          status = me.all_reduce({out.data(), in.size()}, view(in), {DataType::u8, ReduceOp::bxor}, soon());
        } else {
          status = spread({other.c_str(), one.block}, me, soon());
        }
        EXPECT_EQ(status.code(), Code::invalid_argument) << status.str();
        for (const std::string& word : {other, std::string(one.call), "rank " + std::to_string(odd) + " ("})
          EXPECT_NE(status.message().find(word), std::string_view::npos) << word << ": " << status.str();
        process.board[0].fetch_add(1);
        EXPECT_TRUE(process.board.wait(0, 3));
      });
    }
  }
}

// Sizes that go another way each: the ranks that see a difference are told, and the Communicator stays usable.
TEST(SpreadCallsOfAllSizes, AnotherBlockSizeHangsNobody) {
  struct Blocks {
    std::size_t usual, odd;
  };
  for (const Blocks& blocks : {Blocks{7, 9}, Blocks{7, 40'000}, Blocks{40'000, 7}, Blocks{7, 2'000'000}, Blocks{2'000'000, 300'000},
                               Blocks{300'000, 301'000}}) {
    run_job(3, [&](const Process& process) {
      const Communicator world = process.init();
      const Member me = *world.self();
      for (std::uint64_t round = 0; round < 9; ++round) {
        const std::size_t block = process.rank == static_cast<int>(round % 4) ? blocks.odd : blocks.usual;
        Bytes in(3 * block), out(in.size());
        const Status status = me.all_to_all(view(out), view(in), soon());
        const Code expected = round % 4 == 3 ? Code::ok : Code::invalid_argument;
        EXPECT_EQ(status.code(), expected) << blocks.usual << " and " << blocks.odd << ": " << status.str();
        // Nothing else between two of them in some rounds, and calls in one shot and in chunks in others.
        for (std::uint64_t i = 0; i < round % 4; ++i) HMC_ASSERT_OK(spread({"all_to_all", 5 + i}, me, soon(), i));
        if (round % 3 == 1) {
          HMC_EXPECT_OK(world.barrier(soon()));
        }
        if (round % 3 == 2) {
          HMC_ASSERT_OK(spread({"all_gather", 3}, me, soon(), round));
          HMC_ASSERT_OK(spread({"all_to_all", 30'000}, me, soon(), round));
        }
      }
    });
  }
}

// Blocking calls of several sizes and kinds one after the other, so that ranks are one call apart now and then; and all at once.
TEST(SpreadCallsOfAllSizes, OneAfterTheOtherAndManyUnderWay) {
  for (const int ranks : {2, 5}) {
    run_job(ranks, [](const Process& process) {
      const Communicator world = process.init();
      const Member me = *world.self();
      const auto one_of = [](std::size_t i) {
        constexpr const char* calls[] = {"all_to_all", "all_gather", "broadcast"};
        return SpreadCase{calls[i % 3], i % 50 == 0 ? 100'000 + i : i % 7 == 0 ? 13'000 + i : i};
      };
      for (std::size_t i = 0; i < 300; ++i) {
        if (i % 40 == static_cast<std::size_t>(me.rank())) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        HMC_ASSERT_OK(spread(one_of(i), me, soon(), i));
      }
      std::vector<std::unique_ptr<Spreading>> all;
      std::vector<Work> works;
      for (std::size_t i = 0; i < 150; ++i) all.push_back(std::make_unique<Spreading>(one_of(i), me, i));
      for (std::size_t i = 0; i < all.size(); ++i) {
        works.push_back(*all[i]->start(me));
        if (i % 10 == 0) works.push_back(*me.ibarrier());
      }
      HMC_ASSERT_OK(wait_all(works, soon()));
      for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i]->out, all[i]->want) << i;
      HMC_EXPECT_OK(world.barrier(soon()));
    });
  }
}

TEST_P(SpreadCalls, OneThatCannotTakePartMakesAllUseMessages) {
  for (const int unwilling : {0, 1}) {
    run_job(2, [unwilling, one = GetParam()](const Process& process) {
      if (process.rank == unwilling) setenv("HMC_FUSED", "0", 1);
      const Communicator world = process.init();
      HMC_EXPECT_OK(spread(one, *world.self(), soon()));
      const auto again = world.split(std::vector{0}, std::vector{0}, soon());
      ASSERT_TRUE(again.ok()) << again.status().str();
      HMC_EXPECT_OK(spread(one, *again->self(), soon()));
      HMC_EXPECT_OK(world.barrier(soon()));
    });
  }
}

}  // namespace
}  // namespace hmc
