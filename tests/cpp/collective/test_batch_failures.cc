// Batches that fail: other calls on another rank, a death, a rank that is late.
#include <signal.h>
#include <unistd.h>

#include <chrono>

#include "collective/batch_data.h"

namespace hmc {
namespace {

using namespace testing;

// The same bytes in all: in another order, call by call, or with another operation.
TEST(BatchFailures, OtherCallsOnAnotherRankAreFound) {
  for (const int difference : {0, 1, 2}) {
    run_job(2, [difference](const Process& process) {
      const Communicator world = process.init();
      const Member me = *world.self();
      const bool odd = me.rank() == 1;
      Bytes first(odd && difference == 0 ? 60 : 40), second(100 - first.size());
      const Reduction reduction{DataType::u8, odd && difference == 2 ? ReduceOp::bor : ReduceOp::bxor};
      Status status;
      if (odd && difference == 1) {
        status = me.all_reduce(view(first), view(first), reduction, soon());
      } else {
        auto batch = me.batch();
        ASSERT_TRUE(batch.ok());
        HMC_ASSERT_OK(me.all_reduce(view(first), view(first), reduction, soon()));
        HMC_ASSERT_OK(me.all_reduce(view(second), view(second), reduction, soon()));
        status = batch->run(soon());
      }
      EXPECT_EQ(status.code(), Code::invalid_argument) << status.str();
      EXPECT_NE(status.message().find("all_reduce of u8"), std::string::npos) << status.str();
      process.board[0].fetch_add(1);
      EXPECT_TRUE(process.board.wait(0, 2));
    });
  }
}

// The calls behind the one that failed say so, and each text has one prefix for each call.
TEST(BatchFailures, LaterCallsNameTheEarlierOne) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    const Reduction reduction{DataType::u8, me.rank() == 1 ? ReduceOp::bor : ReduceOp::bxor};
    Bytes first = input(1000, me.rank(), 0), second = input(2 << 20, me.rank(), 1);
    auto batch = me.batch();
    ASSERT_TRUE(batch.ok());
    HMC_ASSERT_OK(me.all_reduce(view(first), view(first), reduction, soon()));
    HMC_ASSERT_OK(me.all_reduce(view(second), view(second), reduction, soon()));
    const auto work = batch->start();
    ASSERT_TRUE(work.ok());
    const Status status = work->wait(soon());
    EXPECT_EQ(status.code(), Code::invalid_argument) << status.str();
    EXPECT_EQ(status.message().find("all_reduce: all_reduce"), std::string::npos) << status.str();
    EXPECT_TRUE(status.message().starts_with("batch: all_reduce: ")) << status.str();
    process.board[0].fetch_add(1);
    EXPECT_TRUE(process.board.wait(0, 2));
  });
}

TEST(BatchFailures, ADeathEndsAllOfOne) {
  run_job(3,
          [](const Process& process) {
            const Communicator world = process.init();
            const Member me = *world.self();
            std::vector<Bytes> data;
            for (std::size_t i = 0; i < 20; ++i) data.push_back(input(i % 2 == 0 ? 1000 : testing::lengthy(4 << 20), me.rank(), i));
            Bytes late(100);
            HMC_ASSERT_OK(world.barrier(soon()));
            if (me.rank() == 1) testing::die();
            auto batch = me.batch();
            ASSERT_TRUE(batch.ok());
            for (Bytes& each : data) HMC_ASSERT_OK(me.all_reduce(view(each), view(each), xored, soon()));
            ASSERT_TRUE(me.irecv(view(late), me.rank() == 0 ? 2 : 0, 1).ok());  // of a rank that lives and does not send
            const auto before = std::chrono::steady_clock::now();
            const Status status = batch->run(soon());
            EXPECT_EQ(status.code(), Code::peer_lost) << status.str();
            EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.str();
            EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(30));
            process.board[0].fetch_add(1);
            EXPECT_TRUE(process.board.wait(0, 2));
          },
          {.killed = {1}});
}

// What a stopped rank has been told of cannot be taken back: the memory is still in use, and the error says so.
TEST(BatchFailures, MessagesThatAreUnderWayAtTheDeadlineAreSaidToBe) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    Bytes large = input(3'000'000, me.rank(), 0);
    HMC_ASSERT_OK(world.barrier(soon()));
    if (me.rank() == 1) {
      process.board[1].store(getpid());
      process.board[0].fetch_add(1);
      raise(SIGSTOP);
    } else {
      EXPECT_TRUE(process.board.wait(0, 1));
      ASSERT_TRUE(testing::wait_until_stopped(static_cast<pid_t>(process.board[1].load())));
      auto batch = me.batch();
      ASSERT_TRUE(batch.ok());
      const auto sent = me.isend(view(large), 1, 1);
      ASSERT_TRUE(sent.ok());
      const Status status = batch->run(Deadline::after_seconds(0.2));
      EXPECT_EQ(status.code(), Code::timeout) << status.str();
      EXPECT_NE(status.message().find("may still be used"), std::string::npos) << status.str();
      kill(static_cast<pid_t>(process.board[1].load()), SIGCONT);
      static_cast<void>(sent->wait(soon()));
    }
    process.board[2].fetch_add(1);
    EXPECT_TRUE(process.board.wait(2, 2));
  });
}

TEST(BatchFailures, ALateRankIsNamedAtTheDeadline) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    Bytes a = input(100, 0, 0), b = input(200, 0, 1), late(9);
    if (me.rank() == 0) {
      auto batch = me.batch();
      ASSERT_TRUE(batch.ok());
      HMC_ASSERT_OK(me.all_reduce(view(a), view(a), xored));
      HMC_ASSERT_OK(me.all_reduce(view(b), view(b), xored));
      ASSERT_TRUE(me.irecv(view(late), 1, 1).ok());
      const Status status = batch->run(Deadline::after_seconds(0.2));
      EXPECT_EQ(status.code(), Code::timeout) << status.str();
      EXPECT_NE(status.message().find("rank 1 ("), std::string::npos) << status.str();
      EXPECT_EQ(a, input(100, 0, 0));
    }
    process.board[0].fetch_add(1);
    EXPECT_TRUE(process.board.wait(0, 2));
  });
}

}  // namespace
}  // namespace hmc
