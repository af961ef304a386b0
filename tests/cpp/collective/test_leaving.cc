// Point-to-point with a rank that has closed its Communicator while its process and its Context go on: what it sent before arrives,
// what it will never send or receive ends.
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "collective/communicator_state.h"
#include "collective/group.h"
#include "collective/job.h"
#include "comm/context_state.h"
#include "comm/messages/messenger.h"

namespace hmc {
namespace {

using testing::Bytes;
using testing::first_mismatch;
using testing::pattern;
using testing::Process;
using testing::run_job;
using testing::soon;
using testing::view;

constexpr std::size_t small = 40, large = 3'000'001;

void expect_left(const Status& status, int rank, std::string_view call) {
  EXPECT_EQ(status.code(), Code::closed) << status.str();
  const std::string who = "rank " + std::to_string(rank) + " (";
  EXPECT_NE(status.message().find(who), std::string_view::npos) << status.str();
  EXPECT_NE(status.message().find("closed the Communicator"), std::string_view::npos) << status.str();
  EXPECT_NE(status.message().find(call), std::string_view::npos) << status.str();
}

Communicator group_of(const Communicator& world, std::vector<int> ranks, std::uint32_t number) {
  auto group = world.subgroup(ranks, number);
  EXPECT_TRUE(group.ok()) << group.status().str();
  return group.ok() ? *group : Communicator();
}

// Until every process is here: none ends its Context before.
void meet(const Process& process) {
  process.board[100].fetch_add(1);
  EXPECT_TRUE(process.board.wait(100, process.size));
}

class LeavingOver : public ::testing::TestWithParam<const char*> {
 protected:
  static void choose() {
    const bool ring = std::string_view(GetParam()) == "ring";
    if (ring) setenv("HMC_SHM_PTRACE", "0", 1);
    setenv("HMC_TRANSPORTS", ring ? "shm" : GetParam(), 1);
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, LeavingOver, ::testing::Values("shm", "tcp", "ring"), [](const auto& p) { return p.param; });

TEST_P(LeavingOver, WhatWasSentBeforeArrivesAndTheNextReceiveEnds) {
  run_job(3, [](const Process& process) {
    choose();
    const Communicator world = process.init();
    const Communicator group = group_of(world, {0, 1, 2}, 9);
    const Member me = *group.self();
    if (process.rank == 1) {
      const Bytes first = pattern(small, 1), second = pattern(large, 2), third = pattern(small, 3);
      ASSERT_TRUE(process.board.wait(1, 1));
      std::vector<Work> sent;
      for (const Bytes* each : {&first, &second, &third})
        sent.push_back(*me.isend({const_cast<std::byte*>(each->data()), each->size()}, 0, 5));
      HMC_EXPECT_OK(group.close(soon()));
      process.board[0] = 1;
      HMC_EXPECT_OK(wait_all(sent, soon()));
    } else if (process.rank == 0) {
      Bytes first(small), second(large), third(small), none(small);
      const Work posted = *me.irecv(view(first), 1, 5);
      const Work other = *me.irecv(view(none), 1, 6);  // of a tag that does not come
      process.board[1] = 1;
      ASSERT_TRUE(process.board.wait(0, 1));
      HMC_EXPECT_OK(posted.wait(soon()));
      expect_left(other.wait(soon()), 1, "receive of up to 40 bytes, tag 6");
      HMC_EXPECT_OK(me.recv(view(second), 1, 5, soon()).status());
      HMC_EXPECT_OK(me.recv(view(third), 1, any_tag, soon()).status());
      EXPECT_EQ(first_mismatch(first, 1), -1);
      EXPECT_EQ(first_mismatch(second, 2), -1);
      EXPECT_EQ(first_mismatch(third, 3), -1);
      expect_left(me.recv(view(none), 1, 5, soon()).status(), 1, "receive of up to 40 bytes, tag 5");
      expect_left(me.irecv(view(none), 1, any_tag).status(), 1, "receive of up to 40 bytes, tag any");
      expect_left(me.send(view(none), 1, 5, soon()), 1, "send of 40 bytes, tag 5");
      // The others of the group go on, and so does another group with that rank.
      HMC_EXPECT_OK(me.send(view(first), 2, 5, soon()));
      HMC_EXPECT_OK(world.self()->send(view(first), 1, 5, soon()));
    }
    Bytes in(small);
    if (process.rank == 2) HMC_EXPECT_OK(me.recv(view(in), 0, 5, soon()).status());
    if (process.rank == 1) HMC_EXPECT_OK(world.self()->recv(view(in), 0, 5, soon()).status());
    meet(process);
  });
}

// The blocking receive waits without an entry in the table of posted receives.
TEST_P(LeavingOver, EndsABlockingReceive) {
  run_job(2, [](const Process& process) {
    choose();
    const Communicator world = process.init();
    const Communicator group = group_of(world, {0, 1}, 9);
    const Member me = *group.self();
    Bytes word(8);
    if (process.rank == 1) {
      HMC_EXPECT_OK(me.send(view(word), 0, 0, soon()));
      ASSERT_TRUE(process.board.wait(0, 1));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      HMC_EXPECT_OK(group.close(soon()));
    } else {
      HMC_EXPECT_OK(me.recv(view(word), 1, 0, soon()).status());
      process.board[0] = 1;
      expect_left(me.recv(view(word), 1, 0, soon()).status(), 1, "receive of up to 8 bytes, tag 0");
    }
    meet(process);
  });
}

// More messages than a peer has credit for wait at the sender when it closes.
TEST_P(LeavingOver, MessagesThatWaitForCreditComeFirst) {
  run_job(2, [](const Process& process) {
    choose();
    const Communicator world = process.init();
    const Communicator group = group_of(world, {0, 1}, 9);
    const Member me = *group.self();
    constexpr std::uint64_t count = 9000;
    if (process.rank == 1) {
      std::vector<std::uint64_t> numbers(count);
      std::vector<Work> sent;
      for (std::uint64_t i = 0; i < count; ++i) {
        numbers[i] = i;
        sent.push_back(*me.isend({&numbers[i], sizeof i}, 0, 3));
      }
      HMC_EXPECT_OK(group.close(soon()));
      process.board[0] = 1;
      HMC_EXPECT_OK(wait_all(sent, soon()));
    } else {
      ASSERT_TRUE(process.board.wait(0, 1));
      for (std::uint64_t i = 0; i < count; ++i) {
        std::uint64_t got = count;
        const auto info = me.recv({&got, sizeof got}, 1, 3, soon());
        HMC_ASSERT_OK(info.status());
        ASSERT_EQ(got, i);
      }
      std::uint64_t none = 0;
      expect_left(me.recv({&none, sizeof none}, 1, 3, soon()).status(), 1, "receive of up to 8 bytes, tag 3");
    }
    meet(process);
  });
}

TEST(Leaving, AnySourceWaitsForTheRanksThatAreLeft) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Communicator group = group_of(world, {0, 1, 2}, 9);
    const Member me = *group.self();
    Bytes word = pattern(8, 4);
    if (process.rank == 0) {
      Bytes in(8), none(8);
      HMC_EXPECT_OK(me.recv(view(in), 2, 1, soon()).status());  // both are connected
      HMC_EXPECT_OK(me.recv(view(in), 1, 1, soon()).status());
      const Work posted = *me.irecv(view(in), any_source, 2);
      process.board[0] = 1;
      expect_left(me.recv(view(none), 1, 1, soon()).status(), 1, "from rank 1 (");
      EXPECT_FALSE(posted.done());
      process.board[1] = 1;
      HMC_EXPECT_OK(posted.wait(soon()));
      EXPECT_EQ(posted.info().source, 2);
      expect_left(me.recv(view(none), any_source, 3, soon()).status(), 2, "no other rank is left to send");
      expect_left(me.irecv(view(none), any_source, 3).status(), 2, "receive of up to 8 bytes, tag 3");
    } else {
      HMC_EXPECT_OK(me.send(view(word), 0, 1, soon()));
      ASSERT_TRUE(process.board.wait(process.rank == 1 ? 0 : 1, 1));
      if (process.rank == 2) HMC_EXPECT_OK(me.send(view(word), 0, 2, soon()));
      HMC_EXPECT_OK(group.close(soon()));
    }
    meet(process);
  });
}

