// Calls that a rank does not get to begin: no other rank waits for it, and nothing of the call goes on.
#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "collective/batch_data.h"
#include "collective/communicator_state.h"
#include "collective/execute.h"
#include "collective/plan.h"
#include "collective/with_library.h"

namespace hmc {
namespace {

using namespace testing;

constexpr Reduction sum{DataType::f32, ReduceOp::sum};
constexpr std::size_t floats = 1000;

// The same memory, as work on a busy stream of its device uses it: of one that is idle again there would be nothing to wait for.
MemoryView on_stream(const OnDevice& memory, const Device& device, const Busy& busy) {
  MemoryView view = memory.view();
  view.stream = busy_stream(device, HMC_SIM_ROCM, busy);
  return view;
}

// What the calls below have compiled: no compiler runs behind a test's end.
void let_compile(const Device& device) {
  wait_until_ready(device, DataType::f32, 2);
  wait_until_mapped(device, {DataType::f32, DataType::u64});
}

Bytes data_of(int rank) { return input(DataType::f32, floats, static_cast<std::size_t>(rank)); }

// Returns once the group has broken.
void wait_until_broken(const Communicator& world) {
  const Group& group = *world.state()->group;
  const auto is_broken = [&] {
    const auto lock = group.engine()->lock();
    return takes_no_collectives(group);
  };
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!is_broken()) {
    ASSERT_LT(std::chrono::steady_clock::now(), until);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Rank 1 cannot mark its stream: both ranks learn why and in which call, and neither has another call. With several marks a call
// has begun before, which rank 1's next post would launch, so that the launch's event failed in place of the mark: rank 0 joins it
// later.
using Called = std::function<Status(const Member&, const MemoryView&, const MemoryView& another)>;
void expect_both_ended(const Called& call, int marks, const std::string& named) {
  on_devices(
      {"rocm:0", "rocm:1"},
      [&](const Member& me, const Communicator& world) {
        let_compile(me.device());
        check_all_reduce(me, sum, floats, false, 0);
        HMC_ASSERT_OK(world.barrier(soon()));
        const OnDevice memory(me.device(), data_of(me.rank()));
        const OnDevice another(me.device(), data_of(me.rank()));
        Busy busy;
        if (me.rank() == 1) busy.longest = std::chrono::seconds(3);  // still busy once it cannot be marked, on any host
        const MemoryView view = on_stream(memory, me.device(), busy);
        MemoryView second = another.view();
        second.stream = view.stream;
        // The progress thread records events of the calls that have begun.
        if (me.rank() == 1) let_fail(me.device(), "hipEventRecord", marks, 719, "hmcsim_fail_here");
        SCOPED_TRACE(named);
        if (me.rank() == 0 && marks > 1) wait_until_broken(world);
        const Status status = call(me, view, second);
        *busy.over = true;
        EXPECT_EQ(status.code(), Code::device) << status.str();
        EXPECT_NE(status.message().find("719"), std::string::npos) << status.str();
        EXPECT_NE(status.message().find("rank 1 ("), std::string::npos) << status.str();
        EXPECT_NE(status.message().find(named), std::string::npos) << status.str();
        const Bytes before = memory.read();
        const OnDevice next(me.device(), data_of(me.rank()));
        EXPECT_EQ(me.all_reduce(next.view(), next.view(), sum, soon()).code(), Code::closed);
        EXPECT_TRUE(memory.read() == before);
      },
      "", true);
}

TEST(FailedStarts, OfOneCallEndOnEveryRank) {
  expect_both_ended(
      [](const Member& me, const MemoryView& view, const MemoryView&) { return me.all_reduce(view, view, sum, soon()); }, 1,
      "all_reduce");
  expect_both_ended([](const Member& me, const MemoryView& view, const MemoryView&) { return me.broadcast(view, 1, soon()); }, 1,
                    "broadcast");
  expect_both_ended(
      [](const Member& me, const MemoryView& view, const MemoryView&) {
        const Result<Work> work = me.iall_reduce(view, view, sum);
        return work.ok() ? work->wait(soon()) : work.status();
      },
      1, "all_reduce");
}

// The first of a batch has begun.
TEST(FailedStarts, InABatchEndOnEveryRank) {
  for (const int marks : {1, 2}) {
    expect_both_ended(
        [](const Member& me, const MemoryView& view, const MemoryView& second) {
          auto batch = me.batch();
          EXPECT_TRUE(batch.ok());
          HMC_EXPECT_OK(me.all_reduce(view, view, sum, soon()));
          HMC_EXPECT_OK(me.all_reduce(second, second, sum, soon()));
          return batch->run(soon());
        },
        marks, "all_reduce");
  }
}

// Small calls of a batch are copied together first.
TEST(FailedStarts, OfABatchsCopiesEndOnEveryRank) {
  run_job(2, [](const testing::Process& process) {
    simulate_vendors();
    const Communicator world = process.init();
    const Member me = *world.self();
    HMC_ASSERT_OK(world.barrier(soon()));
    const Device device = *Device::parse("rocm:0");
    Bytes a = data_of(me.rank()), b = data_of(me.rank());
    const OnDevice first(device, a), second(device, b);
    const bool fails = me.rank() == 1;
    if (fails) {
      let_compile(device);
      for (const char* const call : {"hipMemcpyDtoHAsync", "hipMemcpyAsync", "hipMemcpyDtoH", "hipMemcpy"})
        let_fail(device, call, 1, 719);
    }
    auto batch = me.batch();
    ASSERT_TRUE(batch.ok());
    HMC_ASSERT_OK(me.all_reduce(fails ? first.view() : view(a), fails ? first.view() : view(a), sum, soon()));
    HMC_ASSERT_OK(me.all_reduce(fails ? second.view() : view(b), fails ? second.view() : view(b), sum, soon()));
    const Status status = batch->run(soon());
    EXPECT_EQ(status.code(), Code::device) << status.str();
    EXPECT_NE(status.message().find("batch"), std::string::npos) << status.str();
    process.board[0].fetch_add(1);
    EXPECT_TRUE(process.board.wait(0, 2));
  });
}

// Two Members of one process: the call of the first has not begun, or is over, once the call returns.
TEST(FailedStarts, OfOneMemberLeaveTheOthersMemoryAlone) {
  run_job(1, [](const testing::Process& process) {
    simulate_vendors();
    InitOptions options = process.options();
    options.devices = {*Device::parse("rocm:0"), *Device::parse("rocm:1")};
    const Communicator world = process.init(options);
    ASSERT_TRUE(world.valid());
    const auto members = world.local();
    ASSERT_EQ(members.size(), 2U);
    for (const Member& member : members) let_compile(member.device());
    std::vector<OnDevice> memory;
    std::vector<MemberBuffers> call;
    for (const Member& member : members) {
      memory.emplace_back(member.device(), data_of(member.rank()));
      call.push_back({member, memory.back().view(), memory.back().view()});
    }
    HMC_ASSERT_OK(world.all_reduce(call, sum, soon()));  // what the first call of a group sets up is there
    std::vector<Bytes> before;
    Busy busy;
    busy.longest = std::chrono::seconds(60);
    for (std::size_t i = 0; i < 2; ++i) {
      before.push_back(memory[i].read());
      call[i].in = call[i].out = on_stream(memory[i], members[i].device(), busy);
    }
    let_fail(members[0].device(), "hipEventRecord", 2, 719);
    const Status status = world.all_reduce(call, sum, soon());
    *busy.over = true;
    EXPECT_EQ(status.code(), Code::device) << status.str();
    EXPECT_NE(status.message().find("rank 1 ("), std::string::npos) << status.str();
    std::vector<OnDevice> others;
    std::vector<MemberBuffers> next;
    for (const Member& member : members) {
      others.emplace_back(member.device(), data_of(member.rank()));
      next.push_back({member, others.back().view(), others.back().view()});
    }
    EXPECT_FALSE(world.all_reduce(next, sum, soon()).ok());
    for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(memory[i].read() == before[i]);
  });
}

// Rank 2 is late in a small call of device memory: the deadline's error names it, and none that came.
TEST(FailedStarts, ADeadlineNamesTheRankThatIsMissing) {
  run_job(3, [](const testing::Process& process) {
    simulate_vendors();
    setenv("HMC_SIM_DEVICES", "3", 1);
    InitOptions options = process.options();
    options.devices = {*Device::parse("cuda:" + std::to_string(process.rank))};
    const Communicator world = process.init(options);
    const Member me = *world.self();
    HMC_ASSERT_OK(world.barrier(soon()));
    if (me.rank() != 2) {
      const OnDevice memory(me.device(), input(DataType::f32, 100, 0));
      process.board[1].fetch_add(1);
      EXPECT_TRUE(process.board.wait(1, 2));
      const Status status = me.all_reduce(memory.view(), memory.view(), sum, Deadline::after_seconds(me.rank() == 0 ? 3 : 20));
      EXPECT_EQ(status.code(), Code::timeout) << status.str();
      const std::string said(status.message());
      const auto awaited = std::min(said.find("waiting for rank "), said.find("missing: rank "));
      ASSERT_NE(awaited, std::string::npos) << said;
      EXPECT_NE(said.find("rank 2 (", awaited), std::string::npos) << said;
      EXPECT_EQ(said.find(me.rank() == 0 ? "rank 1 (" : "rank 0 (", awaited), std::string::npos) << said;
    }
    process.board[0].fetch_add(1);
    EXPECT_TRUE(process.board.wait(0, 3));
  });
}

// A rank without memory for what it puts together.
TEST(FailedStarts, WithoutMemoryEndOnEveryRank) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers map memory of their own";
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  GTEST_SKIP() << "sanitizers map memory of their own";
#endif
#endif
  run_job(2, [](const testing::Process& process) {
    const Communicator world = process.init();
    HMC_ASSERT_OK(world.barrier(soon()));
    const auto& group = world.state()->group;
    const auto rank = static_cast<std::uint32_t>(process.rank);
    Bytes in(8), out(16);
    auto schedule = std::make_shared<Schedule>(plan_all_gather(rank, 2, std::vector<std::uint64_t>{8, 8}));
    if (process.rank == 1) schedule->scratch = std::uint64_t{1} << 60;
    const Status status =
        run_collectives({{group, rank, encode_call(CallKind::all_gather), schedule, {view(in), view(out), {}}}}, soon());
    EXPECT_EQ(status.code(), Code::out_of_memory) << status.str();
    EXPECT_NE(status.message().find("in which parts are put together"), std::string::npos) << status.str();
    process.board[0].fetch_add(1);
    EXPECT_TRUE(process.board.wait(0, 2));
  });
}

}  // namespace
}  // namespace hmc
