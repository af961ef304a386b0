// Receives from any source and a rank that dies while its large message is on its way.
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "collective/job.h"

namespace hmc {
namespace {

using testing::Bytes;
using testing::first_mismatch;
using testing::pattern;
using testing::Process;
using testing::run_job;
using testing::soon;
using testing::view;

constexpr std::size_t large = 8'000'001, small = 40;

// By the transports of one host, and by shm without ptrace.
class LostSenderOver : public ::testing::TestWithParam<std::string> {
 protected:
  static void choose() {
    setenv("HMC_TRANSPORTS", GetParam() == "tcp" ? "tcp" : "shm", 1);
    setenv("HMC_SHM_PTRACE", GetParam() == "ring" ? "0" : "1", 1);
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, LostSenderOver, ::testing::Values("shm", "tcp", "ring"), [](const auto& p) { return p.param; });

// Rank 1 of the job is rank 0 of `group`. It announces a message of `large` bytes with tag 5, sends nothing of it, and dies when
// board[1] is set.
void announce_and_die(const Process& process, const Communicator& world, const Communicator& group, bool and_another) {
  const Bytes message = pattern(large, 1), behind = pattern(small, 2);
  const Member me = *group.self();
  const auto announced = me.isend({const_cast<std::byte*>(message.data()), large}, 2, 5);
  ASSERT_TRUE(announced.ok()) << announced.status().str();
  if (and_another) HMC_ASSERT_OK(me.isend({const_cast<std::byte*>(behind.data()), small}, 2, 5).status());
  while (process.board[0].load() == 0) world.context().progress();
  ASSERT_TRUE(process.board.wait(1, 1));  // without progress
  testing::die();
}

Communicator init(const Process& process) {
  InitOptions options = process.options();
  if (process.rank == 1) options.context.progress = Progress::manual;
  return process.init(options);
}

// Until that many messages are here that no receive has met.
void wait_for_unread(const Communicator& world, std::uint64_t count) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (world.context().counters().at("messages.unread") < count) {
    ASSERT_LT(std::chrono::steady_clock::now(), give_up);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void expect_lost_sender(const Status& status) {
  EXPECT_EQ(status.code(), Code::peer_lost) << status.str();
  EXPECT_NE(status.message().find("tag 5, from rank 0 ("), std::string_view::npos) << status.str();
}

const testing::JobOptions one_dies{.killed = {1}, .rendezvous = {}};

TEST_P(LostSenderOver, AReceiveFromAnySourceThatMetItsMessageEnds) {
  run_job(
      3,
      [](const Process& process) {
        choose();
        const Communicator world = init(process);
        const Communicator group = *world.subgroup(std::vector{1, 2, 0}, 9);
        const Member me = *group.self();
        Bytes in(large), other(small);
        HMC_ASSERT_OK(world.barrier(soon()));
        if (process.rank == 1) return announce_and_die(process, world, group, false);
        if (process.rank == 0) {
          wait_for_unread(world, 1);
          process.board[0] = 1;
          const auto met = me.irecv(view(in), any_source, 5);
          ASSERT_TRUE(met.ok()) << met.status().str();
          const Work next = *me.irecv(view(other), any_source, 5);
          EXPECT_EQ(world.context().counters().at("messages.unread"), 0U);
          process.board[1] = 1;
          expect_lost_sender(met->wait(soon()));
          process.board[2] = 1;
          HMC_EXPECT_OK(next.wait(soon()));  // of the rank that is left
          EXPECT_EQ(next.info().source, 1);
          EXPECT_EQ(first_mismatch(other, 3), -1);
        } else {
          ASSERT_TRUE(process.board.wait(2, 1));
          Bytes message = pattern(small, 3);
          HMC_EXPECT_OK(me.send(view(message), 2, 5, soon()));
        }
        process.board[100].fetch_add(1);
        EXPECT_TRUE(process.board.wait(100, 2));
      },
      one_dies);
}

// One that had not met it waits for the ranks that are left. One whose turn it was raises once where more of the dead rank follows.
TEST_P(LostSenderOver, AReceiveFromAnySourceThatDidNotMeetItWaitsForTheOthers) {
  for (const bool and_another : {false, true}) {
    run_job(
        3,
        [and_another](const Process& process) {
          choose();
          const Communicator world = init(process);
          const Communicator group = *world.subgroup(std::vector{1, 2, 0}, 9);
          const Member me = *group.self();
          Bytes in(large), other(small);
          HMC_ASSERT_OK(world.barrier(soon()));
          if (process.rank == 1) return announce_and_die(process, world, group, and_another);
          if (process.rank == 0) {
            const Work waits = *me.irecv(view(other), any_source, 6);
            wait_for_unread(world, and_another ? 2 : 1);
            process.board[0] = process.board[1] = 1;
            while (world.lost().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            EXPECT_FALSE(waits.done());
            if (and_another) {
              expect_lost_sender(me.recv(view(in), any_source, 5, soon()).status());
              HMC_EXPECT_OK(me.recv(view(in), any_source, 5, soon()).status());
              EXPECT_EQ(first_mismatch({in.data(), small}, 2), -1);
            }
            const Work late = *me.irecv(view(in), any_source, 5);
            process.board[2] = 1;
            HMC_EXPECT_OK(waits.wait(soon()));
            HMC_EXPECT_OK(late.wait(soon()));
            EXPECT_EQ(late.info().source, 1);
            EXPECT_EQ(first_mismatch({in.data(), small}, 3), -1);
          } else {
            ASSERT_TRUE(process.board.wait(2, 1));
            Bytes message = pattern(small, 3);
            HMC_EXPECT_OK(me.send(view(message), 2, 6, soon()));
            HMC_EXPECT_OK(me.send(view(message), 2, 5, soon()));
          }
          process.board[100].fetch_add(1);
          EXPECT_TRUE(process.board.wait(100, 2));
        },
        one_dies);
  }
}

}  // namespace
}  // namespace hmc