// The rank closes the group before the other rank makes it, or before the two are connected.
TEST(Leaving, IsKnownToARankThatMakesTheGroupLater) {
  for (const bool connected : {true, false}) {
    run_job(3, [connected](const Process& process) {
      const Communicator world = process.init();
      if (connected) HMC_ASSERT_OK(world.barrier(soon()));
      Bytes word = pattern(8, 4), in(8);
      if (process.rank == 1) {
        const Communicator group = group_of(world, {1, 2}, 9);
        const Member me = *group.self();
        if (connected) HMC_EXPECT_OK(me.send(view(word), 1, 1, soon()));
        HMC_EXPECT_OK(group.close(soon()));
        if (connected) HMC_EXPECT_OK(world.self()->send(view(word), 2, 1, soon()));
        process.board[0] = 1;
      } else if (process.rank == 2) {
        ASSERT_TRUE(process.board.wait(0, 1));
        if (connected) HMC_EXPECT_OK(world.self()->recv(view(in), 1, 1, soon()).status());
        const Communicator group = group_of(world, {1, 2}, 9);
        const Member me = *group.self();
        if (connected) HMC_EXPECT_OK(me.recv(view(in), 0, 1, soon()).status());
        expect_left(me.recv(view(in), 0, 1, soon()).status(), 0, "receive of up to 8 bytes, tag 1");
        HMC_EXPECT_OK(group.close(soon()));
      }
      meet(process);
    });
  }
}

