// What closing a Communicator ends in this process, and what it still delivers.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <future>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "collective/communicator_state.h"
#include "collective/group.h"
#include "collective/job.h"
#include "comm/context_state.h"
#include "comm/onesided/notifier.h"

namespace hmc {
namespace {

using testing::Bytes;
using testing::Process;
using testing::run_job;
using testing::soon;
using testing::view;

// Until every process is here: none ends its Context before.
void meet(const Process& process) {
  process.board[100].fetch_add(1);
  EXPECT_TRUE(process.board.wait(100, process.size));
}

// Stops this process, whose number others find on the board.
void stop_here(const Process& process) {
  process.board[0] = getpid();
  raise(SIGSTOP);
}

// Until that one is stopped.
pid_t stopped(const Process& process) {
  EXPECT_TRUE(process.board.wait(0, 1));
  const auto pid = static_cast<pid_t>(process.board[0].load());
  std::string state;
  while (state != "T") {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    for (std::string word; file >> word && !word.ends_with(')');) {
    }
    file >> state;
  }
  return pid;
}

// Starts each blocking wait in its own thread, and each wait that returns a Work. All of them end when `close` has run.
void expect_ended_by(const Communicator& group, const std::function<void()>& close) {
  const Member me = *group.self();
  const int other = me.rank() == 0 ? 1 : 0;
  Bytes word(8), from_any(8), posted_word(8);
  std::vector<std::function<Status()>> waits;
  for (const int src : {other, me.rank()}) {
    waits.emplace_back([&, src] { return me.wait_notify(src, 3, 1, soon()); });
    waits.emplace_back([&, src] { return me.iwait_notify(src, 4, 1, soon())->wait(soon()); });
  }
  waits.emplace_back([&] { return me.notifications(soon()).status(); });
  waits.emplace_back([&] { return me.inotifications(soon())->wait(soon()); });
  waits.emplace_back([&] { return me.recv(view(word), other, 1, soon()).status(); });
  waits.emplace_back([&] { return me.recv(view(from_any), any_source, 2, soon()).status(); });
  waits.emplace_back([&] { return me.irecv(view(posted_word), other, 3)->wait(soon()); });
  std::atomic<std::size_t> begun{0};
  std::vector<std::thread> threads;
  for (const auto& wait : waits) {
    threads.emplace_back([&, number = threads.size()] {
      begun.fetch_add(1);
      const Status ended = wait();
      EXPECT_EQ(ended.code(), Code::closed) << "wait " << number << ": " << ended.str();
    });
  }
  while (begun.load() < waits.size()) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto start = Deadline::Clock::now();
  close();
  for (auto& thread : threads) thread.join();
  EXPECT_LT(Deadline::Clock::now() - start, std::chrono::seconds(30));
}

TEST(ClosedWaits, EndWithTheirCommunicator) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const Communicator group = *world.split(std::vector{0}, std::vector{process.rank}, soon());
    if (process.rank == 0) expect_ended_by(group, [&] { HMC_EXPECT_OK(group.close(soon())); });
    meet(process);
  });
}

TEST(ClosedWaits, EndWithTheContext) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    HMC_EXPECT_OK(world.barrier(soon()));
    if (process.rank == 0) expect_ended_by(world, [&] { HMC_EXPECT_OK(world.close(soon())); });
    meet(process);
  });
}

// Before the first message to the other rank: nothing is connected.
TEST(ClosedWaits, EndWithTheContextOfAJobThatIsNotConnected) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    if (process.rank == 1) expect_ended_by(world, [&] { HMC_EXPECT_OK(world.close(soon())); });
    meet(process);
  });
}

