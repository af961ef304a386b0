// Calls by rank: two-sided, one-sided, notifications.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

#include "collective/job.h"

namespace hmc {
namespace {

using testing::first_mismatch;
using testing::pattern;
using testing::Process;
using testing::run_job;
using testing::soon;
using testing::view;

std::uint64_t seed(int from, int to, std::size_t size) {
  return static_cast<std::uint64_t>(from) * 1000 + static_cast<std::uint64_t>(to) * 10 + size;
}

TEST(P2P, EveryPairAndSize) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    for (const std::size_t size : testing::awkward_sizes()) {
      std::vector<std::vector<std::byte>> out, in;
      std::vector<Work> works;
      for (int other = 0; other < world.size(); ++other) {
        out.push_back(pattern(size, seed(me.rank(), other, size)));
        in.emplace_back(size);
      }
      for (int other = 0; other < world.size(); ++other) {  // itself too
        const auto at = static_cast<std::size_t>(other);
        auto received = me.irecv(view(in[at]), other, 5);
        ASSERT_TRUE(received.ok()) << received.status().str();
        works.push_back(*received);
        auto sent = me.isend(view(out[at]), other, 5);
        ASSERT_TRUE(sent.ok()) << sent.status().str();
        works.push_back(*sent);
      }
      HMC_ASSERT_OK(wait_all(works, soon()));
      for (int other = 0; other < world.size(); ++other) {
        const auto at = static_cast<std::size_t>(other);
        EXPECT_EQ(first_mismatch(in[at], seed(other, me.rank(), size)), -1) << size << " bytes from " << other;
        EXPECT_EQ(works[2 * at].info().source, other);
        EXPECT_EQ(works[2 * at].info().tag, 5);
        EXPECT_EQ(works[2 * at].info().bytes, size);
      }
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(P2P, AnySourceNamesTheRank) {
  run_job(4, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    if (me.rank() != 0) {
      auto message = pattern(100, static_cast<std::uint64_t>(me.rank()));
      HMC_ASSERT_OK(me.send(view(message), 0, 7 + me.rank(), soon()));
    } else {
      std::set<int> seen;
      for (int i = 1; i < world.size(); ++i) {
        std::vector<std::byte> message(100);
        const auto info = me.recv(view(message), any_source, any_tag, soon());
        ASSERT_TRUE(info.ok()) << info.status().str();
        EXPECT_EQ(info->tag, 7 + info->source);
        EXPECT_EQ(first_mismatch(message, static_cast<std::uint64_t>(info->source)), -1);
        seen.insert(info->source);
      }
      EXPECT_EQ(seen, (std::set<int>{1, 2, 3}));
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

// A collective under way between the same ranks must not take, or be taken by, messages of the user, whatever their tags.
// By rank and from any source: what a cancelled receive had met is there for the next one.
TEST(P2P, ACancelledReceiveLosesNoMessage) {
  for (const char* transport : {"shm", "tcp", "ring"}) {
    run_job(2, [transport](const Process& process) {
      const bool ring = std::string_view(transport) == "ring";
      if (ring) setenv("HMC_SHM_PTRACE", "0", 1);
      setenv("HMC_TRANSPORTS", ring ? "shm" : transport, 1);
      const Communicator world = process.init();
      const Member me = *world.self();
      constexpr std::size_t size = 3'000'001;
      for (int round = 0; round < 20; ++round) {
        auto message = pattern(size, static_cast<std::uint64_t>(round));
        if (me.rank() == 0) {
          HMC_ASSERT_OK(me.send(view(message), 1, 9, soon()));
          continue;
        }
        const int source = round % 2 == 0 ? 0 : any_source;
        std::vector<std::byte> in(size);
        Work received = *me.irecv(view(in), source, 9);
        for (int turn = 0; turn < 20; ++turn) {
          std::this_thread::sleep_for(std::chrono::microseconds(turn * 100));
          if (!received.cancel().ok()) break;
          received = *me.irecv(view(in), source, 9);
        }
        HMC_ASSERT_OK(received.wait(soon()));
        EXPECT_EQ(received.info().source, 0);
        EXPECT_EQ(first_mismatch(in, static_cast<std::uint64_t>(round)), -1);
      }
      HMC_EXPECT_OK(world.barrier(soon()));
    });
  }
}

TEST(P2P, UserTagsNeverMeetCollectives) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    const int other = 1 - me.rank();
    std::vector<std::byte> early(64);
    auto any = me.irecv(view(early), any_source, any_tag);
    ASSERT_TRUE(any.ok());
    for (int i = 0; i < 3; ++i) HMC_ASSERT_OK(world.barrier(soon()));
    EXPECT_FALSE(any->done());
    process.board[0].fetch_add(1);
    ASSERT_TRUE(process.board.wait(0, 2));
    auto message = pattern(64, 9);
    HMC_ASSERT_OK(me.send(view(message), other, 0, soon()));
    HMC_ASSERT_OK(any->wait(soon()));
    EXPECT_EQ(first_mismatch(early, 9), -1);
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(P2P, ExchangePutGetAndNotify) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    const std::size_t block = 4097;
    const auto size = static_cast<std::size_t>(world.size());
    auto source = *world.buffer(size * block), target = *world.buffer(size * block + 13);
    for (int to = 0; to < world.size(); ++to) {
      testing::fill_pattern({static_cast<std::byte*>(source.memory().data()) + static_cast<std::size_t>(to) * block, block},
                            seed(me.rank(), to, 0));
    }
    const auto shared = target.slice(13, size * block);  // a slice is exchanged as a slice
    const auto remotes = me.exchange(*shared, soon());
    ASSERT_TRUE(remotes.ok()) << remotes.status().str();
    ASSERT_EQ(remotes->size(), size);
    for (int to = 0; to < world.size(); ++to) {
      const auto at = static_cast<std::size_t>(to);
      ASSERT_EQ((*remotes)[at].size(), size * block);
      const auto mine = source.slice(at * block, block);
      const auto theirs = (*remotes)[at].slice(static_cast<std::size_t>(me.rank()) * block, block);
      const auto put = me.put(*mine, *theirs, {.notify = 40, .complete = Complete::remote});
      ASSERT_TRUE(put.ok()) << put.status().str();
      HMC_ASSERT_OK(put->wait(soon()));
    }
    for (int from = 0; from < world.size(); ++from) HMC_ASSERT_OK(me.wait_notify(from, 40, 1, soon()));
    for (int from = 0; from < world.size(); ++from) {
      const std::span bytes(static_cast<const std::byte*>(target.memory().data()) + 13 + static_cast<std::size_t>(from) * block,
                            block);
      EXPECT_EQ(first_mismatch(bytes, seed(from, me.rank(), 0)), -1) << "from " << from;
    }
    HMC_ASSERT_OK(world.barrier(soon()));
    const int next = (me.rank() + 1) % world.size();
    auto back = *world.buffer(block);
    const auto get = me.get(back, *(*remotes)[static_cast<std::size_t>(next)].slice(0, block));
    ASSERT_TRUE(get.ok()) << get.status().str();
    HMC_ASSERT_OK(get->wait(soon()));
    EXPECT_EQ(first_mismatch({static_cast<const std::byte*>(back.memory().data()), block}, seed(0, next, 0)), -1);

    const auto payload = pattern(33, static_cast<std::uint64_t>(me.rank()));
    HMC_ASSERT_OK(me.notify(next, Notify(std::span<const std::byte>(payload))));
    const auto notes = me.notifications(soon());
    ASSERT_TRUE(notes.ok()) << notes.status().str();
    ASSERT_EQ(notes->size(), 1U);
    EXPECT_EQ((*notes)[0].source, (me.rank() + world.size() - 1) % world.size());
    EXPECT_EQ(first_mismatch((*notes)[0].payload, static_cast<std::uint64_t>((*notes)[0].source)), -1);
    HMC_EXPECT_OK(me.fence(next));
    const auto path = me.path(next);
    ASSERT_TRUE(path.ok()) << path.status().str();
    EXPECT_FALSE(path->transport.empty());
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(P2P, BlocksWithOneNotification) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    const std::size_t block = 512, count = 64;
    auto buffer = *world.buffer(block * count);
    if (me.rank() == 0) testing::fill_pattern({static_cast<std::byte*>(buffer.memory().data()), block * count}, 3);
    const auto remotes = me.exchange(buffer, soon());
    ASSERT_TRUE(remotes.ok()) << remotes.status().str();
    if (me.rank() == 0) {
      std::vector<std::uint64_t> from, to;
      for (std::size_t i = 0; i < count; ++i) {
        from.push_back(i * block);
        to.push_back((i * 13 % count) * block);
      }
      const BlockPair pair{buffer, (*remotes)[1], from, to};
      const auto batch = me.prepare_blocks(std::span(&pair, 1), block);
      ASSERT_TRUE(batch.ok()) << batch.status().str();
      const auto put = me.put_blocks(*batch, {.notify = 8, .complete = Complete::remote});
      ASSERT_TRUE(put.ok()) << put.status().str();
      HMC_ASSERT_OK(put->wait(soon()));
    } else {
      HMC_ASSERT_OK(me.wait_notify(0, 8, 1, soon()));
      const auto expected = pattern(block * count, 3);
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_EQ(std::memcmp(static_cast<const std::byte*>(buffer.memory().data()) + (i * 13 % count) * block,
                              expected.data() + i * block, block),
                  0);
      }
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(P2P, ExchangeBytesOfEverySize) {
  run_job(5, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{777}, std::size_t{65536 - 4}}) {
      const std::size_t mine = size == 0 ? 0 : size + static_cast<std::size_t>(me.rank());
      const auto all = me.exchange_bytes(pattern(mine, static_cast<std::uint64_t>(me.rank())), soon());
      ASSERT_TRUE(all.ok()) << all.status().str();
      ASSERT_EQ(all->size(), 5U);
      for (std::size_t r = 0; r < 5; ++r) {
        EXPECT_EQ((*all)[r].size(), size == 0 ? 0 : size + r);
        EXPECT_EQ(first_mismatch((*all)[r], r), -1);
      }
    }
    EXPECT_EQ(me.exchange_bytes(std::vector<std::byte>(65537), soon()).status().code(), Code::invalid_argument);
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

// A rank without a buffer says so to everybody; nobody waits for it.
TEST(P2P, ExchangeOfNothingFailsEverywhere) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    const ConnBuffer buffer = me.rank() == 1 ? ConnBuffer() : *world.buffer(64);
    const auto remotes = me.exchange(buffer, soon());
    ASSERT_FALSE(remotes.ok());
    EXPECT_EQ(remotes.status().code(), Code::invalid_argument);
    EXPECT_NE(remotes.status().message().find("rank 1"), std::string_view::npos) << remotes.status().str();
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(P2P, WrongArgumentsAreNamed) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    std::vector<std::byte> bytes(8);
    for (const int wrong : {-2, 2, 1000}) {
      const Status status = me.send(view(bytes), wrong, 0, soon());
      EXPECT_EQ(status.code(), Code::invalid_argument);
      EXPECT_NE(status.message().find("size 2"), std::string_view::npos) << status.str();
      EXPECT_EQ(me.recv(view(bytes), wrong, 0, soon()).status().code(), Code::invalid_argument);
      EXPECT_EQ(me.isend(view(bytes), wrong).status().code(), Code::invalid_argument);
      EXPECT_EQ(me.irecv(view(bytes), wrong).status().code(), Code::invalid_argument);
      EXPECT_EQ(me.notify(wrong, 1).code(), Code::invalid_argument);
      EXPECT_EQ(me.wait_notify(wrong, 1, 1, soon()).code(), Code::invalid_argument);
      EXPECT_EQ(me.fence(wrong).code(), Code::invalid_argument);
      EXPECT_EQ(me.path(wrong).status().code(), Code::invalid_argument);
      EXPECT_EQ(world.peer(wrong).status().code(), Code::invalid_argument);
    }
    EXPECT_EQ(me.send(view(bytes), any_source, 0, soon()).code(), Code::invalid_argument);
    EXPECT_EQ(me.isend(view(bytes), 0, -5).status().code(), Code::invalid_argument);
    EXPECT_EQ(me.put({}, {}).status().code(), Code::invalid_argument);
    EXPECT_EQ(me.put_blocks({}).status().code(), Code::invalid_argument);
    EXPECT_EQ(Member().send(view(bytes), 0).code(), Code::invalid_argument);
    EXPECT_EQ(Communicator().barrier().code(), Code::invalid_argument);
    HMC_EXPECT_OK(world.barrier(soon()));
    HMC_EXPECT_OK(world.close(soon()));
    EXPECT_EQ(me.send(view(bytes), 0).code(), Code::closed);
    EXPECT_EQ(me.recv(view(bytes), 0).status().code(), Code::closed);
    EXPECT_EQ(world.buffer(8).status().code(), Code::closed);
    EXPECT_EQ(me.exchange_bytes({}).status().code(), Code::closed);
  });
}

}  // namespace
}  // namespace hmc
