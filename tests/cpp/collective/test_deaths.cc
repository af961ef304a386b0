// Ranks killed in every phase: the others learn of it, by name and soon, and go on with each other.
#include "collective/job.h"

namespace hmc {
namespace {

using testing::Bytes;
using testing::Process;
using testing::run_job;
using testing::soon;
using testing::view;
using testing::wait_until_stopped;

void expect_named(const Communicator& world, int dead) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (world.lost().empty() && std::chrono::steady_clock::now() < give_up)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(world.lost(), std::vector<int>{dead});
}

// What survivors of rank `dead` must see after a collective in which it died.
void expect_lost(const Process& process, const Communicator& world, const Status& status, int dead) {
  EXPECT_EQ(status.code(), Code::peer_lost) << "rank " << process.rank << ": " << status.str();
  EXPECT_NE(status.message().find("rank " + std::to_string(dead)), std::string_view::npos) << status.str();
  const Status next = world.barrier(soon());
  EXPECT_EQ(next.code(), Code::closed) << next.str();
  expect_named(world, dead);
}

// Every pair of survivors, two-sided.
void expect_messages(const Process& process, const Communicator& world, int dead) {
  expect_named(world, dead);
  const Member me = *world.self();
  std::vector<Bytes> sent, received;
  std::vector<Work> works;
  for (int other = 0; other < process.size; ++other) {
    sent.push_back(testing::pattern(3000, static_cast<std::uint64_t>(process.rank * 10 + other)));
    received.emplace_back(3000);
  }
  for (int other = 0; other < process.size; ++other) {
    if (other == dead) continue;
    works.push_back(*me.irecv(view(received[static_cast<std::size_t>(other)]), other, 9));
    works.push_back(*me.isend(view(sent[static_cast<std::size_t>(other)]), other, 9));
  }
  HMC_EXPECT_OK(wait_all(works, soon()));
  for (int other = 0; other < process.size; ++other) {
    if (other == dead) continue;
    EXPECT_EQ(
        testing::first_mismatch(received[static_cast<std::size_t>(other)], static_cast<std::uint64_t>(other * 10 + process.rank)),
        -1);
  }
  Bytes bytes(10);
  EXPECT_EQ(me.send(view(bytes), dead, 1, soon()).code(), Code::peer_lost);
  EXPECT_EQ(me.recv(view(bytes), dead, 1, soon()).status().code(), Code::peer_lost);
  process.board[100].fetch_add(1);
  EXPECT_TRUE(process.board.wait(100, process.size - 1));
}

// A rank that calls the collective only after the others saw it fail learns the same as they.
TEST(Deaths, TheLateCallerOfTheFailedCollectiveLearnsWhy) {
  run_job(3,
          [](const Process& process) {
            const Communicator world = process.init();
            HMC_ASSERT_OK(world.barrier(soon()));
            if (process.rank == 2) {
              EXPECT_TRUE(process.board.wait(0, 1));
              raise(SIGKILL);
            }
            if (process.rank == 0) {
              process.board[0] = 1;
            } else {
              EXPECT_TRUE(process.board.wait(1, 1));
              expect_named(world, 2);
              std::this_thread::sleep_for(std::chrono::milliseconds(100));  // most often told of the end by then
            }
            const Status status = world.barrier(soon());
            process.board[1] = 1;
            expect_lost(process, world, status, 2);
            process.board[2].fetch_add(1);
            EXPECT_TRUE(process.board.wait(2, 2));
          },
          {.killed = {2}, .rendezvous = {}});
}

// By the transports of one host, and by shm without ptrace.
class DeathOver : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    setenv("HMC_TRANSPORTS", GetParam() == "tcp" ? "tcp" : "shm", 1);
    setenv("HMC_SHM_PTRACE", GetParam() == "ring" ? "0" : "1", 1);
  }
  void TearDown() override {
    unsetenv("HMC_TRANSPORTS");
    unsetenv("HMC_SHM_PTRACE");
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, DeathOver, ::testing::Values("shm", "tcp", "ring"), [](const auto& p) { return p.param; });

