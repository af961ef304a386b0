// Collectives by the vendor's library, on simulated devices with a simulated library.
#include "collective/native/calls.h"
#include "collective/with_library.h"

namespace hmc {
namespace {

using testing::Bytes;
using testing::Devices;
using testing::expected;
using testing::input;
using testing::library_calls;
using testing::OnDevice;
using testing::soon;
using testing::vendors_library;
using testing::with_library;

const Reduction sum_of_f32{DataType::f32, ReduceOp::sum};

std::vector<Reduction> library_reductions() {
  std::vector<Reduction> all;
  for (std::size_t type = 0; type < data_types; ++type) {
    for (std::size_t op = 0; op < reduce_ops; ++op) {
      const Reduction each{static_cast<DataType>(type), static_cast<ReduceOp>(op)};
      if (check_reduction(each).ok() && native::type_number(each.type) && native::op_number(each.op, each.type)) all.push_back(each);
    }
  }
  return all;
}

Bytes part(const Bytes& all, std::size_t at, std::size_t bytes) {
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(at);
  return {begin, begin + static_cast<std::ptrdiff_t>(bytes)};
}

void check_reductions(const Member& me, const Reduction& reduction, std::size_t count) {
  SCOPED_TRACE(std::string(name_of(reduction.op)) + " of " + std::to_string(count) + " " + std::string(name_of(reduction.type)));
  const auto rank = static_cast<std::size_t>(me.rank()), ranks = static_cast<std::size_t>(me.size());
  const std::size_t element = size_of(reduction.type), offset = element * (1 + count % 3);
  const Bytes untouched(count * element, std::byte{0x11});
  {
    const OnDevice in(me.device(), input(reduction.type, count, rank), offset), out(me.device(), untouched, offset);
    HMC_ASSERT_OK(me.all_reduce(out.view(), in.view(), reduction, soon(), vendors_library));
    ASSERT_TRUE(out.read() == expected(reduction, count, ranks));
    ASSERT_TRUE(in.read() == input(reduction.type, count, rank) && in.guarded() && out.guarded());
    HMC_ASSERT_OK(me.all_reduce(in.view(), in.view(), reduction, soon(), vendors_library));
    ASSERT_TRUE(in.read() == expected(reduction, count, ranks) && in.guarded());
  }
  for (int root = 0; root < me.size(); ++root) {
    const OnDevice in(me.device(), input(reduction.type, count, rank), offset), out(me.device(), untouched, offset);
    HMC_ASSERT_OK(me.reduce(out.view(), in.view(), root, reduction, soon(), vendors_library));
    ASSERT_TRUE(out.read() == (me.rank() == root ? expected(reduction, count, ranks) : untouched)) << root;
    ASSERT_TRUE(in.read() == input(reduction.type, count, rank) && in.guarded() && out.guarded());
  }
  {
    const OnDevice in(me.device(), input(reduction.type, count * ranks, rank), offset), out(me.device(), untouched, offset);
    const Bytes mine = part(expected(reduction, count * ranks, ranks), rank * count * element, count * element);
    HMC_ASSERT_OK(me.reduce_scatter(out.view(), in.view(), reduction, soon(), vendors_library));
    ASSERT_TRUE(out.read() == mine && in.guarded() && out.guarded());
    MemoryView block = in.view();
    block.data = static_cast<std::byte*>(block.data) + rank * count * element;
    block.bytes = count * element;
    HMC_ASSERT_OK(me.reduce_scatter(block, in.view(), reduction, soon(), vendors_library));
    ASSERT_TRUE(part(in.read(), rank * count * element, count * element) == mine && in.guarded());
  }
}

void check_spreads(const Member& me, std::size_t bytes) {
  SCOPED_TRACE(std::to_string(bytes) + " bytes");
  const auto rank = static_cast<std::size_t>(me.rank()), ranks = static_cast<std::size_t>(me.size());
  Bytes all;
  for (std::size_t r = 0; r < ranks; ++r) {
    const Bytes each = input(DataType::u8, bytes, r);
    all.insert(all.end(), each.begin(), each.end());
  }
  const OnDevice in(me.device(), input(DataType::u8, bytes, rank), 1), out(me.device(), Bytes(bytes * ranks, std::byte{0x11}), 3);
  HMC_ASSERT_OK(me.all_gather(out.view(), in.view(), soon(), vendors_library));
  ASSERT_TRUE(out.read() == all && out.guarded());
  Bytes only_mine(bytes * ranks, std::byte{0x11});
  std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(rank * bytes), bytes,
              only_mine.begin() + static_cast<std::ptrdiff_t>(rank * bytes));
  const OnDevice both(me.device(), only_mine, 5);
  MemoryView block = both.view();
  block.data = static_cast<std::byte*>(block.data) + rank * bytes;
  block.bytes = bytes;
  HMC_ASSERT_OK(me.all_gather(both.view(), block, soon(), vendors_library));
  ASSERT_TRUE(both.read() == all && both.guarded());
  for (int root = 0; root < me.size(); ++root) {
    const OnDevice view(me.device(), input(DataType::u8, bytes, rank), 7);
    HMC_ASSERT_OK(me.broadcast(view.view(), root, soon(), vendors_library));
    ASSERT_TRUE(view.read() == input(DataType::u8, bytes, static_cast<std::size_t>(root)) && view.guarded()) << root;
  }
}

TEST(NativeCalls, EveryTypeAndOperation) {
  ASSERT_EQ(library_reductions().size(), 36U);
  for (const Devices& devices : {Devices{"cuda:1", "cuda:0"}, Devices{"rocm:2", "rocm:0", "rocm:3"}}) {
    with_library(devices, [](const Member& me, const Communicator& world) {
      std::uint64_t calls = 0;
      for (const Reduction& reduction : library_reductions()) {
        for (const std::size_t count : {std::size_t{1}, std::size_t{1003}}) {
          check_reductions(me, reduction, count);
          calls += 4 + static_cast<std::uint64_t>(me.size());
        }
      }
      EXPECT_EQ(library_calls(world), calls);
    });
  }
}

TEST(NativeCalls, EverySize) {
  for (const Devices& devices : {Devices{"cuda:1", "cuda:0"}, Devices{"rocm:2", "rocm:0", "rocm:3"}}) {
    with_library(devices, [](const Member& me, const Communicator& world) {
      std::uint64_t calls = 0;
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{70'001}, std::size_t{1'000'003}}) {
        check_reductions(me, sum_of_f32, count);
        check_spreads(me, count);
        calls += 6 + 2 * static_cast<std::uint64_t>(me.size());
      }
      EXPECT_EQ(library_calls(world), calls);
    });
  }
}

}  // namespace
}  // namespace hmc
