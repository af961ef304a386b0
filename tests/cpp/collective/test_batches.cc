// Batches: several collectives as one, small ones packed; what has no place in them. How they fail: test_batch_failures.cc.
#include <algorithm>
#include <array>
#include <iterator>

#include "collective/batch_data.h"

namespace hmc {
namespace {

using namespace testing;

Bytes part(const Bytes& all, int index, int parts) {
  const auto each = static_cast<std::ptrdiff_t>(all.size()) / parts;
  return {all.begin() + index * each, all.begin() + (index + 1) * each};
}

// One call of a batch: its buffers, and what it is to leave in `out`.
struct Call {
  Bytes in, out, wanted;
};

// Adds call `number`, of any kind and size. `bytes`: of a block.
Status add_call(const Member& me, std::size_t number, std::size_t bytes, Call& call) {
  const int ranks = me.size(), rank = me.rank(), root = static_cast<int>(number) % ranks;
  const auto size = static_cast<std::size_t>(ranks);
  const MemoryView nothing;
  switch (number % 7) {
    case 0:
    case 1:
      call = {input(bytes, rank, number), Bytes(bytes), xored_inputs(bytes, ranks, number)};
      return me.all_reduce(view(call.out), view(call.in), xored, soon());
    case 2:
      call = {input(bytes, rank, number), Bytes(bytes), rank == root ? xored_inputs(bytes, ranks, number) : Bytes(bytes)};
      return me.reduce(rank == root ? view(call.out) : nothing, view(call.in), root, xored, soon());
    case 3:
      call = {input(bytes * size, rank, number), Bytes(bytes), part(xored_inputs(bytes * size, ranks, number), rank, ranks)};
      return me.reduce_scatter(view(call.out), view(call.in), xored, soon());
    case 4:
      call = {input(bytes, rank, number), Bytes(bytes * size), {}};
      for (int r = 0; r < ranks; ++r) std::ranges::copy(input(bytes, r, number), std::back_inserter(call.wanted));
      return me.all_gather(view(call.out), view(call.in), soon());
    case 5:
      call = {{}, rank == root ? input(bytes, root, number) : Bytes(bytes), input(bytes, root, number)};
      return me.broadcast(view(call.out), root, soon());
    default:
      call = {input(bytes * size, rank, number), Bytes(bytes * size), {}};
      for (int r = 0; r < ranks; ++r)
        std::ranges::copy(part(input(bytes * size, r, number), rank, ranks), std::back_inserter(call.wanted));
      return me.all_to_all(view(call.out), view(call.in), soon());
  }
}

std::size_t size_of_call(std::size_t number) {
  constexpr std::array<std::size_t, 8> sizes{0, 1, 7, 64, 1025, 4096, 20'001, 100'003};
  return sizes[number * 5 % sizes.size()];
}

TEST(Batches, EveryCallOfEverySize) {
  for (const char* transports : {"", "tcp"}) {
    for (const int ranks : {1, 2, 3}) {
      run_job(ranks, [transports](const Process& process) {
        InitOptions options = process.options();
        options.context.transports = transports;
        const Communicator world = process.init(options);
        const Member me = *world.self();
        for (int round = 0; round < 3; ++round) {
          std::vector<Call> calls(56);
          auto batch = round == 1 ? world.batch() : me.batch();
          ASSERT_TRUE(batch.ok()) << batch.status().str();
          for (std::size_t i = 0; i < calls.size(); ++i) HMC_ASSERT_OK(add_call(me, i, size_of_call(i), calls[i]));
          EXPECT_EQ(batch->size(), calls.size());
          if (round == 2) {
            const auto work = batch->start();
            ASSERT_TRUE(work.ok()) << work.status().str();
            HMC_ASSERT_OK(work->wait(soon()));
          } else {
            HMC_ASSERT_OK(batch->run(soon()));
          }
          EXPECT_FALSE(batch->valid());
          for (std::size_t i = 0; i < calls.size(); ++i) ASSERT_EQ(calls[i].out, calls[i].wanted) << "call " << i;
        }
        HMC_EXPECT_OK(world.barrier(soon()));
      });
    }
  }
}

TEST(Batches, NothingMovesBeforeTheEnd) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    Bytes data = input(100, me.rank(), 0);
    const Bytes before = data;
    auto batch = me.batch();
    ASSERT_TRUE(batch.ok());
    HMC_ASSERT_OK(me.all_reduce(view(data), view(data), xored, soon()));
    EXPECT_EQ(data, before);
    batch->discard();
    EXPECT_FALSE(batch->valid());
    EXPECT_EQ(batch->run(soon()).code(), Code::invalid_argument);
    // As if it had not been.
    HMC_ASSERT_OK(me.all_reduce(view(data), view(data), xored, soon()));
    EXPECT_EQ(data, xored_inputs(100, 2, 0));
    auto empty = me.batch();
    ASSERT_TRUE(empty.ok());
    HMC_EXPECT_OK(empty->run(soon()));
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

// One exchange for all small calls of a kind.
TEST(Batches, SmallCallsGoTogether) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    const auto fused = [&] { return world.context().counters()["fused.count"]; };
    std::vector<Call> calls(60);
    for (int round = 0; round < 2; ++round) {
      const auto before = fused();
      auto batch = me.batch();
      ASSERT_TRUE(batch.ok());
      for (std::size_t i = 0; i < calls.size(); ++i) {
        const std::size_t bytes = round == 0 ? 100 + i : 40'000;
        calls[i] = {input(bytes, me.rank(), i), Bytes(bytes), xored_inputs(bytes, 2, i)};
        HMC_ASSERT_OK(me.all_reduce(view(calls[i].out), view(calls[i].in), xored, soon()));
      }
      HMC_ASSERT_OK(batch->run(soon()));
      for (const Call& call : calls) ASSERT_EQ(call.out, call.wanted);
      EXPECT_EQ(fused() - before, round == 0 ? 1U : calls.size());
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(Batches, WhatHasNoPlaceInOneIsRefused) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const auto other = world.split(std::vector{0}, std::vector{process.rank}, soon());
    ASSERT_TRUE(other.ok()) << other.status().str();
    const Member me = *world.self();
    Bytes a = input(64, me.rank(), 0), b = input(64, me.rank(), 1), c(64);
    auto batch = me.batch();
    ASSERT_TRUE(batch.ok());
    const auto refused = [](const Status& status, const char* word) {
      EXPECT_EQ(status.code(), Code::invalid_argument) << status.str();
      EXPECT_NE(status.message().find(word), std::string::npos) << status.str();
    };
    refused(me.batch().status(), "nest");
    refused(other->batch().status(), "nest");
    refused(me.iall_reduce(view(a), view(a), xored).status(), "call all_reduce");
    refused(me.ibarrier().status(), "call barrier");
    refused(me.send(view(a), 0), "call isend");
    refused(me.recv(view(a), 0).status(), "call irecv");
    refused(me.exchange_bytes(std::span(a).first(4), soon()).status(), "exchange_bytes");
    refused(world.split(std::vector{0}, std::vector{0}, soon()).status(), "split");
    HMC_ASSERT_OK(me.all_reduce(view(c), view(a), xored, soon()));
    refused(me.all_reduce(view(b), view(c), xored, soon()), "overlaps");
    refused(me.all_reduce(view(a), view(b), xored, soon()), "overlaps");
    refused(me.all_reduce(view(c), view(b), xored, soon()), "overlaps");
    refused(me.all_reduce(view(b), view(a, 1), xored, soon()), "same size");
    HMC_ASSERT_OK(me.all_reduce(view(b), view(b), xored, soon()));
    EXPECT_EQ(batch->size(), 2U);
    // Another Communicator's calls, and another thread's, are carried out at once.
    HMC_EXPECT_OK(other->barrier(soon()));
    std::thread([&] {
      Bytes d = input(64, me.rank(), 5);
      HMC_EXPECT_OK(other->self()->all_reduce(view(d), view(d), xored, soon()));
      EXPECT_EQ(d, xored_inputs(64, 2, 5));
    }).join();
    HMC_ASSERT_OK(batch->run(soon()));
    EXPECT_EQ(c, xored_inputs(64, 2, 0));
    EXPECT_EQ(b, xored_inputs(64, 2, 1));
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(Batches, MessagesAreWaitedFor) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    Bytes out = input(300'001, me.rank(), 3), in(300'001), sum = input(9, me.rank(), 4);
    auto batch = me.batch();
    ASSERT_TRUE(batch.ok());
    ASSERT_TRUE(me.irecv(view(in), 1 - me.rank(), 7).ok());
    ASSERT_TRUE(me.isend(view(out), 1 - me.rank(), 7).ok());
    HMC_ASSERT_OK(me.all_reduce(view(sum), view(sum), xored, soon()));
    HMC_ASSERT_OK(batch->run(soon()));
    EXPECT_EQ(in, input(300'001, 1 - me.rank(), 3));
    EXPECT_EQ(sum, xored_inputs(9, 2, 4));
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(Batches, OneThatEndsOnAnotherThreadLeavesItsOwnUsable) {
  run_job(1, [](const Process& process) {
    const Communicator world = process.init();
    const Member me = *world.self();
    auto batch = me.batch();
    ASSERT_TRUE(batch.ok());
    std::thread([moved = std::move(*batch)]() mutable { moved.discard(); }).join();
    auto next = me.batch();
    EXPECT_TRUE(next.ok()) << next.status().str();
  });
}

TEST(Batches, SeveralMembersOfAProcess) {
  run_job(2, [](const Process& process) {
    InitOptions options = process.options();
    options.devices = {Device::cpu(), Device::cpu()};
    const Communicator world = process.init(options);
    auto batch = world.batch();
    ASSERT_TRUE(batch.ok());
    std::vector<std::vector<Bytes>> data(2);
    for (std::size_t call = 0; call < 10; ++call) {
      std::vector<MemberBuffers> buffers;
      for (std::size_t m = 0; m < 2; ++m) data[m].push_back(input(50 + call, world.local()[m].rank(), call));
      for (std::size_t m = 0; m < 2; ++m) buffers.push_back({world.local()[m], view(data[m][call]), view(data[m][call])});
      HMC_ASSERT_OK(world.all_reduce(buffers, xored, soon()));
    }
    HMC_ASSERT_OK(batch->run(soon()));
    for (std::size_t call = 0; call < 10; ++call) {
      for (std::size_t m = 0; m < 2; ++m) EXPECT_EQ(data[m][call], xored_inputs(50 + call, 4, call));
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST(Batches, DeviceMemoryGoesCallByCall) {
  run_job(2, [](const Process& process) {
    setenv("HMC_CUDA_LIBRARY", HMC_SIM_CUDA, 1);
    InitOptions options = process.options();
    options.devices = {*Device::parse("cuda:0")};
    const Communicator world = process.init(options);
    const Member me = *world.self();
    std::vector<Memory> memories;
    auto batch = me.batch();
    ASSERT_TRUE(batch.ok());
    for (std::size_t call = 0; call < 5; ++call) {
      const Bytes mine = input(999, me.rank(), call);
      memories.push_back(*Memory::allocate(mine.size(), me.device()));
      HMC_ASSERT_OK(memories.back().copy_from_host(mine.data(), mine.size()));
      HMC_ASSERT_OK(me.all_reduce(memories.back(), memories.back(), xored, soon()));
    }
    HMC_ASSERT_OK(batch->run(soon()));
    for (std::size_t call = 0; call < 5; ++call) {
      Bytes now(999);
      HMC_ASSERT_OK(memories[call].copy_to_host(now.data(), now.size()));
      EXPECT_EQ(now, xored_inputs(999, 2, call));
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

// One rank passes device memory where the other one passes CPU memory: both pack alike.
TEST(Batches, CpuMembersMayPassDeviceMemory) {
  run_job(2, [](const Process& process) {
    setenv("HMC_CUDA_LIBRARY", HMC_SIM_CUDA, 1);
    const Communicator world = process.init();
    const Member me = *world.self();
    const Device device = me.rank() == 0 ? *Device::parse("cuda:0") : Device::cpu();
    std::vector<Memory> in, out;
    const auto memory = [&](const Bytes& content) {
      Memory made = *Memory::allocate(content.size(), device);
      HMC_EXPECT_OK(made.copy_from_host(content.data(), content.size()));
      return made;
    };
    const auto read = [](const Memory& from) {
      Bytes now(from.size());
      HMC_EXPECT_OK(from.copy_to_host(now.data(), now.size()));
      return now;
    };
    auto batch = me.batch();
    ASSERT_TRUE(batch.ok());
    constexpr std::size_t calls = 12;
    for (std::size_t call = 0; call < calls; ++call) {
      const std::size_t bytes = call == 5 ? 50'000 : 100 + call;
      in.push_back(memory(call % 3 == 2 && me.rank() == 1 ? Bytes(bytes) : input(bytes, me.rank(), call)));
      out.push_back(memory(Bytes(call % 3 == 1 ? 2 * bytes : bytes)));
      if (call % 3 == 0) HMC_ASSERT_OK(me.all_reduce(out.back(), in.back(), xored, soon()));
      if (call % 3 == 1) HMC_ASSERT_OK(me.all_gather(out.back(), in.back(), soon()));
      if (call % 3 == 2) HMC_ASSERT_OK(me.broadcast(in.back(), 0, soon()));
    }
    HMC_ASSERT_OK(batch->run(soon()));
    for (std::size_t call = 0; call < calls; ++call) {
      const std::size_t bytes = in[call].size();
      Bytes wanted = call % 3 == 0 ? xored_inputs(bytes, 2, call) : input(bytes, 0, call);
      if (call % 3 == 1) std::ranges::copy(input(bytes, 1, call), std::back_inserter(wanted));
      ASSERT_EQ(read(call % 3 == 2 ? in[call] : out[call]), wanted) << call;
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

// Many threads, each with a Communicator of its own.
TEST(Batches, ThreadsDoNotCollectEachOthersCalls) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    std::vector<Communicator> groups;
    for (int i = 0; i < 3; ++i) groups.push_back(*world.split(std::vector{0}, std::vector{process.rank}, soon()));
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < groups.size(); ++t) {
      threads.emplace_back([&, t] {
        const Member me = *groups[t].self();
        for (std::size_t round = 0; round < 30; ++round) {
          std::vector<Bytes> data;
          for (std::size_t call = 0; call < 6; ++call) data.push_back(input(10 + 900 * call, me.rank(), 100 * t + call));
          if (t == 0) {  // not in batches
            for (Bytes& each : data) HMC_ASSERT_OK(me.all_reduce(view(each), view(each), xored, soon()));
          } else {
            auto batch = me.batch();
            ASSERT_TRUE(batch.ok()) << batch.status().str();
            for (Bytes& each : data) HMC_ASSERT_OK(me.all_reduce(view(each), view(each), xored, soon()));
            HMC_ASSERT_OK(batch->run(soon()));
          }
          for (std::size_t call = 0; call < 6; ++call) ASSERT_EQ(data[call], xored_inputs(10 + 900 * call, 2, 100 * t + call));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

}  // namespace
}  // namespace hmc