// Else it would not shrink() with the others.
TEST_P(DeathOver, ARankThatHadDoneItsPartLearnsOfItInItsNextCall) {
  run_job(3,
          [](const Process& process) {
            const Communicator world = process.init();
            const Member me = *world.self();
            HMC_ASSERT_OK(world.barrier(soon()));
            if (process.rank == 2) {
              EXPECT_TRUE(process.board.wait(0, 1));
              testing::die();
            }
            Bytes mine = testing::pattern(77, 1), all(231);
            Status status = me.gather(view(all), view(mine), 1, soon());
            process.board[0] = 1;
            if (process.rank == 0) {
              HMC_ASSERT_OK(status);
              EXPECT_TRUE(process.board.wait(1, 1));
              std::this_thread::sleep_for(std::chrono::milliseconds(100));  // most often told of the end by then
              status = world.barrier(soon());
            }
            process.board[1] = 1;
            expect_lost(process, world, status, 2);
            EXPECT_EQ(me.gather(view(all), view(mine), 1, soon()).code(), Code::closed);
          },
          {.killed = {2}});
}

TEST_P(DeathOver, InABarrier) {
  for (const int dead : {0, 1, 4}) {
    run_job(5,
            [dead](const Process& process) {
              const Communicator world = process.init();
              if (process.rank == dead) {
                EXPECT_TRUE(process.board.wait(0, process.size - 1));
                std::this_thread::sleep_for(std::chrono::milliseconds(50));
                testing::die();
              }
              process.board[0].fetch_add(1);
              expect_lost(process, world, world.barrier(soon()), dead);
              expect_messages(process, world, dead);
            },
            {.killed = {dead}, .rendezvous = {}});
  }
}

// Ranks await two messages of one rank there.
TEST_P(DeathOver, InAnExchangeOfBytes) {
  for (const bool closes : {false, true}) {
    for (const int dead : {0, 3}) {
      run_job(4,
              [dead, closes](const Process& process) {
                const Communicator world = process.init();
                const Member me = *world.self();
                const Bytes mine = testing::pattern(1000, static_cast<std::uint64_t>(process.rank));
                HMC_ASSERT_OK(me.exchange_bytes(mine, soon()).status());
                if (process.rank == dead) {
                  EXPECT_TRUE(process.board.wait(0, 3));
                  std::this_thread::sleep_for(std::chrono::milliseconds(20));
                  if (!closes) testing::die();
                  HMC_EXPECT_OK(world.close(soon()));
                  return;
                }
                process.board[0].fetch_add(1);
                const auto all = me.exchange_bytes(mine, soon());
                EXPECT_TRUE(all.status().code() == Code::peer_lost || all.status().code() == Code::closed) << all.status().str();
              },
              {.killed = closes ? std::set<int>{} : std::set<int>{dead}, .rendezvous = {}});
    }
  }
}

TEST_P(DeathOver, InAnAllToAll) {
  for (const std::size_t block : {64U, 500000U, 8000000U}) {
    run_job(4,
            [block](const Process& process) {
              const Communicator world = process.init();
              const Member me = *world.self();
              HMC_ASSERT_OK(world.barrier(soon()));
              Bytes in(4 * block), out(4 * block);
              if (process.rank == 2) {
                EXPECT_TRUE(process.board.wait(0, 3));
                // Large blocks: half done.
                const auto work = block > 64 ? me.iall_to_all(view(out), view(in)) : Result<Work>(Work());
                if (block > 64) static_cast<void>(work->wait(Deadline::after_seconds(0.002)));
                testing::die();
              }
              process.board[0].fetch_add(1);
              const Status status = me.all_to_all(view(out), view(in), soon());
              // Large blocks: it may have got everything from the dead rank and given it everything before.
              if (block == 64 || !status.ok()) expect_lost(process, world, status, 2);
              expect_messages(process, world, 2);
            },
            {.killed = {2}, .rendezvous = {}});
  }
}

