// Communicator::abort and shrink: the C++ calls. What ranks that die at every moment mean for them: tests/python/test_shrink.py.
#include <array>
#include <numeric>
#include <optional>

#include "collective/communicator_state.h"
#include "collective/group.h"
#include "collective/job.h"
#include "collective/records.h"
#include "collective/world.h"
#include "comm/context_state.h"
#include "comm/peer_state.h"
#include "comm/session/group_events.h"

namespace hmc {
namespace {

using testing::Bytes;
using testing::Process;
using testing::run_job;
using testing::soon;
using testing::view;

constexpr Reduction sum{DataType::i64, ReduceOp::sum};

// The sum over all ranks of values that differ from rank to rank and element to element.
void expect_sum(const Communicator& communicator, std::size_t count) {
  std::vector<std::int64_t> values(count), expected(count);
  for (std::size_t i = 0; i < count; ++i) {
    for (int r = 0; r < communicator.size(); ++r) expected[i] += static_cast<std::int64_t>(i) * (r + 1) + r;
    const int me = communicator.local().front().rank();
    values[i] = static_cast<std::int64_t>(i) * (me + 1) + me;
  }
  const MemoryView view(values.data(), count * sizeof(std::int64_t));
  HMC_ASSERT_OK(communicator.self()->all_reduce(view, view, sum, soon()));
  EXPECT_EQ(values, expected);
}

TEST(Abort, ALongReasonIsCutBetweenCharacters) {
  std::string reason(job::max_reason - 1, 'x');
  reason += "\u00e9\u00e9";
  const auto read = job::decode_breakage(job::encode(job::Breakage{1, 2, Status(Code::cancelled, reason)}));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->reason.message(), std::string(job::max_reason - 1, 'x'));
}

void expect_aborted(const Status& status, const std::string& who, const std::string& why) {
  EXPECT_EQ(status.code(), Code::cancelled) << status.str();
  EXPECT_NE(status.message().find(who), std::string_view::npos) << status.str();
  EXPECT_TRUE(status.message().ends_with(why)) << status.str();
}

TEST(Abort, EndsWhatWaitsAndWhatComesLater) {
  run_job(4, [](const Process& process) {
    const Communicator world = process.init();
    HMC_ASSERT_OK(world.barrier(soon()));
    process.board[1].fetch_add(1);
    EXPECT_TRUE(process.board.wait(1, 4));  // an abort ends the barrier of a rank that is still in it
    if (process.rank == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      HMC_EXPECT_OK(world.abort("diverged"));
      HMC_EXPECT_OK(world.self()->abort("too late"));
    }
    expect_aborted(world.barrier(soon()), "rank 2 (", "aborted the Communicator: diverged");
    expect_aborted(world.barrier(soon()), "rank 2 (", "aborted the Communicator: diverged");
    const Communicator again = *world.shrink(soon());
    EXPECT_EQ(again.size(), 4);
    expect_sum(again, 100'000);
    HMC_EXPECT_OK(again.close(soon()));
    EXPECT_EQ(again.abort().code(), Code::closed);
    process.board[0].fetch_add(1);
    EXPECT_TRUE(process.board.wait(0, process.size));
  });
}

// Rank 0 has said what it wants, and does not come to make the memory of the new group.
TEST(Abort, EndsASplitThatWaitsForTheNewGroup) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    HMC_ASSERT_OK(world.barrier(soon()));
    if (process.rank == 0) {
      const auto& group = world.state()->group;
      HMC_ASSERT_OK(gather_bytes(group, group->local(), {encode(job::Wish{0, 0, 0x1234})}, CallKind::split, soon()).status());
      process.board[0].fetch_add(1);
      HMC_EXPECT_OK(world.abort("diverged"));
    } else {
      const int color = 0, key = 0;
      expect_aborted(world.split(std::span(&color, 1), std::span(&key, 1), soon()).status(), "rank 0 (",
                     "aborted the Communicator: diverged");
    }
    process.board[1].fetch_add(1);
    EXPECT_TRUE(process.board.wait(1, 2));
  });
}

// A job may break any number of groups.
TEST(GroupNotices, TheOldestBrokenGroupsAreForgotten) {
  GroupNotices notices;
  constexpr std::uint64_t most = 65536, all = 2 * most;
  for (std::uint64_t id = 0; id < all; ++id)
    ASSERT_TRUE(notices.is_new(control_group_broken, {id, 0, Status(Code::closed, "rank 1 failed")}));
  EXPECT_EQ(notices.known(), most);
  EXPECT_FALSE(notices.is_new(control_group_broken, {all - 1, 0, {}}));
  EXPECT_FALSE(notices.is_new(control_group_broken, {all - most, 0, {}}));
  EXPECT_TRUE(notices.is_new(control_group_broken, {0, 0, {}}));
}

