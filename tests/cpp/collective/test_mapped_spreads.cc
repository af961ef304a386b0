// all_gather, broadcast and all_to_all by one kernel over mapped device memory, and calls that follow one another without a wait,
// on simulated devices.
#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <set>

#include "collective/fused/one_shot.h"
#include "collective/mapped/calls.h"
#include "collective/on_devices.h"

namespace hmc {
namespace {

using testing::Bytes;
using testing::Devices;
using testing::on_devices;
using testing::OnDevice;
using testing::soon;

const Reduction sum{DataType::i32, ReduceOp::sum};
constexpr std::size_t page = 4096;

std::uint64_t calls_by_kernel(const Communicator& world) { return world.context().counters()["mapped.count"]; }

Bytes given_by_rank(std::size_t rank, std::size_t bytes, std::size_t salt) {
  Bytes made(bytes);
  testing::fill_pattern(made, rank * 97 + salt);
  return made;
}

void on_four(const Devices& devices, const std::function<void(const Member&, const Communicator&)>& body) {
  setenv("HMC_SIM_DEVICES", "4", 1);
  on_devices(devices, [&](const Member& me, const Communicator& world) {
    testing::wait_until_mapped(me.device(), {DataType::u8, DataType::u16, DataType::u32, DataType::u64, DataType::i32});
    HMC_ASSERT_OK(world.barrier(soon()));
    body(me, world);
  });
}

void check_all_gather(const Member& me, std::size_t block, std::size_t offset, bool in_place) {
  const auto ranks = static_cast<std::size_t>(me.size()), rank = static_cast<std::size_t>(me.rank());
  Bytes right;
  for (std::size_t r = 0; r < ranks; ++r) {
    const Bytes one = given_by_rank(r, block, block);
    right.insert(right.end(), one.begin(), one.end());
  }
  Bytes before(right.size(), std::byte{0x33});
  const Bytes mine = given_by_rank(rank, block, block);
  std::copy(mine.begin(), mine.end(), before.begin() + static_cast<std::ptrdiff_t>(rank * block));
  const OnDevice in(me.device(), mine, offset), out(me.device(), before, offset);
  MemoryView own = out.view();
  own.data = static_cast<std::byte*>(own.data) + rank * block;
  own.bytes = block;
  HMC_ASSERT_OK(me.all_gather(out.view(), in_place ? own : in.view(), soon()));
  ASSERT_TRUE(out.read() == right) << "all_gather of " << block;
  ASSERT_TRUE(in.read() == mine && in.guarded() && out.guarded());
}

void check_broadcast(const Member& me, int root, std::size_t bytes, std::size_t offset) {
  const Bytes right = given_by_rank(static_cast<std::size_t>(root), bytes, bytes);
  const OnDevice memory(me.device(), me.rank() == root ? right : Bytes(bytes, std::byte{0x44}), offset);
  HMC_ASSERT_OK(me.broadcast(memory.view(), root, soon()));
  ASSERT_TRUE(memory.read() == right) << "broadcast of " << bytes << " by " << root;
  ASSERT_TRUE(memory.guarded());
}

void check_all_to_all(const Member& me, std::size_t block, std::size_t offset) {
  const auto ranks = static_cast<std::size_t>(me.size()), rank = static_cast<std::size_t>(me.rank());
  const Bytes mine = given_by_rank(rank, ranks * block, block);
  Bytes right;
  for (std::size_t r = 0; r < ranks; ++r) {
    const Bytes theirs = given_by_rank(r, ranks * block, block);
    const auto begin = theirs.begin() + static_cast<std::ptrdiff_t>(rank * block);
    right.insert(right.end(), begin, begin + static_cast<std::ptrdiff_t>(block));
  }
  const OnDevice in(me.device(), mine, offset), out(me.device(), Bytes(ranks * block), offset);
  HMC_ASSERT_OK(me.all_to_all(out.view(), in.view(), soon()));
  ASSERT_TRUE(out.read() == right) << "all_to_all of " << block;
  ASSERT_TRUE(in.read() == mine && in.guarded() && out.guarded());
}

// Through cells, in one step, in several; of every alignment that has a kernel of its own.
TEST(MappedSpreads, EveryPath) {
  const Devices two{"cuda:0", "cuda:1"}, three{"rocm:2", "rocm:0", "rocm:3"}, four{"cuda:3", "cuda:1", "cuda:0", "cuda:2"};
  for (const Devices& devices : testing::swept({two, three, four}, {three})) {
    on_four(devices, [](const Member& me, const Communicator& world) {
      const std::uint64_t before = calls_by_kernel(world);
      std::uint64_t calls = 0;
      for (const std::size_t bytes : testing::swept<std::size_t>({0, 1, 24, page - 1, page + 1, 88'004, 700'002, 5'000'008},
                                                                 {1, page + 1, 88'004, 3'200'008})) {
        check_all_gather(me, bytes, 0, false);
        check_all_gather(me, bytes, bytes % 3, true);
        check_all_to_all(me, bytes, bytes % 2);
        check_broadcast(me, static_cast<int>(bytes) % me.size(), bytes, bytes % 5);
        calls += 4;
      }
      EXPECT_EQ(calls_by_kernel(world), before + calls);
    });
  }
}

TEST(MappedSpreads, UnevenBlocks) {
  on_four({"cuda:0", "cuda:2", "cuda:1"}, [](const Member& me, const Communicator& world) {
    const std::vector<std::uint64_t> counts{70'001, 0, 900'000}, displacements{900'003, 5, 1};
    const auto rank = static_cast<std::size_t>(me.rank());
    const std::size_t whole = 970'010;
    const std::uint64_t before = calls_by_kernel(world);
    Bytes right(whole, std::byte{0x21});
    for (std::size_t r = 0; r < 3; ++r) {
      const Bytes one = given_by_rank(r, counts[r], 3);
      std::copy(one.begin(), one.end(), right.begin() + static_cast<std::ptrdiff_t>(displacements[r]));
    }
    const OnDevice in(me.device(), given_by_rank(rank, counts[rank], 3)), out(me.device(), Bytes(whole, std::byte{0x21}));
    HMC_ASSERT_OK(me.all_gather_v(out.view(), {counts, displacements}, in.view(), soon()));
    ASSERT_TRUE(out.read() == right);
    ASSERT_TRUE(out.guarded());
    EXPECT_EQ(calls_by_kernel(world), before + 1);
  });
}

// A part for each rank that receives, in which nothing is twice.
TEST(MappedSpreads, PartsOfABroadcastCoverItOnce) {
  for (const std::uint32_t ranks : {3U, 4U, 8U}) {
    for (const std::uint64_t bytes : {mapped::most_whole_bytes(ranks) + 1, std::uint64_t{5'000'003}}) {
      for (std::uint32_t root = 0; root < ranks; ++root) {
        const auto way = [&](std::uint32_t rank) { return fused::way_of_broadcast(rank, root, bytes, Algorithm::chosen); };
        const ExchangeCall gives = mapped::spread(root, ranks, *way(root).spread);
        std::uint64_t end = 0;
        for (std::uint32_t r = 0; r < ranks; ++r) {
          const ExchangeCall call = mapped::spread(r, ranks, *way(r).spread);
          EXPECT_EQ(call.shape.steps, gives.shape.steps);
          EXPECT_EQ(call.reduced.collectors, gives.reduced.collectors);
          if (r == root) continue;
          EXPECT_EQ(gives.gives[r].offset, end);
          EXPECT_EQ(call.reduced.own.offset, end);
          EXPECT_EQ(call.reduced.own.bytes, gives.gives[r].bytes);
          std::uint64_t taken = call.reduced.own.bytes;
          for (const ExchangePart& part : call.takes) taken += part.bytes;
          EXPECT_EQ(taken, bytes);
          EXPECT_GE(call.shape.steps * call.shape.blocks * call.shape.chunk, call.reduced.own.bytes);
          end += call.reduced.own.bytes;
        }
        EXPECT_EQ(end, bytes);
      }
    }
  }
}

TEST(MappedSpreads, LongBlocksOfTwoRanksGoByMessagesUnlessItIsNamed) {
  on_four({"cuda:0", "cuda:1"}, [](const Member& me, const Communicator& world) {
    const std::size_t bytes = (std::size_t{32} << 20) + 8;
    const std::uint64_t before = calls_by_kernel(world);
    check_broadcast(me, 1, bytes, 0);
    EXPECT_EQ(calls_by_kernel(world), before);
    const Bytes right = given_by_rank(0, bytes, 1);
    const OnDevice memory(me.device(), me.rank() == 0 ? right : Bytes(bytes));
    HMC_ASSERT_OK(me.broadcast(memory.view(), 0, soon(), "one kernel over mapped memory"));
    ASSERT_TRUE(memory.read() == right);
    EXPECT_EQ(calls_by_kernel(world), before + 1);
  });
}

TEST(MappedSpreads, OneRankWithCpuMemoryMakesAllUseMessages) {
  on_four({"cuda:0", "cuda:1", "cuda:2"}, [](const Member& me, const Communicator& world) {
    const std::uint64_t before = calls_by_kernel(world);
    for (const std::size_t bytes : {std::size_t{100}, std::size_t{2'000'001}}) {
      const Bytes right = given_by_rank(1, bytes, 9);
      Bytes host = me.rank() == 1 ? right : Bytes(bytes);
      const OnDevice memory(me.device(), host);
      HMC_ASSERT_OK(me.broadcast(me.rank() == 2 ? testing::view(host) : memory.view(), 1, soon()));
      ASSERT_TRUE((me.rank() == 2 ? host : memory.read()) == right) << bytes;
    }
    EXPECT_EQ(calls_by_kernel(world), before);
    check_broadcast(me, 2, 1000, 0);
    EXPECT_EQ(calls_by_kernel(world), before + 1);
  });
}

// Small and large ones, of every kind, each behind the one whose result it takes.
TEST(MappedSpreads, CallsThatAreNotWaitedForKeepTheirOrder) {
  on_four({"cuda:1", "cuda:0", "cuda:3"}, [](const Member& me, const Communicator& world) {
    const auto rank = static_cast<std::uint32_t>(me.rank());
    for (const std::size_t count : testing::swept<std::size_t>({6, 300'000}, {6, 90'000})) {
      std::vector<std::uint32_t> start(count);
      std::iota(start.begin(), start.end(), 1000 * rank);
      Bytes bytes(count * 4);
      std::memcpy(bytes.data(), start.data(), bytes.size());
      const OnDevice a(me.device(), bytes), b(me.device(), Bytes(bytes.size()));
      const std::uint64_t before = calls_by_kernel(world);
      std::vector<Work> works;
      for (int turn = 0; turn < 12; ++turn) {
        works.push_back(*me.iall_reduce(b.view(), a.view(), sum));
        works.push_back(*me.iall_to_all(a.view(), b.view()));
        works.push_back(*me.ibroadcast(a.view(), turn % 3));
      }
      HMC_ASSERT_OK(wait_all(works, soon()));
      EXPECT_EQ(calls_by_kernel(world), before + works.size());
      // All ranks' arrays are alike after the first broadcast.
      std::vector<std::uint32_t> right(count);
      for (std::size_t i = 0; i < count; ++i) right[i] = static_cast<std::uint32_t>(3 * i + 3000);
      for (int turn = 0; turn < 12; ++turn) {
        if (turn > 0) {
          for (std::uint32_t& value : right) value *= 3;
        }
        const std::size_t block = count / 3, from = static_cast<std::size_t>(turn % 3) * block;
        const std::vector<std::uint32_t> given(right.begin() + static_cast<std::ptrdiff_t>(from),
                                               right.begin() + static_cast<std::ptrdiff_t>(from + block));
        for (std::size_t i = 0; i < count; ++i) right[i] = given[i % block];
      }
      Bytes wanted(count * 4);
      std::memcpy(wanted.data(), right.data(), wanted.size());
      ASSERT_TRUE(a.read() == wanted) << count;
    }
  });
}

// Calls of one step and of several, whose rounds lag by more, and through cells: a slot that one of them leaves is another one's
// next.
TEST(MappedSpreads, ShortAndLongCallsFollowOneAnother) {
  on_four({"cuda:1", "cuda:0", "cuda:3"}, [](const Member& me, const Communicator& world) {
    struct Call {
      OnDevice in, out;
      Bytes right;
    };
    const auto rank = static_cast<std::size_t>(me.rank());
    const std::uint64_t before = calls_by_kernel(world);
    std::vector<std::unique_ptr<Call>> calls;
    std::vector<Work> works;
    std::mt19937 random(17);
    for (std::size_t i = 0; i < (testing::slow() ? 8U : 24U); ++i) {
      const std::size_t count = std::array<std::size_t, 4>{6, 100'000, 800'000, 1'100'001}[random() % 4];  // elements of a block
      const bool reduces = random() % 2 == 0;
      Bytes right = reduces ? testing::expected(sum, 3 * count, 3) : Bytes();
      if (reduces) {
        const auto begin = right.begin() + static_cast<std::ptrdiff_t>(rank * count * 4);
        right = Bytes(begin, begin + static_cast<std::ptrdiff_t>(count * 4));
      }
      for (std::size_t r = 0; r < 3 && !reduces; ++r) {
        const Bytes one = given_by_rank(r, count * 4, i);
        right.insert(right.end(), one.begin(), one.end());
      }
      const Bytes given = reduces ? testing::input(DataType::i32, 3 * count, rank) : given_by_rank(rank, count * 4, i);
      calls.push_back(
          std::make_unique<Call>(Call{OnDevice(me.device(), given), OnDevice(me.device(), Bytes(right.size())), std::move(right)}));
      const Call& call = *calls.back();
      works.push_back(reduces ? *me.ireduce_scatter(call.out.view(), call.in.view(), sum)
                              : *me.iall_gather(call.out.view(), call.in.view()));
    }
    HMC_ASSERT_OK(wait_all(works, soon()));
    EXPECT_EQ(calls_by_kernel(world), before + works.size());
    for (std::size_t i = 0; i < calls.size(); ++i) ASSERT_TRUE(calls[i]->out.read() == calls[i]->right) << i;
  });
}

TEST(MappedSpreads, CpuMemoryIsRefusedWhereTheKernelIsNamed) {
  on_devices({"cpu", "cpu"}, [](const Member& me, const Communicator&) {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{8}, std::size_t{3'000'000}}) {
      Bytes memory(bytes), other(bytes);
      const auto named = [](const Status& status) { EXPECT_EQ(status.code(), Code::unsupported) << status.str(); };
      named(me.broadcast(testing::view(memory), 0, soon(), "one kernel over mapped memory"));
      named(me.all_to_all(testing::view(memory), testing::view(other), soon(), "one kernel over mapped memory"));
    }
  });
}

// A rank that looks late finds what the others have announced of a call that their devices carry out, whatever they have called
// since.
TEST(MappedSpreads, ARankThatLooksLateFindsTheCall) {
  testing::run_job(3, [](const testing::Process& process) {
    testing::simulate_vendors();
    setenv("HMC_SIM_DEVICES", "4", 1);
    InitOptions init = process.options();
    if (process.rank == 1) init.context.progress = Progress::manual;
    const Communicator world = process.init(init);
    ASSERT_TRUE(world.valid());
    const Member me = *world.self();
    const Device device = *Device::parse("cuda:" + std::to_string(process.rank));
    for (int round = 0; round < 3; ++round) {
      const auto rank = static_cast<std::size_t>(process.rank);
      const OnDevice memory(device, testing::input(DataType::i32, 500'000, rank));
      std::vector<Bytes> hosts(3, process.rank == 0 ? given_by_rank(0, 2'000'000, 7) : Bytes(2'000'000));
      HMC_ASSERT_OK(world.barrier(soon()));
      std::vector<Work> works{*me.iall_reduce(memory.view(), memory.view(), sum)};
      if (process.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      for (Bytes& host : hosts) works.push_back(*me.ibroadcast(testing::view(host), 0));
      HMC_ASSERT_OK(wait_all(works, soon()));
      ASSERT_TRUE(memory.read() == testing::expected(sum, 500'000, 3)) << round;
      for (const Bytes& host : hosts) ASSERT_TRUE(host == given_by_rank(0, 2'000'000, 7)) << round;
      EXPECT_EQ(calls_by_kernel(world), static_cast<std::uint64_t>(round + 1));
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

// An earlier call whose kernel waits for its stream: a later one that is cancelled, or a rank that dies, ends both. `held`: a
// stream of rank 0 that is busy for a while.
void while_a_call_waits(int ranks,
                        const std::function<void(const testing::Process&, const Member&, const Communicator&, StreamHandle)>& body,
                        std::set<int> killed = {}) {
  testing::JobOptions options;
  options.killed = std::move(killed);
  testing::run_job(
      ranks,
      [&](const testing::Process& process) {
        testing::simulate_vendors();
        setenv("HMC_SIM_DEVICES", "4", 1);
        InitOptions init = process.options();
        init.devices = {*Device::parse("rocm:" + std::to_string(process.rank))};
        const Communicator world = process.init(init);
        ASSERT_TRUE(world.valid());
        const Member me = *world.self();
        testing::wait_until_ready(me.device(), DataType::i32, static_cast<std::size_t>(ranks));
        testing::wait_until_mapped(me.device(), {DataType::i32});
        HMC_ASSERT_OK(world.barrier(soon()));
        testing::check_all_reduce(me, sum, 100, false, 0);
        body(process, me, world, process.rank == 0 ? testing::busy_stream(me.device(), HMC_SIM_ROCM) : no_stream);
        if (!options.killed.empty()) return;
        process.board[0].fetch_add(1);
        EXPECT_TRUE(process.board.wait(0, ranks));
      },
      options);
}

TEST(MappedSpreads, ACancelledCallDoesNotMakeAnEarlierOneEndWell) {
  for (const std::size_t count : {std::size_t{16}, std::size_t{500'000}}) {
    while_a_call_waits(2, [&](const testing::Process& process, const Member& me, const Communicator&, StreamHandle held) {
      const Bytes mine = testing::input(DataType::i32, count, static_cast<std::size_t>(me.rank()));
      const OnDevice first(me.device(), mine), second(me.device(), mine);
      MemoryView view = first.view();
      view.stream = held;
      const Work earlier = *me.iall_reduce(view, view, sum);
      const Result<Work> later = me.iall_reduce(second.view(), second.view(), sum);
      process.board[1].fetch_add(1);
      EXPECT_TRUE(process.board.wait(1, 2));  // a call that comes after the cancel is refused, the earlier one too
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (me.rank() == 0 && later.ok()) static_cast<void>(later->cancel());
      const Status status = earlier.wait(soon());
      if (status.ok()) {
        EXPECT_TRUE(first.read() == testing::expected(sum, count, 2)) << count;
      }
    });
  }
}

TEST(MappedSpreads, ADeadRankThatHadAnnouncedASmallCallIsNamed) {
  while_a_call_waits(2,
                     [](const testing::Process&, const Member& me, const Communicator& world, StreamHandle held) {
                       const OnDevice memory(me.device(), testing::input(DataType::i32, 16, static_cast<std::size_t>(me.rank())));
                       MemoryView view = memory.view();
                       if (me.rank() == 0) {
                         view.stream = held;
                         const Work work = *me.iall_reduce(view, view, sum);
                         std::this_thread::sleep_for(std::chrono::milliseconds(100));
                         testing::die();
                       }
                       const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
                       while (world.lost().empty() && std::chrono::steady_clock::now() < until)
                         std::this_thread::sleep_for(std::chrono::milliseconds(1));
                       const Status status = me.all_reduce(view, view, sum, soon());
                       EXPECT_EQ(status.code(), Code::peer_lost) << status.str();
                     },
                     {0});
}

TEST(MappedSpreads, WhatFollowsAnotherCallFailsWithIt) {
  on_devices(
      {"cuda:0", "cuda:1"},
      [](const Member& me, const Communicator&) {
        const OnDevice a(me.device(), Bytes(4000)), b(me.device(), Bytes(4000));
        std::vector<Work> works;
        for (int i = 0; i < 3; ++i) works.push_back(*me.iall_reduce(a.view(), a.view(), sum));
        works.push_back(me.rank() == 0 ? *me.iall_to_all(b.view(), a.view()) : *me.ibroadcast(a.view(), 0));
        const auto last = me.iall_reduce(a.view(), a.view(), sum);  // refused, if the other rank has found out meanwhile
        if (last.ok()) works.push_back(*last);
        static_cast<void>(wait_all(works, soon()));
        for (std::size_t i = 0; i < works.size(); ++i) {
          const Status status = works[i].wait(soon());
          if (i < 3) {
            HMC_EXPECT_OK(status);
          } else {
            EXPECT_EQ(status.code(), Code::invalid_argument) << i << ": " << status.str();
          }
        }
        if (!last.ok()) {
          EXPECT_EQ(last.status().code(), Code::closed) << last.status().str();
        }
      },
      "", true);
}

}  // namespace
}  // namespace hmc