// Receives from any source and notifications end with the last rank that could send; what came before is delivered first.
TEST_P(DeathOver, OfEveryOtherRank) {
  run_job(3,
          [](const Process& process) {
            const Communicator world = process.init();
            const Member me = *world.self();
            HMC_ASSERT_OK(world.barrier(soon()));
            Bytes bytes = testing::pattern(10, static_cast<std::uint64_t>(process.rank)), late(10);
            if (process.rank != 0) {
              if (process.rank == 1) {
                HMC_EXPECT_OK(me.send(view(bytes), 0, 1, soon()));
                HMC_EXPECT_OK(me.notify(0, Notify(std::span<const std::byte>(bytes))));
              }
              EXPECT_TRUE(process.board.wait(0, 1));
              if (process.rank == 2) {
                EXPECT_TRUE(process.board.wait(1, 1));
              }
              testing::die();
            }
            HMC_ASSERT_OK(me.recv(view(late), any_source, 1, soon()).status());
            EXPECT_EQ(testing::first_mismatch(late, 1), -1);
            EXPECT_EQ(me.notifications(soon())->size(), 1U);
            const auto posted = *me.irecv(view(late), any_source, 2);
            std::thread notified([&] {
              const auto none = me.notifications(soon());
              EXPECT_EQ(none.status().code(), Code::peer_lost) << none.status().str();
            });
            process.board[0].store(1);
            expect_named(world, 1);
            EXPECT_EQ(posted.wait(Deadline::after_seconds(0.2)).code(), Code::timeout);  // rank 2 may still send
            process.board[1].store(1);
            EXPECT_EQ(posted.wait(soon()).code(), Code::peer_lost) << posted.status().str();
            notified.join();
            EXPECT_EQ(me.recv(view(late), any_source, 2, soon()).status().code(), Code::peer_lost);
            EXPECT_EQ(me.notifications(soon()).status().code(), Code::peer_lost);
          },
          {.killed = {1, 2}, .rendezvous = {}});
}

TEST_P(DeathOver, IsReportedWithTheRankAndTheCall) {
  run_job(3,
          [](const Process& process) {
            const Communicator world = process.init();
            const Member me = *world.self();
            const auto buffer = *world.buffer(1 << 20);
            const auto remotes = *me.exchange(buffer, soon());
            HMC_ASSERT_OK(world.barrier(soon()));
            if (process.rank == 1) {
              EXPECT_TRUE(process.board.wait(0, 2));
              std::this_thread::sleep_for(std::chrono::milliseconds(50));
              testing::die();
            }
            const auto names = [](const Status& status, std::string_view what) {
              EXPECT_EQ(status.code(), Code::peer_lost) << status.str();
              EXPECT_NE(status.message().find("rank 1"), std::string_view::npos) << status.str();
              EXPECT_NE(status.message().find(what), std::string_view::npos) << status.str();
            };
            Bytes bytes(30), in(3 * 800), out(3 * 800), big(1 << 20);
            const auto posted = *me.irecv(view(bytes), 1, 1);
            const auto large = *me.isend(view(big), 1, 1);
            process.board[0].fetch_add(1);
            std::thread other([&] { names(me.recv(view(out), 1, 7, soon()).status(), "receive of up to 2400 bytes"); });
            names(me.wait_notify(1, 3, 1, soon()), "rank 1");
            other.join();
            names(posted.wait(soon()), "from rank 1 (");
            names(large.wait(soon()), "to rank 1 (");
            names(me.send(view(bytes), 1, 1, soon()), "send of 30 bytes");
            names(me.recv(view(bytes), 1, 1, soon()).status(), "receive of up to 30 bytes");
            names(me.put(buffer, remotes[1]).status(), "put");
            names(me.get(buffer, remotes[1]).status(), "get");
            names(me.notify(1, 4), "notify");
            // The first to fail breaks the group for the other, which is then told that it takes no more.
            if (process.rank == 0) names(me.all_to_all(view(out), view(in), soon()), "all_to_all: ");
            process.board[1].fetch_add(1);
            EXPECT_TRUE(process.board.wait(1, 2));  // the other survivor may still be in its call
          },
          {.killed = {1}, .rendezvous = {}});
}