// A process that made and closed many Communicators would take no notice of any that breaks.
TEST(GroupNotices, ClosedGroupsTakeNoRoom) {
  GroupNotices notices;
  for (std::uint64_t id = 0; id < 66'000; ++id) {
    const job::Breakage left{id, 3, Status(Code::closed, "closed")};
    ASSERT_TRUE(notices.is_new(control_group_left, left));
    ASSERT_FALSE(notices.is_new(control_group_left, left));
    notices.forget(control_group_left, id);
  }
  EXPECT_FALSE(notices.full());
}

// Whatever others have said of groups that are not here.
TEST(Abort, IsHeardAfterAFloodOfNotices) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const Communicator own = *world.split(std::vector{0}, std::vector{process.rank}, soon());
    HMC_ASSERT_OK(own.barrier(soon()));
    if (process.rank == 1) {
      const Peer peer = *world.peer(0, soon());
      for (std::uint64_t id = 1; id <= 66'000; ++id) {
        const job::Breakage forged{id << 20, 0, Status(Code::cancelled, "forged")};
        {
          const auto lock = world.context().state()->engine()->lock();
          HMC_ASSERT_OK(peer.state()->send_control(control_group_broken, encode(forged)));
        }
        if (id % 1000 == 0) HMC_ASSERT_OK(world.barrier(soon()));
      }
      HMC_EXPECT_OK(own.abort("diverged"));
    } else {
      for (int i = 0; i < 66; ++i) HMC_ASSERT_OK(world.barrier(soon()));
    }
    expect_aborted(own.barrier(soon()), "rank 1 (", "aborted the Communicator: diverged");
    process.board[0].fetch_add(1);
    EXPECT_TRUE(process.board.wait(0, process.size));
  });
}

// By a rank that makes the group later, to one that was not connected when it heard.
TEST(Abort, IsPassedOnByARankThatHeardItEarly) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    std::byte word{1};
    if (process.rank == 0) {
      ASSERT_TRUE(process.board.wait(0, 1));
      const job::Breakage forged{static_cast<std::uint64_t>(process.board[1].load()), 0, Status(Code::cancelled, "forged")};
      const Peer peer = *world.peer(1, soon());
      {
        const auto lock = world.context().state()->engine()->lock();
        HMC_ASSERT_OK(peer.state()->send_control(control_group_broken, encode(forged)));
      }
      HMC_ASSERT_OK(me.send({&word, 1}, 1, 0, soon()));
    } else if (process.rank == 1) {
      HMC_ASSERT_OK(me.recv({&word, 1}, 0, 0, soon()).status());
      process.board[2] = 1;
      const Communicator group = *world.subgroup(std::vector{1, 2}, 9);
      EXPECT_TRUE(process.board.wait(3, 1));
    } else {
      const Communicator group = *world.subgroup(std::vector{1, 2}, 9);
      process.board[1] = static_cast<long>(group.state()->group->id());
      process.board[0] = 1;
      ASSERT_TRUE(process.board.wait(2, 1));
      const Status status = group.barrier(soon());
      EXPECT_EQ(status.code(), Code::cancelled) << status.str();
      process.board[3] = 1;
    }
  });
}

// What depends on a message that did not come is not sent on: whoever ends well has the right bytes. Rank 0 gets rank 3's block
// from rank 2.
TEST(Leaving, MakesNoWrongResult) {
  for (int round = 0; round < 10; ++round) {
    run_job(4, [&](const Process& process) {
      const Communicator world = process.init();
      const Member me = *world.self();
      HMC_ASSERT_OK(world.barrier(soon()));
      if (me.rank() == 3) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        HMC_EXPECT_OK(world.close(soon()));
      } else {
        const std::size_t block = 3'001;
        const Bytes in = testing::pattern(block, static_cast<std::uint64_t>(me.rank()));
        Bytes out(4 * block);
        const Status status = me.all_gather(view(out), {const_cast<std::byte*>(in.data()), block}, soon(), "doubling");
        EXPECT_FALSE(status.ok()) << "rank " << me.rank() << " has a block that rank 3 never sent";
      }
      process.board[0].fetch_add(1);
      EXPECT_TRUE(process.board.wait(0, 4));
    });
  }
}