// A job may close any number of groups before two ranks connect.
TEST(Leaving, IsKnownHoweverManyGroupsWereClosedBeforeTheConnection) {
  run_job(4, [](const Process& process) {
    const Communicator world = process.init();
    constexpr std::uint32_t first = 2, kept = 1000, discarded = 3000;  // groups
    if (process.rank == 1) {
      const auto close_groups = [&](const std::vector<int>& ranks, std::uint32_t from, std::uint32_t count) {
        for (std::uint32_t i = 0; i < count; ++i) HMC_ASSERT_OK(group_of(world, ranks, from + i).close(soon()));
      };
      close_groups({1, 2}, first, kept);
      EXPECT_FALSE(world.context().counters().contains("group_notices.discarded"));
      process.board[0] = 1;
      ASSERT_TRUE(process.board.wait(1, 1));
      close_groups({1, 3}, first + kept, discarded);  // rank 3 does not connect
      EXPECT_GT(world.context().counters().at("group_notices.discarded"), 0U);
    } else if (process.rank == 2) {
      ASSERT_TRUE(process.board.wait(0, 1));
      Bytes in(8);
      for (const std::uint32_t number : {first, first + kept / 2, first + kept - 1}) {
        const Communicator group = group_of(world, {1, 2}, number);
        expect_left(group.self()->recv(view(in), 0, 1, soon()).status(), 0, "receive of up to 8 bytes, tag 1");
        const Status barrier = group.barrier(soon());
        EXPECT_EQ(barrier.code(), Code::closed) << barrier.str();
      }
      process.board[1] = 1;
    }
    meet(process);
  });
}

// Messages for a group that is closed here neither keep their sender waiting nor take its credit.
TEST_P(LeavingOver, MessagesForAClosedGroupEnd) {
  run_job(2, [](const Process& process) {
    choose();
    const Communicator world = process.init();
    const Communicator group = group_of(world, {0, 1}, 9);
    const Member me = *group.self();
    HMC_ASSERT_OK(world.barrier(soon()));
    Bytes word(8), big(large);
    if (process.rank == 1) {
      auto lock = world.context().state()->engine()->lock();  // the notice waits
      const Group& state = *group.state()->group;
      const Target to{state.rank(0).peer, {state.scope(), 1, 0}};
      process.board[0] = 1;
      ASSERT_TRUE(process.board.wait(1, 1));
      for (int i = 0; i < 5000; ++i) HMC_ASSERT_OK(state.messenger().isend_locked(to, 0, view(word)).status());
      const auto announced = state.messenger().isend_locked(to, 0, view(big));
      HMC_ASSERT_OK(announced.status());
      process.board[2] = 1;
      lock.unlock();
      const Status ended = Work(*announced).wait(soon());
      EXPECT_EQ(ended.code(), Code::closed) << ended.str();
      EXPECT_NE(ended.message().find("to rank 0 ("), std::string_view::npos) << ended.str();
      expect_left(me.send(view(word), 0, 0, soon()), 0, "send of 8 bytes");
      HMC_EXPECT_OK(world.self()->send(view(word), 0, 0, soon()));
    } else {
      ASSERT_TRUE(process.board.wait(0, 1));
      HMC_EXPECT_OK(group.close(soon()));
      process.board[1] = 1;
      ASSERT_TRUE(process.board.wait(2, 1));
      HMC_EXPECT_OK(world.self()->recv(view(word), 1, 0, soon()).status());
      EXPECT_EQ(world.context().counters().at("messages.unread"), 0U);
    }
    meet(process);
  });
}

