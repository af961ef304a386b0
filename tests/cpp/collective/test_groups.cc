// Split groups, and several Members in one process.
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

Result<Communicator> split(const Communicator& from, int color, int key) {
  const std::vector<int> colors(from.local().size(), color), keys(from.local().size(), key);
  return from.split(colors, keys, soon());
}

TEST(Split, ByColorRankedByKey) {
  run_job(5, [](const Process& process) {
    const Communicator world = process.init();
    const auto half = split(world, process.rank % 2, -process.rank);  // reversed
    ASSERT_TRUE(half.ok()) << half.status().str();
    const int size = process.rank % 2 == 0 ? 3 : 2;
    ASSERT_EQ(half->size(), size);
    const Member me = *half->self();
    EXPECT_EQ(me.rank(), size - 1 - process.rank / 2);
    Bytes in, out(static_cast<std::size_t>(size) * 10);
    for (int to = 0; to < size; ++to) {
      const auto block = pattern(10, static_cast<std::uint64_t>(process.rank % 2 * 100 + me.rank() * 10 + to));
      in.insert(in.end(), block.begin(), block.end());
    }
    HMC_ASSERT_OK(me.all_to_all(view(out), view(in), soon()));
    for (int from = 0; from < size; ++from) {
      EXPECT_EQ(first_mismatch(std::span(out).subspan(static_cast<std::size_t>(from) * 10, 10),
                               static_cast<std::uint64_t>(process.rank % 2 * 100 + from * 10 + me.rank())),
                -1);
    }
    // Same processes, same tag, three groups: messages stay in theirs.
    const auto again = split(*half, 0, 0);
    ASSERT_TRUE(again.ok()) << again.status().str();
    EXPECT_EQ(again->self()->rank(), me.rank());
    if (me.rank() == 1) {
      Bytes a = pattern(20, 1), b = pattern(20, 2);
      HMC_ASSERT_OK(me.send(view(a), 0, 5, soon()));
      HMC_ASSERT_OK(again->self()->send(view(b), 0, 5, soon()));
    } else if (me.rank() == 0) {
      Bytes bytes(20);
      HMC_ASSERT_OK(again->self()->recv(view(bytes), any_source, any_tag, soon()).status());
      EXPECT_EQ(first_mismatch(bytes, 2), -1);
      HMC_ASSERT_OK(me.recv(view(bytes), 1, 5, soon()).status());
      EXPECT_EQ(first_mismatch(bytes, 1), -1);
    }
    HMC_EXPECT_OK(again->barrier(soon()));
    HMC_EXPECT_OK(again->close());
    EXPECT_EQ(again->barrier(soon()).code(), Code::closed);
    HMC_EXPECT_OK(half->barrier(soon()));
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(Split, NegativeColorJoinsNone) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    const auto group = split(world, process.rank == 1 ? -1 : 4, 0);
    ASSERT_TRUE(group.ok()) << group.status().str();
    EXPECT_EQ(group->valid(), process.rank != 1);
    EXPECT_EQ(group->size(), process.rank == 1 ? 0 : 2);
    EXPECT_EQ(group->barrier(soon()).code(), process.rank == 1 ? Code::invalid_argument : Code::ok);
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(Split, ManyAtOnceFromSeveralThreads) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    std::vector<Communicator> parents;
    for (int i = 0; i < 4; ++i) parents.push_back(*split(world, 0, process.rank));
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < parents.size(); ++i) {
      threads.emplace_back([&, i] {
        for (int round = 0; round < 3; ++round) {
          const auto child = split(parents[i], process.rank == 2 ? 1 : 0, process.rank);
          ASSERT_TRUE(child.ok()) << child.status().str();
          const int size = process.rank == 2 ? 1 : 2;
          ASSERT_EQ(child->size(), size);
          const Member me = *child->self();
          const auto all = me.exchange_bytes(pattern(9, i * 10 + static_cast<std::uint64_t>(me.rank())), soon());
          ASSERT_TRUE(all.ok()) << all.status().str();
          for (std::size_t r = 0; r < all->size(); ++r) EXPECT_EQ(first_mismatch((*all)[r], i * 10 + r), -1);
        }
      });
    }
    for (auto& thread : threads) thread.join();
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(Subgroup, IsMadeByItsMembersAlone) {
  run_job(4, [](const Process& process) {
    const Communicator world = process.init();
    if (process.rank != 2) {  // takes no part
      const std::vector<int> ranks{3, 0, 1};
      const auto group = world.subgroup(ranks, 77);
      ASSERT_TRUE(group.ok()) << group.status().str();
      ASSERT_EQ(group->size(), 3);
      const Member me = *group->self();
      EXPECT_EQ(ranks[static_cast<std::size_t>(me.rank())], process.rank);
      EXPECT_EQ(world.subgroup(ranks, 77).status().code(), Code::invalid_argument);
      const auto other = world.subgroup(ranks, 78);
      ASSERT_TRUE(other.ok()) << other.status().str();
      process.board[0].fetch_add(1);
      ASSERT_TRUE(process.board.wait(0, 3));
      for (int round = 0; round < 3; ++round) {
        for (const Communicator& one : {*group, *other}) {
          const std::uint64_t seed = one.state() == group->state() ? 1 : 2;
          const auto all = one.self()->exchange_bytes(pattern(9, seed * 10 + static_cast<std::uint64_t>(me.rank())), soon());
          ASSERT_TRUE(all.ok()) << all.status().str();
          for (std::size_t r = 0; r < all->size(); ++r) EXPECT_EQ(first_mismatch((*all)[r], seed * 10 + r), -1);
        }
      }
      // A group of a group.
      if (me.rank() != 1) {
        const auto pair = group->subgroup(std::vector<int>{0, 2}, 79);
        ASSERT_TRUE(pair.ok()) << pair.status().str();
        EXPECT_EQ(group->old_ranks(), ranks);
        EXPECT_EQ(pair->old_ranks(), (std::vector<int>{0, 2}));
        process.board[1].fetch_add(1);
        ASSERT_TRUE(process.board.wait(1, 2));
        HMC_EXPECT_OK(pair->barrier(soon()));
      }
      HMC_EXPECT_OK(group->barrier(soon()));
      HMC_EXPECT_OK(group->close());
      EXPECT_EQ(group->barrier(soon()).code(), Code::closed);
      EXPECT_EQ(group->subgroup(ranks, 80).status().code(), Code::closed);
      HMC_EXPECT_OK(other->barrier(soon()));
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(Subgroup, WrongArguments) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const auto code = [&](std::vector<int> ranks, std::uint32_t number) { return world.subgroup(ranks, number).status().code(); };
    for (const std::vector<int>& ranks : {std::vector<int>{}, {0, 2}, {-1, 0}, {0, 1, 0}, {1 - process.rank}})
      EXPECT_EQ(code(ranks, 5), Code::invalid_argument);
    for (const std::uint32_t number : {0U, 1U, 0x80000000U, 0xffffffffU}) EXPECT_EQ(code({0, 1}, number), Code::invalid_argument);
    EXPECT_EQ(Communicator().subgroup(std::vector<int>{0}, 5).status().code(), Code::invalid_argument);
    const auto alone = world.subgroup(std::vector<int>{process.rank}, 5);
    ASSERT_TRUE(alone.ok()) << alone.status().str();
    HMC_EXPECT_OK(alone->barrier(soon()));
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(Split, WrongArguments) {
  run_job(1, [](const Process& process) {
    const Communicator world = process.init();
    const std::vector<int> none, one{0}, two{0, 0};
    EXPECT_EQ(world.split(none, one, soon()).status().code(), Code::invalid_argument);
    EXPECT_EQ(world.split(two, two, soon()).status().code(), Code::invalid_argument);
    EXPECT_EQ(Communicator().split(one, one, soon()).status().code(), Code::invalid_argument);
    EXPECT_TRUE(world.split(one, one, soon()).ok());
  });
}

Communicator two_members(const Process& process) {
  InitOptions options = process.options();
  options.devices = {Device::cpu(), Device::cpu()};
  return process.init(options);
}

TEST(Members, SeveralInOneProcess) {
  run_job(2, [](const Process& process) {
    const Communicator world = two_members(process);
    ASSERT_EQ(world.size(), 4);
    ASSERT_EQ(world.local().size(), 2U);
    EXPECT_EQ(world.local()[0].rank(), 2 * process.rank);
    EXPECT_EQ(world.local()[1].rank(), 2 * process.rank + 1);
    EXPECT_EQ(world.self().status().code(), Code::invalid_argument);
    EXPECT_TRUE(world.device(3).is_cpu());
    HMC_ASSERT_OK(world.barrier(soon()));
    for (const std::size_t block : {0U, 1U, 100U, 70000U, 2000001U}) {
      std::vector<Bytes> ins(2), outs(2, Bytes(4 * block));
      std::vector<MemberBuffers> shares;
      for (std::size_t i = 0; i < 2; ++i) {
        const auto rank = static_cast<std::uint64_t>(world.local()[i].rank());
        for (std::uint64_t to = 0; to < 4; ++to) {
          const auto bytes = pattern(block, rank * 10 + to);
          ins[i].insert(ins[i].end(), bytes.begin(), bytes.end());
        }
        shares.push_back({world.local()[i], view(outs[i]), view(ins[i])});
      }
      HMC_ASSERT_OK(world.all_to_all(shares, soon()));
      for (std::size_t i = 0; i < 2; ++i) {
        for (std::uint64_t from = 0; from < 4; ++from) {
          ASSERT_EQ(first_mismatch(std::span(outs[i]).subspan(from * block, block),
                                   from * 10 + static_cast<std::uint64_t>(world.local()[i].rank())),
                    -1);
        }
      }
      shares.pop_back();
      EXPECT_EQ(world.all_to_all(shares, soon()).code(), Code::invalid_argument);
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(Members, ExchangeAndUnevenAllToAllInOneCall) {
  run_job(2, [](const Process& process) {
    const Communicator world = two_members(process);
    std::vector<MemberBuffer> buffers;
    std::vector<MemberBytes> said;
    std::vector<Bytes> texts;
    for (const Member& member : world.local()) {
      buffers.push_back({member, *member.buffer(3000)});
      texts.push_back(pattern(100, static_cast<std::uint64_t>(member.rank())));
    }
    for (std::size_t i = 0; i < 2; ++i) said.push_back({world.local()[i], texts[i]});
    const auto remotes = world.exchange(buffers, soon());
    ASSERT_TRUE(remotes.ok()) << remotes.status().str();
    const auto heard = world.exchange_bytes(said, soon());
    ASSERT_TRUE(heard.ok()) << heard.status().str();
    ASSERT_EQ(remotes->size(), 4U);
    for (std::size_t r = 0; r < 4; ++r) EXPECT_EQ(first_mismatch((*heard)[r], r), -1);
    // A third Member's worth of entries, one twice, none: refused before anything is sent.
    buffers.push_back(buffers.front());
    EXPECT_EQ(world.exchange(buffers, soon()).status().code(), Code::invalid_argument);
    buffers.erase(buffers.begin());
    EXPECT_TRUE(world.exchange(buffers, soon()).ok());
    EXPECT_EQ(world.exchange({}, soon()).status().code(), Code::invalid_argument);

    const auto count = [](std::size_t from, std::size_t to) { return std::uint64_t{(from * 5 + to * 3) % 4 * 1001}; };
    std::vector<std::vector<std::uint64_t>> counts, places;
    std::vector<Bytes> memory;
    for (const Member& member : world.local()) {
      const auto me = static_cast<std::size_t>(member.rank());
      for (const bool out : {true, false}) {
        auto& bytes = memory.emplace_back();
        auto& mine = counts.emplace_back();
        auto& at = places.emplace_back();
        for (std::size_t r = 0; r < 4; ++r) {
          mine.push_back(out ? count(r, me) : count(me, r));
          at.push_back(bytes.size() + 7);
          bytes.resize(at.back() + mine.back());
          if (!out) testing::fill_pattern(std::span(bytes).subspan(at.back(), mine.back()), me * 10 + r);
        }
      }
    }
    std::vector<MemberBuffersV> shares;
    for (std::size_t i = 0; i < 2; ++i) {
      shares.push_back({world.local()[i],
                        view(memory[2 * i]),
                        {counts[2 * i], places[2 * i]},
                        view(memory[2 * i + 1]),
                        {counts[2 * i + 1], places[2 * i + 1]}});
    }
    HMC_ASSERT_OK(world.all_to_all_v(shares, soon()));
    for (std::size_t i = 0; i < 2; ++i) {
      const auto me = static_cast<std::size_t>(world.local()[i].rank());
      for (std::size_t r = 0; r < 4; ++r) {
        EXPECT_EQ(first_mismatch(std::span(memory[2 * i]).subspan(places[2 * i][r], count(r, me)), r * 10 + me), -1);
      }
    }
    const auto short_layout = std::span(counts[0]).first(3);
    shares[1].out_layout = {short_layout, short_layout};
    EXPECT_EQ(world.all_to_all_v(shares, soon()).code(), Code::invalid_argument);  // and the first share was not begun:
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(Members, BroughtByATopology) {
  const auto topology = Topology::parse(
      "hmc-topology 1\nhost a\ncard one host=a process=1\ncard zero host=a process=0 memory=77\ncard uno host=a process=1\n"
      "link zero uno kind=string bandwidth=5\n");
  ASSERT_TRUE(topology.ok()) << topology.status().str();
  run_job(2, [&](const Process& process) {
    InitOptions options = process.options();
    options.topology = *topology;
    const Communicator world = process.init(options);
    ASSERT_EQ(world.size(), 3);
    EXPECT_EQ(world.local().size(), process.rank == 0 ? 1U : 2U);
    const auto found = world.topology(soon());
    ASSERT_TRUE(found.ok()) << found.status().str();
    ASSERT_EQ(found->members().size(), 3U);
    EXPECT_EQ(found->members()[0]->name, "zero");
    EXPECT_EQ(found->members()[0]->memory_bytes, 77U);
    EXPECT_EQ(found->members()[2]->name, "uno");
    EXPECT_FALSE(found->members()[2]->model.empty());
    ASSERT_NE(found->link("uno", "zero"), nullptr);
    EXPECT_EQ(found->hosts, std::vector<std::string>{"a"});
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(Members, MessagesWithinAndBetweenProcesses) {
  run_job(2, [](const Process& process) {
    const Communicator world = two_members(process);
    std::vector<Work> works;
    std::vector<Bytes> sent, received(8, Bytes(5000));
    sent.reserve(8);
    for (std::size_t i = 0; i < 2; ++i) {
      const Member& me = world.local()[i];
      for (int other = 0; other < 4; ++other) {
        sent.push_back(pattern(5000, static_cast<std::uint64_t>(me.rank() * 10 + other)));
        works.push_back(*me.irecv(view(received[i * 4 + static_cast<std::size_t>(other)]), other, 3));
        works.push_back(*me.isend(view(sent.back()), other, 3));
      }
    }
    HMC_ASSERT_OK(wait_all(works, soon()));
    for (std::size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(first_mismatch(received[i], i % 4 * 10 + static_cast<std::uint64_t>(world.local()[i / 4].rank())), -1);
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

// A notification goes to the Member whose buffer was written, not to its neighbour in the same process.
TEST(Members, ExchangeAndNotifyReachTheRightMember) {
  run_job(2, [](const Process& process) {
    const Communicator world = two_members(process);
    std::vector<ConnBuffer> buffers{*world.buffer(64), *world.buffer(64)};
    std::vector<std::vector<RemoteBuffer>> remotes(2);
    std::vector<std::thread> threads;  // a collective of each Member, from a thread of its own
    for (std::size_t i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] {
        auto all = world.local()[i].exchange(buffers[i], soon());
        ASSERT_TRUE(all.ok()) << all.status().str();
        remotes[i] = *all;
      });
    }
    for (auto& thread : threads) thread.join();
    ASSERT_EQ(remotes[0].size(), 4U);
    const auto source = *world.buffer(64);
    for (std::size_t to = 0; to < 4; ++to) {
      HMC_ASSERT_OK(world.local()[0].put(source, remotes[0][to], {.notify = 100 + to, .complete = Complete::remote})->wait(soon()));
    }
    for (std::size_t i = 0; i < 2; ++i) {
      const Member& me = world.local()[i];
      for (const int from : {0, 2}) {
        HMC_EXPECT_OK(me.wait_notify(from, 100 + static_cast<std::uint64_t>(me.rank()), 1, soon()));
        EXPECT_EQ(me.wait_notify(from, 100 + static_cast<std::uint64_t>(me.rank() ^ 1), 1, Deadline::after_seconds(0.02)).code(),
                  Code::timeout);
      }
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

// A collective that failed refuses an earlier one to a rank that had not called that yet. The refusal ends the earlier one on all
// ranks, those of the same process included.
TEST(Members, ARefusedCallEndsThatOfTheOtherMember) {
  run_job(1, [](const Process& process) {
    InitOptions options = process.options();
    options.devices.assign(2, Device::cpu());
    const Communicator world = process.init(options);
    const Member first = world.local()[0], second = world.local()[1];
    Bytes a(1 << 20), b(1 << 20), c(1 << 20);
    const Reduction reduction{DataType::u8, ReduceOp::bxor};
    const auto earlier = first.iall_reduce(view(a), view(a), reduction), later = first.iall_reduce(view(b), view(b), reduction);
    HMC_ASSERT_OK(earlier.status());
    HMC_ASSERT_OK(later.status());
    static_cast<void>(later->cancel());  // by messages it may end a little later
    EXPECT_EQ(later->wait(soon()).code(), Code::cancelled);
    EXPECT_FALSE(earlier->done());
    EXPECT_EQ(second.all_reduce(view(c), view(c), reduction, soon()).code(), Code::cancelled);
    const Status ended = earlier->wait(soon());
    EXPECT_EQ(ended.code(), Code::cancelled) << ended.str();
    EXPECT_NE(ended.message().find("rank 1 ("), std::string::npos) << ended.str();
  });
}

TEST(Members, SplitTakesAProcessToOneGroup) {
  run_job(2, [](const Process& process) {
    const Communicator world = two_members(process);
    const std::vector<int> first{7, -1}, keys{0, 0}, mixed{0, 1};
    const auto leaders = world.split(first, keys, soon());
    ASSERT_TRUE(leaders.ok()) << leaders.status().str();
    EXPECT_EQ(leaders->size(), 2);
    EXPECT_EQ(leaders->self()->rank(), process.rank);
    HMC_EXPECT_OK(leaders->barrier(soon()));
    EXPECT_EQ(world.split(mixed, keys, soon()).status().code(), Code::invalid_argument);
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

}  // namespace
}  // namespace hmc