// Nobody is connected to the dead rank but process 0, which tells the others.
TEST(Death, OfARankNobodyHasTalkedTo) {
  run_job(4,
          [](const Process& process) {
            const Communicator world = process.init();
            process.board[1].fetch_add(1);
            if (process.rank == 3) {
              EXPECT_TRUE(process.board.wait(1, 4));
              testing::die();
            }
            Bytes bytes(10);
            const auto work = (*world.self()).irecv(view(bytes), 3, 1);
            if (work.ok()) {
              EXPECT_EQ(work->wait(soon()).code(), Code::peer_lost);
            } else {
              EXPECT_EQ(work.status().code(), Code::peer_lost);
            }
            expect_named(world, 3);
            expect_messages(process, world, 3);
          },
          {.killed = {3}, .rendezvous = {}});
}

TEST(Death, OfProcessZeroThenOfAnother) {
  run_job(5,
          [](const Process& process) {
            const Communicator world = process.init();
            const Member me = *world.self();
            HMC_ASSERT_OK(world.barrier(soon()));
            process.board[0].fetch_add(1);
            if (process.rank == 0) {
              EXPECT_TRUE(process.board.wait(0, 5));
              testing::die();
            }
            expect_lost(process, world, world.barrier(soon()), 0);
            process.board[1].fetch_add(1);
            if (process.rank == 3) {
              EXPECT_TRUE(process.board.wait(1, 4));
              testing::die();
            }
            Bytes bytes(10);
            EXPECT_EQ(me.recv(view(bytes), 3, 1, soon()).status().code(), Code::peer_lost);
            process.board[2].fetch_add(1);
            EXPECT_TRUE(process.board.wait(2, 3));
          },
          {.killed = {0, 3}, .rendezvous = {}});
}

// The survivors of a group made by split() learn of a death, and groups without the dead rank are not touched.
TEST(Death, BreaksOnlyTheGroupsOfTheDead) {
  run_job(4,
          [](const Process& process) {
            const Communicator world = process.init();
            const std::vector<int> color{process.rank / 2}, key{0};
            const Communicator half = *world.split(color, key, soon());
            HMC_ASSERT_OK(half.barrier(soon()));
            process.board[0].fetch_add(1);
            if (process.rank == 3) {
              EXPECT_TRUE(process.board.wait(0, 4));
              testing::die();
            }
            if (process.rank == 2) {
              const Status status = half.barrier(soon());
              EXPECT_EQ(status.code(), Code::peer_lost) << status.str();
              EXPECT_EQ(half.lost(), std::vector<int>{1});
              process.board[1].store(1);
            } else {
              ASSERT_TRUE(process.board.wait(1, 1));
              for (int i = 0; i < 10; ++i) HMC_EXPECT_OK(half.barrier(soon()));
              EXPECT_TRUE(half.lost().empty());
            }
            process.board[2].fetch_add(1);
            EXPECT_TRUE(process.board.wait(2, 3));
          },
          {.killed = {3}, .rendezvous = {}});
}

TEST(Death, AStoppedRankTimesOutByName) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    HMC_ASSERT_OK(world.barrier(soon()));
    if (process.rank == 1) {
      process.board[0].store(getpid());
      raise(SIGSTOP);
      EXPECT_TRUE(process.board.wait(1, 2));
      return;
    }
    ASSERT_TRUE(process.board.wait(0, 1));
    const auto pid = static_cast<pid_t>(process.board[0].load());
    ASSERT_TRUE(wait_until_stopped(pid));
    const Status status = world.barrier(Deadline::after_seconds(0.5));
    // The first to time out tells the other, before its call where that comes late.
    if (status.code() == Code::timeout) process.board[2].fetch_add(1);
    EXPECT_TRUE(status.code() == Code::timeout || status.code() == Code::closed) << status.str();
    EXPECT_TRUE(world.lost().empty());
    process.board[1].fetch_add(1);
    EXPECT_TRUE(process.board.wait(1, 2));
    EXPECT_GE(process.board[2].load(), 1);
    if (process.rank == 0) kill(pid, SIGCONT);
  });
}

}  // namespace
}  // namespace hmc