// Between the check of a handle and its wait another thread closes the group.
TEST(ClosedWaits, NoneBeginsInAClosedCommunicator) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const Communicator group = *world.split(std::vector{0}, std::vector{process.rank}, soon());
    const Group& state = *group.state()->group;
    const auto other = static_cast<std::uint32_t>(1 - process.rank), me = static_cast<std::uint32_t>(process.rank);
    HMC_EXPECT_OK(group.close(soon()));
    Notifier& notifier = state.context().notifier();
    const Envelope from{state.scope(), other, me}, any{state.scope(), any_rank, me};
    const auto& peer = state.rank(other).peer;
    EXPECT_EQ(notifier.wait_notify(peer, from, 1, 1, soon()).code(), Code::closed);
    EXPECT_EQ(notifier.notifications(nullptr, any, soon()).status().code(), Code::closed);
    const auto counted = notifier.iwait_notify(peer, from, 1, 1, soon());
    EXPECT_EQ(counted.ok() ? Work(*counted).wait(soon()).code() : counted.status().code(), Code::closed);
    const auto payloads = notifier.inotifications(nullptr, any, soon());
    EXPECT_EQ(payloads.ok() ? Work(*payloads).wait(soon()).code() : payloads.status().code(), Code::closed);
    meet(process);
  });
}

// The other rank is stopped, and no connection to it comes about.
TEST(ClosedWaits, EndWhereTheyWaitForAConnection) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    if (process.rank == 2) {
      stop_here(process);
    } else if (process.rank == 1) {
      const pid_t other = stopped(process);
      const auto group = world.subgroup(std::vector{1, 2}, 9);
      ASSERT_TRUE(group.ok()) << group.status().str();
      auto found = std::async(std::launch::async, [&] { return group->peer(1, soon()).status(); });
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      HMC_EXPECT_OK(group->close(soon()));
      EXPECT_EQ(found.wait_for(std::chrono::seconds(30)), std::future_status::ready);
      kill(other, SIGCONT);
      EXPECT_EQ(found.get().code(), Code::closed);
    }
    meet(process);
  });
}

// Alone in a closed Context it would be a Communicator of one rank.
TEST(ClosedWaits, AShrinkEndsWithTheContext) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    HMC_EXPECT_OK(world.barrier(soon()));
    if (process.rank == 0) {
      auto shrunk = std::async(std::launch::async, [&] { return world.shrink(soon()).status(); });
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      HMC_EXPECT_OK(world.close(soon()));
      process.board[0] = 1;
      EXPECT_EQ(shrunk.get().code(), Code::closed);
    } else {
      ASSERT_TRUE(process.board.wait(0, 1));
      const auto shrunk = world.shrink(soon());
      ASSERT_TRUE(shrunk.ok()) << shrunk.status().str();
      EXPECT_EQ(shrunk->size(), 1);
    }
    meet(process);
  });
}

// It is posted by the first call that names the rank, so it waits for the connection.
TEST(ClosingAtOnce, DeliversANotificationToARankThatWasNotConnected) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    if (process.rank == 1) {
      for (int i = 0; i < 3; ++i) HMC_EXPECT_OK(me.notify(2, 7, soon()));
      HMC_EXPECT_OK(world.close(soon()));
      process.board[0] = 1;
    } else if (process.rank == 2) {
      ASSERT_TRUE(process.board.wait(0, 1));
      HMC_EXPECT_OK(me.wait_notify(1, 7, 3, soon()));
    }
    meet(process);
  });
}

// Rank 2 `dies`, or lives and has no socket any more. `before`: rank 1 sees the failed connection before it closes.
void expect_named_by_close(bool dies, bool before) {
  const std::set<int> killed = dies ? std::set{2} : std::set<int>();
  run_job(3,
          [=](const Process& process) {
            const Communicator world = process.init();
            if (process.rank == 2) {
              for (const std::string& address : world.context().addresses()) unlink(address.substr(sizeof("unix:") - 1).c_str());
              process.board[0] = 1;
              if (dies) {
                EXPECT_TRUE(process.board.wait(1, 1));
                testing::die();
              }
            } else if (process.rank == 1) {
              ASSERT_TRUE(process.board.wait(0, 1));
              HMC_EXPECT_OK(world.self()->notify(2, 7, soon()));
              process.board[1] = 1;
              if (before) {
                EXPECT_EQ(world.self()->wait_notify(2, 7, 1, soon()).code(), Code::peer_lost);
              }
              const Status closed = world.close(soon());
              EXPECT_EQ(closed.code(), Code::timeout) << closed.str();
              EXPECT_NE(closed.message().find("what was posted to rank 2"), std::string_view::npos) << closed.str();
              EXPECT_NE(closed.message().find(" is lost ("), std::string_view::npos) << closed.str();
            }
            process.board[100].fetch_add(1);
            EXPECT_TRUE(process.board.wait(100, dies ? 2 : 3));
          },
          {.killed = killed});
}

