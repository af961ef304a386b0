// What is posted behind a fence waits for the one-sided operations before it: by every call of a Member or Communicator.
#include <cstdlib>
#include <functional>

#include "collective/job.h"

namespace hmc {
namespace {

using testing::first_mismatch;
using testing::Process;
using testing::run_job;
using testing::soon;

// Transports of one host, and shm without ptrace.
class GroupFences : public ::testing::TestWithParam<std::string> {
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
INSTANTIATE_TEST_SUITE_P(Ways, GroupFences, ::testing::Values("shm", "ring", "tcp"), [](const auto& p) { return p.param; });

std::byte* bytes_of(const ConnBuffer& buffer) { return static_cast<std::byte*>(buffer.memory().data()); }
std::span<std::byte> span_of(const ConnBuffer& buffer) { return {bytes_of(buffer), buffer.size()}; }

// One way to say that the put is there. Every rank calls `run`, and the target looks at its memory afterwards.
struct Door {
  const char* name;
  bool collective;  // else between rank 0 and the target only
  std::function<void(std::uint64_t round)> run;
};

// Rank 0 puts to each rank in turn: in a collective the last one may learn of rank 0's part through others only.
TEST_P(GroupFences, EveryCallWaitsForThePut) {
  run_job(4, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    const std::size_t size = testing::large(4 << 20), small = 4096;
    const auto source = *world.buffer(size), target = *world.buffer(size), flag = *world.buffer(small);
    const auto remotes = *me.exchange(target, soon()), flags = *me.exchange(flag, soon());
    const auto ranks = static_cast<std::size_t>(world.size());
    std::vector<Work> works;
    const auto keep = [&works](const Result<Work>& work) {
      ASSERT_TRUE(work.ok()) << work.status().str();
      works.push_back(*work);
    };
    std::vector<std::byte> out(ranks * 80'000), in(ranks * 80'000), message(300'000), got(300'000);
    std::vector<std::uint64_t> counts(ranks), displacements(ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
      counts[r] = 700;
      displacements[r] = r * 800;
    }
    const Member::Layout layout{counts, displacements};
    int to = 0;
    const bool puts = me.rank() == 0;
    const auto one_way = [&](const std::function<void(std::int64_t)>& say, std::size_t bytes) {
      return [&, say, bytes](std::uint64_t round) {
        const auto tag = static_cast<std::int64_t>(round);
        if (puts) say(tag);
        if (me.rank() == to) {
          HMC_ASSERT_OK(me.recv({got.data(), bytes}, 0, tag, soon()).status());
        }
      };
    };
    const auto notified = [&](const std::function<void(std::uint64_t)>& say) {
      return [&, say](std::uint64_t round) {
        if (puts) say(round);
        if (me.rank() == to) {
          HMC_ASSERT_OK(me.wait_notify(0, round, 1, soon()));
        }
      };
    };
    const std::vector<std::uint64_t> offsets{0, 2048};
    const auto all_to_all = [&](std::size_t block) {
      return [&, block](std::uint64_t) {
        HMC_ASSERT_OK(me.all_to_all({out.data(), ranks * block}, {in.data(), ranks * block}, soon()));
      };
    };
    const std::vector<Door> doors{
        {"send", false, one_way([&](std::int64_t tag) { HMC_ASSERT_OK(me.send({message.data(), 8}, to, tag, soon())); }, 8)},
        {"isend", false, one_way([&](std::int64_t tag) { keep(me.isend({message.data(), 8}, to, tag)); }, 8)},
        {"large isend", false,
         one_way([&](std::int64_t tag) { keep(me.isend({message.data(), message.size()}, to, tag)); }, message.size())},
        {"notify", false, notified([&](std::uint64_t id) { HMC_ASSERT_OK(me.notify(to, id)); })},
        {"put", false,
         notified([&](std::uint64_t id) { keep(me.put(flag, flags[static_cast<std::size_t>(to)], {.notify = id})); })},
        {"put_blocks", false, notified([&](std::uint64_t id) {
           const BlockPair pair{flag, flags[static_cast<std::size_t>(to)], offsets, offsets};
           keep(me.put_blocks(*me.prepare_blocks({&pair, 1}, 1024), {.notify = id}));
         })},
        {"barrier", true, [&](std::uint64_t) { HMC_ASSERT_OK(me.barrier(soon())); }},
        {"barrier of all local Members", true, [&](std::uint64_t) { HMC_ASSERT_OK(world.barrier(soon())); }},
        {"all_to_all", true, all_to_all(8)},
        {"large all_to_all", true, all_to_all(80'000)},
        {"iall_to_all", true,
         [&](std::uint64_t) {
           const auto work = me.iall_to_all({out.data(), ranks * 8}, {in.data(), ranks * 8});
           ASSERT_TRUE(work.ok()) << work.status().str();
           HMC_ASSERT_OK(work->wait(soon()));
         }},
        {"all_to_all_v", true,
         [&](std::uint64_t) {
           HMC_ASSERT_OK(me.all_to_all_v({out.data(), out.size()}, layout, {in.data(), in.size()}, layout, soon()));
         }},
        {"exchange_bytes", true,
         [&](std::uint64_t) { HMC_ASSERT_OK(me.exchange_bytes(std::span(message).first(9), soon()).status()); }},
    };
    std::uint64_t round = 0;
    for (const Door& door : doors) {
      for (to = 1; to < world.size(); ++to) {
        SCOPED_TRACE(std::string(door.name) + " to rank " + std::to_string(to));
        ++round;
        if (puts) {
          testing::fill_pattern(span_of(source), round);
          keep(me.put(source, remotes[static_cast<std::size_t>(to)], {{}, round % 2 == 0 ? Complete::local : Complete::remote}));
          HMC_ASSERT_OK(me.fence(to));
        }
        door.run(round);
        if (me.rank() == to) {
          EXPECT_EQ(first_mismatch(span_of(target), round), -1);
        }
        HMC_ASSERT_OK(wait_all(works, soon()));
        works.clear();
        HMC_ASSERT_OK(me.barrier(soon()));
        ASSERT_FALSE(::testing::Test::HasFailure());
      }
    }
  });
}

TEST_P(GroupFences, SeveralLocalMembers) {
  run_job(2, [](const Process& process) {
    InitOptions options = process.options();
    options.devices = {Device::cpu(), Device::cpu()};
    const Communicator world = process.init(options);
    const Member first = world.local()[0], second = world.local()[1];
    const std::size_t size = testing::large(4 << 20);
    const auto source = *world.buffer(size), one = *world.buffer(size), two = *world.buffer(size);
    const MemberBuffer mine[] = {{first, one}, {second, two}};
    const auto remotes = *world.exchange(mine, soon());
    ASSERT_EQ(remotes.size(), 4U);
    for (std::uint64_t round = 1; round < 6; ++round) {
      testing::fill_pattern(span_of(source), round);
      // Ranks 0 and 1 are of one process, 2 and 3 of the other: within a process too.
      for (const int to : {2, 3, 1}) {
        const Member from = to == 1 ? first : second;
        std::uint64_t word = round;
        if (process.rank == 0) {
          const auto put = *from.put(source, remotes[static_cast<std::size_t>(to)]);
          HMC_ASSERT_OK(from.fence(to));
          const auto sent = from.isend({&word, sizeof word}, to, 4);
          ASSERT_TRUE(sent.ok()) << sent.status().str();
          if (to == 1) {
            HMC_ASSERT_OK(second.recv({&word, sizeof word}, 0, 4, soon()).status());
          }
          if (to == 1) {
            EXPECT_EQ(first_mismatch(span_of(two), round), -1);
          }
          HMC_ASSERT_OK(sent->wait(soon()));
          HMC_ASSERT_OK(put.wait(soon()));
        } else if (to != 1) {
          HMC_ASSERT_OK(world.local()[static_cast<std::size_t>(to - 2)].recv({&word, sizeof word}, 1, 4, soon()).status());
          EXPECT_EQ(first_mismatch(span_of(to == 2 ? one : two), round), -1) << "rank " << to;
        }
      }
      HMC_ASSERT_OK(world.barrier(soon()));
    }
  });
}

}  // namespace
}  // namespace hmc
