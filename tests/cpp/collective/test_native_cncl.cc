// What CNCL does otherwise than NCCL, and its bad days, on simulated Cambricon devices with a simulated library.
#include "collective/with_library.h"

namespace hmc {
namespace {

using testing::Bytes;
using testing::check_gathered;
using testing::check_sum;
using testing::Devices;
using testing::expected;
using testing::input;
using testing::let_fail;
using testing::library_calls;
using testing::names;
using testing::OnDevice;
using testing::soon;
using testing::sum_of_f32;
using testing::vendors_library;
using testing::with_library;

class Cncl : public testing::WithLibrary {};

constexpr int hangs = 0x06, internal_error = 0x01, asynchronous_error = 0x16, socket_error = 0x22;
const Devices two{"mlu:0", "mlu:1"};

TEST_P(Cncl, IsNamedInPlans) {
  with_library(two, [](const Member& me, const Communicator& world) {
    check_sum(me, 1000, vendors_library);
    const CollectivePlan plan = *world.plan("all_reduce", 4000, {.algorithm = vendors_library});
    EXPECT_NE(plan.reason.find("CNCL 1.25.0 (simulated) spans all ranks"), std::string::npos) << plan.reason;
    EXPECT_FALSE(world.plan("all_reduce", 4000, {.type = DataType::f64, .algorithm = vendors_library}).ok());
    EXPECT_EQ(library_calls(world), 1U);
  });
}

// A process uses the number of a clique once, for all its ranks: HMC leaves groups with several of a process to messages.
TEST_P(Cncl, TakesOneRankOfAProcess) {
  const testing::Environment libraries(testing::simulated_libraries());
  testing::run_job(2, [&](const testing::Process& process) {
    testing::simulate_vendors();
    InitOptions options = process.options();
    options.devices = process.rank == 0 ? std::vector<Device>{*Device::parse("mlu:0"), *Device::parse("mlu:2")}
                                        : std::vector<Device>{*Device::parse("mlu:1")};
    const Communicator world = process.init(options);
    ASSERT_TRUE(world.valid());
    for (const char* const algorithm : {vendors_library, ""}) {
      std::vector<OnDevice> memory;
      std::vector<MemberBuffers> calls;
      memory.reserve(2);
      for (const Member& me : world.local()) {
        memory.emplace_back(me.device(), input(DataType::f32, 1000, static_cast<std::size_t>(me.rank())));
        calls.push_back({me, memory.back().view(), memory.back().view()});
      }
      const Status status = world.all_reduce(calls, sum_of_f32, soon(), algorithm);
      EXPECT_EQ(status.code(), *algorithm == 0 ? Code::ok : Code::unsupported) << status.str();
      if (*algorithm == 0) {
        for (const OnDevice& each : memory) EXPECT_TRUE(each.read() == expected(sum_of_f32, 1000, 3));
      } else if (process.rank == 0) {
        EXPECT_TRUE(names(status, "CNCL takes one rank of a process")) << status.str();
      }
    }
    EXPECT_EQ(library_calls(world), 0U);
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST_P(Cncl, TheDeadlineEndsWhatHangs) {
  for (const char* const what : {"cnclKernel", "cnclAllReduce"}) {
    SCOPED_TRACE(what);
    with_library(
        two,
        [&](const Member& me, const Communicator& world) {
          check_sum(me, 1000, vendors_library);
          if (me.rank() == 0) let_fail(me.device(), what, 1, hangs);
          const Bytes before = input(DataType::f32, 100'000, static_cast<std::size_t>(me.rank()));
          const OnDevice memory(me.device(), before);
          const Deadline deadline = me.rank() == 0 ? Deadline::after_seconds(2) : soon();
          const Status status = me.all_reduce(memory.view(), memory.view(), sum_of_f32, deadline, vendors_library);
          EXPECT_FALSE(status.ok());
          EXPECT_TRUE(names(status, me.rank() == 0 ? "rank 1" : "rank 0")) << status.str();
          EXPECT_TRUE(memory.read() == before);
          EXPECT_EQ(library_calls(world), 1U);
        },
        true);
  }
}

TEST_P(Cncl, ItsErrorIsNamedAndThenItIsAvoided) {
  for (const auto& [call, code, text] : {std::tuple{"cnclAllReduce", internal_error, "internal error"},
                                         std::tuple{"cnclKernel", asynchronous_error, "asynchronous error"}}) {
    SCOPED_TRACE(call);
    with_library(
        two,
        [&, call = call, code = code, text = text](const Member& me, const Communicator& world) {
          check_sum(me, 1000, vendors_library);
          if (me.rank() == 0) let_fail(me.device(), call, 1, code);
          const OnDevice memory(me.device(), input(DataType::f32, 100'000, static_cast<std::size_t>(me.rank())));
          const Status status = me.all_reduce(memory.view(), memory.view(), sum_of_f32, soon(), vendors_library);
          EXPECT_EQ(status.code(), Code::device) << status.str();
          EXPECT_TRUE(names(status, text) && names(status, "CNCL 1.25.0 (simulated)")) << status.str();
          const std::string reason = world.plan("all_reduce", 4 << 20)->reason;
          if (me.rank() == 0) {
            EXPECT_NE(reason.find("is not used: it failed earlier in this process: "), std::string::npos) << reason;
          }
          const Communicator again = *world.shrink(soon());
          check_gathered(*again.self(), 3001);
          HMC_EXPECT_OK(again.close(soon()));
        },
        true);
  }
}

// Its connection to another process broke: no reason to avoid the library.
TEST_P(Cncl, ABrokenConnectionEndsTheCall) {
  with_library(
      two,
      [](const Member& me, const Communicator& world) {
        check_sum(me, 1000, vendors_library);
        if (me.rank() == 0) let_fail(me.device(), "cnclKernel", 1, socket_error);
        const OnDevice memory(me.device(), Bytes(4000));
        const Status status = me.all_reduce(memory.view(), memory.view(), sum_of_f32, soon(), vendors_library);
        EXPECT_TRUE(names(status, "socket error")) << status.str();
        const std::string reason = world.plan("all_reduce", 4 << 20)->reason;
        EXPECT_EQ(reason.find("is not used"), std::string::npos) << reason;
      },
      true);
}

TEST_P(Cncl, AKilledRankIsNamed) { testing::check_killed_rank("mlu", "cnclKernel", hangs, true, 100'000); }

INSTANTIATE_TEST_SUITE_P(Ranks, Cncl, ::testing::Values("1", "0"), testing::how_they_agree);

}  // namespace
}  // namespace hmc