TEST(Abort, AnEmptyCommunicatorRefuses) {
  EXPECT_EQ(Communicator().abort("x").code(), Code::invalid_argument);
  EXPECT_EQ(Member().abort("x").code(), Code::invalid_argument);
  EXPECT_EQ(Communicator().shrink().status().code(), Code::invalid_argument);
  EXPECT_TRUE(Communicator().old_ranks().empty());
}

// Threads of one process abort while another thread is amid collectives.
TEST(Abort, ThreadsAbortAtOnce) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    std::vector<std::thread> threads;
    for (int i = 0; process.rank == 0 && i < 4; ++i) {
      threads.emplace_back([&world] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        HMC_EXPECT_OK(world.abort("by a thread"));
      });
    }
    Status last;
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (last.ok() && std::chrono::steady_clock::now() < give_up) last = world.barrier(soon());
    expect_aborted(last, "rank 0 (", "aborted the Communicator: by a thread");
    for (auto& thread : threads) thread.join();
    process.board[0].fetch_add(1);
    EXPECT_TRUE(process.board.wait(0, process.size));
  });
}

// ---- several collectives in flight: a later one fails first ----

// Rank 0 and rank 1 have two calls in flight, for which they wait for rank 2; the second one is cancelled on rank 0.
void while_the_second_fails(const std::function<void(const Process&, const Member&, std::vector<Work>&)>& body) {
  run_job(3, [&](const Process& process) {
    setenv("HMC_FUSED", "0", 1);  // what shared memory says besides
    const Communicator world = process.init();
    const Member me = *world.self();
    HMC_ASSERT_OK(world.barrier(soon()));
    std::array<Bytes, 2> in{Bytes(10), Bytes(10)}, out{Bytes(30), Bytes(30)};
    std::vector<Work> works;
    for (std::size_t i = 0; i < 2 && me.rank() < 2; ++i) works.push_back(*me.iall_gather(view(out[i]), view(in[i])));
    process.board[0].fetch_add(1);
    ASSERT_TRUE(process.board.wait(0, 3));
    if (me.rank() == 0) HMC_EXPECT_OK(works[1].cancel());
    if (me.rank() == 1) {
      const Status second = works[1].wait(soon());
      EXPECT_EQ(second.code(), Code::cancelled) << second.str();
    }
    body(process, me, works);
    process.board[2].fetch_add(1);
    EXPECT_TRUE(process.board.wait(2, 3));
  });
}

TEST(Breakage, OfAnEarlierCollectiveIsToldToo) {
  while_the_second_fails([](const Process&, const Member& me, std::vector<Work>& works) {
    if (me.rank() == 0) HMC_EXPECT_OK(works[0].cancel());
    if (me.rank() == 1) {
      const Status first = works[0].wait(soon());
      EXPECT_EQ(first.code(), Code::cancelled) << first.str();
      EXPECT_NE(first.message().find("rank 0"), std::string_view::npos) << first.str();
    }
  });
}

// Its call of the first one fails at once, so the others must not wait for it.
TEST(Breakage, ALateRankEndsWhatTheOthersHaveInFlight) {
  while_the_second_fails([](const Process& process, const Member& me, std::vector<Work>& works) {
    if (me.rank() == 1) process.board[1].store(1);
    if (me.rank() == 2) {
      ASSERT_TRUE(process.board.wait(1, 1));
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // it has heard of the second, or takes part in the first
      Bytes in(10), out(30);
      const Status status = me.all_gather(view(out), view(in), soon());
      EXPECT_NE(status.code(), Code::timeout) << status.str();
      return;
    }
    const Status first = works[0].wait(soon());
    EXPECT_NE(first.code(), Code::timeout) << first.str();
  });
}