// Whoever shrinks knows that the rank is gone.
TEST(ClosingAtOnce, LossesOfRanksThatAShrinkRemovedAreNone) {
  for (const bool before : {false, true}) {
    run_job(3,
            [=](const Process& process) {
              const Communicator world = process.init();
              if (process.rank == 2) {
                for (const std::string& address : world.context().addresses()) unlink(address.substr(sizeof("unix:") - 1).c_str());
                process.board[0] = 1;
                EXPECT_TRUE(process.board.wait(1, 1));
                testing::die();
              }
              if (process.rank == 1) {
                ASSERT_TRUE(process.board.wait(0, 1));
                HMC_EXPECT_OK(world.self()->notify(2, 7, soon()));
                process.board[1] = 1;
                if (before) {
                  EXPECT_EQ(world.self()->wait_notify(2, 7, 1, soon()).code(), Code::peer_lost);
                }
              }
              const auto shrunk = world.shrink(soon());
              ASSERT_TRUE(shrunk.ok()) << shrunk.status().str();
              EXPECT_EQ(shrunk->size(), 2);
              process.board[100].fetch_add(1);
              EXPECT_TRUE(process.board.wait(100, 2));
              HMC_EXPECT_OK(world.context().close(soon()));
            },
            {.killed = {2}});
  }
}

TEST(ClosingAtOnce, SaysWhatIsLostWhereARankCannotBeReached) {
  for (const bool before : {false, true}) expect_named_by_close(false, before);
}

TEST(ClosingAtOnce, SaysWhatIsLostWhereARankDiesThatWasNotConnected) {
  for (const bool before : {false, true}) expect_named_by_close(true, before);
}

// The rank closes in the middle of the handshake.
TEST(ClosingAtOnce, SaysWhatIsLostWhereARankClosesThatWasNotConnected) {
  run_job(3, [](const Process& process) {
    InitOptions options = process.options();
    if (process.rank == 2) options.context.progress = Progress::manual;
    const Communicator world = process.init(options);
    if (process.rank == 2) {
      const PeerState& other = *world.state()->group->rank(1).peer;
      process.board[0] = 1;
      const auto phase = [&] {
        const auto lock = world.state()->group->engine()->lock();
        return other.phase();
      };
      while (phase() == PeerPhase::idle) world.context().progress();
      process.board[1] = phase() == PeerPhase::connecting ? 1 : 2;  // not: one step did it all
      HMC_EXPECT_OK(world.close(soon()));
    } else if (process.rank == 1) {
      ASSERT_TRUE(process.board.wait(0, 1));
      HMC_EXPECT_OK(world.self()->notify(2, 7, soon()));
      EXPECT_FALSE(world.self()->wait_notify(2, 7, 1, soon()).ok());
      EXPECT_TRUE(process.board.wait(1, 1));
      const Status closed = world.close(soon());
      if (process.board[1] == 1) {
        EXPECT_EQ(closed.code(), Code::timeout) << closed.str();
        EXPECT_NE(closed.message().find("what was posted to rank 2"), std::string_view::npos) << closed.str();
        EXPECT_NE(closed.message().find(" is lost ("), std::string_view::npos) << closed.str();
      }
    }
    meet(process);
  });
}

TEST(ClosingAtOnce, SaysWhatIsLostWhereNoConnectionComesAbout) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    if (process.rank == 2) {
      stop_here(process);
    } else if (process.rank == 1) {
      const pid_t other = stopped(process);
      HMC_EXPECT_OK(world.self()->notify(2, 7, soon()));
      const Status closed = world.close(soon(0.5));
      EXPECT_EQ(closed.code(), Code::timeout) << closed.str();
      EXPECT_NE(closed.message().find("has not all arrived, and what has not is lost"), std::string_view::npos) << closed.str();
      kill(other, SIGCONT);
    }
    meet(process);
  });
}

}  // namespace
}  // namespace hmc
