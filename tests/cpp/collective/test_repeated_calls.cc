// Calls of one size again and again, of which one thing or another differs: what HMC keeps of earlier ones must not be taken for
// it. On simulated devices.
#include <cstring>

#include "collective/on_devices.h"

namespace hmc {
namespace {

using testing::Bytes;
using testing::check_all_reduce;
using testing::expected;
using testing::input;
using testing::OnDevice;
using testing::soon;

constexpr std::size_t count = 6 * 1000;  // elements of 4 bytes, each in whole blocks of 2 and of 3 ranks
const Reduction sum_of_i32{DataType::i32, ReduceOp::sum};

std::uint64_t by_kernel(const Communicator& world) { return world.context().counters()["mapped.count"]; }

void on_ready_devices(const testing::Devices& devices, const std::function<void(const Member&, const Communicator&)>& body) {
  setenv("HMC_SIM_DEVICES", "4", 1);
  testing::on_devices(devices, [&](const Member& me, const Communicator& world) {
    testing::wait_until_mapped(me.device(),
                               {DataType::i32, DataType::f32, DataType::u8, DataType::u16, DataType::u32, DataType::u64});
    for (const DataType type : {DataType::i32, DataType::f32}) testing::wait_until_ready(me.device(), type, 3);
    HMC_ASSERT_OK(world.barrier(soon()));
    body(me, world);
  });
}

// Of each rank's device, of the CPU, of another device than the rank's, of one rank's CPU.
TEST(RepeatedCalls, KindsOfMemoryTakeTurns) {
  on_ready_devices({"cuda:0", "cuda:1"}, [](const Member& me, const Communicator& world) {
    const auto rank = static_cast<std::size_t>(me.rank());
    const Device other = *Device::parse("cuda:" + std::to_string(rank + 2));
    const Bytes right = expected(sum_of_i32, count, 2), mine = input(DataType::i32, count, rank);
    const auto on = [&](const Device& device) {
      const OnDevice in(device, mine), out(device, Bytes(mine.size(), std::byte{0x11}));
      HMC_ASSERT_OK(me.all_reduce(out.view(), in.view(), sum_of_i32, soon()));
      ASSERT_TRUE(out.read() == right && in.read() == mine && out.guarded()) << device.str();
    };
    const auto on_cpu = [&] {
      Bytes in = mine, out(mine.size(), std::byte{0x11});
      HMC_ASSERT_OK(me.all_reduce(testing::view(out), testing::view(in), sum_of_i32, soon()));
      ASSERT_TRUE(out == right && in == mine);
    };
    for (int again = 0; again < 3; ++again) {
      const std::uint64_t before = by_kernel(world);
      on_cpu();
      EXPECT_EQ(by_kernel(world), before);
      on(me.device());
      on(me.device());
      EXPECT_EQ(by_kernel(world), before + 2);
      on(other);
      on(rank == 0 ? other : me.device());
      EXPECT_EQ(by_kernel(world), before + 2);
      rank == 1 ? on_cpu() : on(me.device());
      EXPECT_EQ(by_kernel(world), before + 2);
      on(me.device());
      EXPECT_EQ(by_kernel(world), before + 3);
    }
  });
}

TEST(RepeatedCalls, TypesOperationsAndAlignmentsTakeTurns) {
  on_ready_devices({"cuda:0", "cuda:1", "cuda:2"}, [](const Member& me, const Communicator& world) {
    const std::uint64_t before = by_kernel(world);
    std::uint64_t calls = 0;
    for (int again = 0; again < 2; ++again) {
      for (const std::size_t offset : {std::size_t{0}, std::size_t{4}, std::size_t{1}}) {
        for (const Reduction& reduction :
             {sum_of_i32, Reduction{DataType::i32, ReduceOp::max}, Reduction{DataType::i32, ReduceOp::avg},
              Reduction{DataType::f32, ReduceOp::sum}, Reduction{DataType::f32, ReduceOp::premul_sum, 0.5},
              Reduction{DataType::f32, ReduceOp::premul_sum, 3}}) {
          check_all_reduce(me, reduction, count, again == 0, offset);
          ++calls;
        }
      }
    }
    EXPECT_EQ(by_kernel(world), before + calls);
  });
}

TEST(RepeatedCalls, RootsTakeTurns) {
  on_ready_devices({"cuda:0", "cuda:1", "cuda:2"}, [](const Member& me, const Communicator& world) {
    const auto rank = static_cast<std::size_t>(me.rank());
    const Bytes mine = input(DataType::i32, count, rank), untouched(mine.size(), std::byte{0x11});
    const std::uint64_t before = by_kernel(world);
    std::uint64_t calls = 0;
    for (int again = 0; again < 2; ++again) {
      for (int root = 2; root >= 0; --root) {
        for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
          const OnDevice in(me.device(), mine, offset), out(me.device(), untouched, offset);
          HMC_ASSERT_OK(me.reduce(out.view(), in.view(), root, sum_of_i32, soon()));
          ASSERT_TRUE(out.read() == (me.rank() == root ? expected(sum_of_i32, count, 3) : untouched)) << root;
          const OnDevice sent(me.device(), mine, offset);
          HMC_ASSERT_OK(me.broadcast(sent.view(), root, soon()));
          ASSERT_TRUE(sent.read() == input(DataType::i32, count, static_cast<std::size_t>(root))) << root;
          ASSERT_TRUE(in.read() == mine && in.guarded() && out.guarded() && sent.guarded());
          calls += 2;
        }
      }
    }
    EXPECT_EQ(by_kernel(world), before + calls);
  });
}

// Blocks of one size, on the CPU, from devices to the CPU, and on devices, in place and not.
TEST(RepeatedCalls, BlocksTakeTurns) {
  on_ready_devices({"cuda:0", "cuda:1"}, [](const Member& me, const Communicator& world) {
    const auto rank = static_cast<std::size_t>(me.rank());
    const Bytes all = input(DataType::i32, count, 7), summed = expected(sum_of_i32, count, 2);
    const Bytes mine = input(DataType::i32, count, rank);
    const std::size_t block = all.size() / 2;
    const auto part = [&](const Bytes& whole, std::size_t r) {
      const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(r * block);
      return Bytes(begin, begin + static_cast<std::ptrdiff_t>(block));
    };
    const auto call = [&](const Device& from, const Device& to, bool in_place) {
      SCOPED_TRACE(from.str() + " to " + to.str());
      Bytes given(all.size(), std::byte{0x22});
      std::memcpy(given.data() + rank * block, part(all, rank).data(), block);
      const OnDevice gathered(to, given), in(from, part(all, rank));
      MemoryView own = gathered.view();
      own.data = static_cast<std::byte*>(own.data) + rank * block;
      own.bytes = block;
      HMC_ASSERT_OK(me.all_gather(gathered.view(), in_place ? own : in.view(), soon()));
      ASSERT_TRUE(gathered.read() == all && gathered.guarded());
      const OnDevice inputs(from, mine), sums(to, Bytes(block, std::byte{0x11})), moved(to, Bytes(mine.size(), std::byte{0x33}));
      HMC_ASSERT_OK(me.reduce_scatter(sums.view(), inputs.view(), sum_of_i32, soon()));
      ASSERT_TRUE(sums.read() == part(summed, rank) && sums.guarded());
      HMC_ASSERT_OK(me.all_to_all(moved.view(), inputs.view(), soon()));
      for (std::size_t r = 0; r < 2; ++r) ASSERT_TRUE(part(moved.read(), r) == part(input(DataType::i32, count, r), rank));
      const OnDevice sent(to, mine);
      HMC_ASSERT_OK(me.broadcast(sent.view(), 1, soon()));
      ASSERT_TRUE(sent.read() == input(DataType::i32, count, 1));
      ASSERT_TRUE(inputs.read() == mine && moved.guarded() && sent.guarded());
    };
    for (int again = 0; again < 2; ++again) {
      call(Device::cpu(), Device::cpu(), again == 0);
      call(me.device(), Device::cpu(), false);
      for (const bool in_place : {true, false}) {
        const std::uint64_t before = by_kernel(world);
        call(me.device(), me.device(), in_place);
        EXPECT_EQ(by_kernel(world), before + 4);
      }
    }
  });
}

}  // namespace
}  // namespace hmc