// Cancelling a matched receive returns its message, which no other receive can take: the send ends.
TEST(Leaving, AMessageThatIsGivenBackEnds) {
  run_job(2, [](const Process& process) {
    setenv("HMC_SHM_PTRACE", "0", 1);  // the sender takes part in what is moved
    const Communicator world = process.init();
    const Communicator group = group_of(world, {0, 1}, 9);
    HMC_ASSERT_OK(world.barrier(soon()));
    const Group& state = *group.state()->group;
    Bytes big(large);
    if (process.rank == 1) {
      auto lock = world.context().state()->engine()->lock();  // it does not yet
      const auto announced = state.messenger().isend_locked({state.rank(0).peer, {state.scope(), 1, 0}}, 0, view(big));
      HMC_ASSERT_OK(announced.status());
      process.board[0] = 1;
      ASSERT_TRUE(process.board.wait(1, 1));
      lock.unlock();
      const Status ended = Work(*announced).wait(soon());
      EXPECT_EQ(ended.code(), Code::closed) << ended.str();
    } else {
      ASSERT_TRUE(process.board.wait(0, 1));
      const auto unread = [&] { return world.context().counters().at("messages.unread"); };
      while (unread() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const Work met = *group.self()->irecv(view(big), 1, 0);
      HMC_EXPECT_OK(group.close(soon()));
      EXPECT_FALSE(met.done());
      HMC_EXPECT_OK(met.cancel());
      EXPECT_EQ(met.wait(soon()).code(), Code::cancelled) << met.status().str();
      EXPECT_EQ(unread(), 0U);
      process.board[1] = 1;
    }
    meet(process);
  });
}

// Between the check of a handle and its post another thread closes the group.
TEST(Leaving, NoReceiveIsPostedInAClosedGroup) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const Communicator group = group_of(world, {0, 1}, 9);
    HMC_ASSERT_OK(world.barrier(soon()));
    const Group& state = *group.state()->group;
    const auto other = static_cast<std::uint32_t>(1 - process.rank), me = static_cast<std::uint32_t>(process.rank);
    HMC_EXPECT_OK(group.close(soon()));
    Bytes word(8);
    for (const auto& peer : {state.rank(other).peer, std::shared_ptr<PeerState>()}) {
      const Target from{peer, {state.scope(), peer ? other : any_rank, me}};
      EXPECT_EQ(state.messenger().irecv(from, 0, view(word)).status().code(), Code::closed);
      EXPECT_EQ(state.messenger().recv(from, 0, view(word), soon()).status().code(), Code::closed);
    }
    meet(process);
  });
}

// By another thread of the same process.
TEST(Leaving, EndsTheReceivesOfThisProcess) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const Communicator group = group_of(world, {0, 1}, 9);
    const Member me = *group.self();
    Bytes word(8), other(8), any(8);
    const Work posted = *me.irecv(view(word), 1 - process.rank, 1);
    const Work from_any = *me.irecv(view(any), any_source, 1);
    process.board[20].fetch_add(1);
    std::thread waiter([&] {
      const Status ended = me.recv(view(other), 1 - process.rank, 2, soon()).status();
      EXPECT_EQ(ended.code(), Code::closed) << ended.str();
    });
    EXPECT_TRUE(process.board.wait(20, 2));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (process.rank == 0) HMC_EXPECT_OK(group.close(soon()));
    waiter.join();
    EXPECT_EQ(posted.wait(soon()).code(), Code::closed) << posted.status().str();
    EXPECT_EQ(from_any.wait(soon()).code(), Code::closed) << from_any.status().str();
    meet(process);
  });
}

// The Context goes on where the application holds it.
TEST(Leaving, IsKnownOfACommunicatorThatWasDropped) {
  run_job(2, [](const Process& process) {
    Communicator world = process.init();
    HMC_ASSERT_OK(world.barrier(soon()));
    const Context context = world.context();
    Bytes word(8);
    if (process.rank == 1) {
      HMC_EXPECT_OK(world.self()->send(view(word), 0, 1, soon()));
      world = Communicator();
    } else {
      const Member me = *world.self();
      HMC_EXPECT_OK(me.recv(view(word), 1, 1, soon()).status());
      expect_left(me.recv(view(word), 1, 1, soon()).status(), 1, "receive of up to 8 bytes");
      EXPECT_EQ(world.barrier(soon()).code(), Code::closed);
    }
    meet(process);
  });
}

// A group whose collectives have ended still carries messages, and its ranks close it one by one.
TEST(Leaving, IsKnownInAnAbortedGroup) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const Communicator group = *world.split(std::vector{0}, std::vector{process.rank}, soon());
    const Member me = *group.self();
    Bytes word(8);
    HMC_EXPECT_OK(group.barrier(soon()));
    process.board[20].fetch_add(1);
    EXPECT_TRUE(process.board.wait(20, 2));  // the other rank may still be in the barrier
    if (process.rank == 0) HMC_EXPECT_OK(group.abort("diverged"));
    EXPECT_EQ(group.barrier(soon()).code(), Code::cancelled);
    if (process.rank == 0) {
      HMC_EXPECT_OK(me.send(view(word), 1, 1, soon()));
      HMC_EXPECT_OK(group.close(soon()));
    } else {
      HMC_EXPECT_OK(me.recv(view(word), 0, 1, soon()).status());
      expect_left(me.recv(view(word), 0, 1, soon()).status(), 0, "receive of up to 8 bytes");
    }
    meet(process);
  });
}

}  // namespace
}  // namespace hmc