TEST(Shrink, GoesOnWithoutTheDead) {
  for (const int dead : {0, 3}) {
    run_job(4,
            [dead](const Process& process) {
              const Communicator world = process.init();
              expect_sum(world, 1000);
              if (process.rank == dead) testing::die();
              EXPECT_EQ(world.barrier(soon()).code(), Code::peer_lost);
              const auto made = world.shrink(soon());
              HMC_ASSERT_OK(made.status());
              std::vector<int> living(4);
              std::iota(living.begin(), living.end(), 0);
              std::erase(living, dead);
              EXPECT_EQ(made->old_ranks(), living);
              EXPECT_EQ(made->lost(), std::vector<int>());
              expect_sum(*made, 1);
              expect_sum(*made, 200'000);
              HMC_EXPECT_OK(world.close(soon()));
              expect_sum(*made, 77);
              process.board[0].fetch_add(1);
              EXPECT_TRUE(process.board.wait(0, 3));
              HMC_EXPECT_OK(made->close(soon()));
              EXPECT_EQ(made->buffer(10).status().code(), Code::closed);
            },
            {.killed = {dead}, .rendezvous = {}});
  }
}

// The lowest rank decides; what it has decided reaches the others before its goodbye.
TEST(Shrink, RanksMayLeaveAtOnce) {
  for (int round = 0; round < 10; ++round) {
    run_job(3, [](const Process& process) {
      const Communicator world = process.init();
      const auto made = world.shrink(soon());
      HMC_ASSERT_OK(made.status());
      EXPECT_EQ(made->old_ranks(), (std::vector<int>{0, 1, 2}));
      HMC_EXPECT_OK(made->close(soon()));
      HMC_EXPECT_OK(world.close(soon()));
    });
  }
}

// The deadline of rank 0, which coordinates, and that of another rank, which asks rank 0 who is missing: with more time where the
// host is so loaded that the answer comes after the deadline. One rank's error is that of all.
TEST(Shrink, TheDeadlineNamesTheRankThatDoesNotCome) {
  for (const int hasty : {0, 2}) {
    run_job(3, [hasty](const Process& process) {
      const Communicator world = process.init();
      HMC_ASSERT_OK(world.barrier(soon()));
      Status late;
      std::size_t word = 0;
      for (const double limit : {3.0, 10.0, 30.0}) {
        if (process.rank == 1) {
          ASSERT_TRUE(process.board.wait(word, 2));
        }
        late = world.shrink(soon(process.rank == hasty ? limit : 60)).status();
        EXPECT_EQ(late.code(), Code::timeout) << late.str();
        process.board[word++].fetch_add(1);
        if (late.message().find("waiting for rank 1 (") != std::string_view::npos) break;
      }
      EXPECT_NE(late.message().find("waiting for rank 1 ("), std::string_view::npos) << late.str();
      const auto made = world.shrink(soon());
      HMC_ASSERT_OK(made.status());
      expect_sum(*made, 5000);
      process.board[10].fetch_add(1);
      EXPECT_TRUE(process.board.wait(10, process.size));
    });
  }
}

// Numbers of plain Peer calls and of collectives: the end of such a group would end those of others.
TEST(Shrink, AProposedScopeThatIsNoGroupsIsDeclined) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    HMC_ASSERT_OK(world.barrier(soon()));
    const std::array scopes{std::uint32_t{0}, collective_scope_bit, collective_scope_bit | 5};
    if (process.rank == 0) {
      std::vector<job::ShrinkKind> answers;
      const auto forge = [&](PeerState& peer, MessageType type, ByteSpan payload, const std::vector<UniqueFd>&) {
        const auto message = type == control_shrink ? job::decode_shrink(payload) : std::nullopt;
        if (!message || message->instance >= scopes.size() || message->kind == job::ShrinkKind::give_up) return;
        job::Shrink reply{.kind = job::ShrinkKind::give_up, .reason = Status(Code::cancelled, "forged")};
        if (message->kind == job::ShrinkKind::join) {
          reply = {.kind = job::ShrinkKind::propose, .attempt = 1, .scope = scopes[message->instance], .processes = {0, 1}};
        } else {
          answers.push_back(message->kind);
        }
        reply.group_id = message->group_id;
        reply.instance = message->instance;
        HMC_EXPECT_OK(peer.send_control(control_shrink, encode(reply)));
      };
      const std::shared_ptr<ContextState> context = world.context().state();
      {
        const auto lock = context->engine()->lock();
        context->group_events().set_message_handler(forge);
      }
      process.board[1].store(1);
      EXPECT_TRUE(context->engine()->drive(soon(), [&] { return answers.size() == scopes.size(); }));
      const auto lock = context->engine()->lock();
      EXPECT_EQ(answers, std::vector(scopes.size(), job::ShrinkKind::decline));
      context->group_events().set_message_handler([](PeerState&, MessageType, ByteSpan, const std::vector<UniqueFd>&) {});
    } else {
      ASSERT_TRUE(process.board.wait(1, 1));
      for (const std::uint32_t scope : scopes) EXPECT_EQ(world.shrink(soon()).status().code(), Code::cancelled) << scope;
    }
    process.board[0].fetch_add(1);
    EXPECT_TRUE(process.board.wait(0, process.size));
  });
}

}  // namespace
}  // namespace hmc
