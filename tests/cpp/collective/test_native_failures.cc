// Collectives by the vendor's library that do not go well, on simulated devices with a simulated library.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>

#include "collective/with_library.h"
#include "native/rank_communicator.h"

namespace hmc {
namespace {

using testing::Bytes;
using testing::check_gathered;
using testing::check_sum;
using testing::Devices;
using testing::Environment;
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

class NativeFailures : public testing::WithLibrary {};

constexpr int hangs = 7, system_error = 2, internal_error = 3, remote_error = 6;
const Devices two{"cuda:0", "cuda:1"};

// The library is named, and cannot carry the call out.
void check_refused(const Member& me) {
  const OnDevice memory(me.device(), Bytes(4000));
  const Status named = me.all_reduce(memory.view(), memory.view(), sum_of_f32, soon(), vendors_library);
  EXPECT_EQ(named.code(), Code::unsupported) << named.str();
}

// ---- without the library ----

// `environment`: of rank 1.
void where_rank_1_has(const std::map<std::string, std::string>& environment, std::string_view reason) {
  const Environment libraries(testing::simulated_libraries());
  testing::run_job(2, [&](const testing::Process& process) {
    testing::simulate_vendors();
    if (process.rank == 1) {
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    }
    InitOptions options = process.options();
    options.devices = {*Device::parse(two[static_cast<std::size_t>(process.rank)])};
    const Communicator world = process.init(options);
    ASSERT_TRUE(world.valid());
    const Member me = *world.self();
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{70'001}, std::size_t{5'000'001}}) check_gathered(me, bytes);
    check_refused(me);
    check_sum(me, 1000, {});
    EXPECT_EQ(library_calls(world), 0U);
    const CollectivePlan plan = *world.plan("all_gather", 2000);
    if (process.rank == 1) {
      EXPECT_NE(plan.reason.find(reason), std::string::npos) << plan.reason;
    }
    HMC_EXPECT_OK(world.barrier(soon()));
  });
}

TEST_P(NativeFailures, AMissingLibraryOnOneRank) {
  where_rank_1_has({{"HMC_NCCL_LIBRARY", "off"}}, "NCCL is not used: switched off by HMC_NCCL_LIBRARY");
  where_rank_1_has({{"HMC_NCCL_LIBRARY", "/nowhere/libnccl.so"}}, "does not load");
  where_rank_1_has({{"HMC_NCCL_LIBRARY", HMC_SIM_MLU}}, "has no ncclGetVersion");
}

TEST_P(NativeFailures, OneRankWithOtherMemory) {
  with_library(two, [](const Member& me, const Communicator& world) {
    const auto rank = static_cast<std::size_t>(me.rank());
    const Bytes want = expected(sum_of_f32, 1000, 2);
    // Not aligned to its elements.
    const OnDevice memory(me.device(), input(DataType::f32, 1000, rank), rank);
    HMC_ASSERT_OK(me.all_reduce(memory.view(), memory.view(), sum_of_f32, soon()));
    ASSERT_TRUE(memory.read() == want);
    const OnDevice again(me.device(), input(DataType::f32, 1000, rank), rank);
    const Status named = me.all_reduce(again.view(), again.view(), sum_of_f32, soon(), vendors_library);
    EXPECT_EQ(named.code(), Code::unsupported) << named.str();
    ASSERT_TRUE(again.read() == input(DataType::f32, 1000, rank)) << "nothing was done";
    // Of the CPU.
    const Bytes mine = input(DataType::u8, 70'001, rank);
    Bytes host = mine;
    const OnDevice device(me.device(), mine);
    const Status broadcast = me.broadcast(rank == 0 ? testing::view(host) : device.view(), 0, soon());
    HMC_ASSERT_OK(broadcast);
    ASSERT_TRUE((rank == 0 ? host : device.read()) == input(DataType::u8, 70'001, 0));
    EXPECT_EQ(library_calls(world), 0U);
    check_sum(me, 1000, vendors_library);
    check_gathered(me, 9'000'001);
    EXPECT_EQ(library_calls(world), 1U);
  });
}

TEST_P(NativeFailures, TwoRanksOnOneDevice) {
  with_library({"cuda:1", "cuda:0", "cuda:1"}, [](const Member& me, const Communicator& world) {
    check_refused(me);
    check_gathered(me, 3001);
    EXPECT_EQ(library_calls(world), 0U);
    const std::string reason = world.plan("all_gather", 3000)->reason;
    EXPECT_NE(reason.find("two ranks have one device"), std::string::npos) << reason;
  });
}

// Rank 0 waits for it in the library until the group ends.
TEST_P(NativeFailures, ARankThatDoesNotConnect) {
  with_library(two, [](const Member& me, const Communicator& world) {
    if (me.rank() == 1) let_fail(me.device(), "ncclCommInitRank", 1, internal_error);
    check_refused(me);
    check_gathered(me, 3001);
    check_sum(me, 1000, {});
    EXPECT_EQ(library_calls(world), 0U);
    const std::string reason = world.plan("all_gather", 3000)->reason;
    EXPECT_NE(reason.find(me.rank() == 1 ? "internal error (ncclCommInitRank: an injected error)" : "rank 1"), std::string::npos)
        << reason;
  });
}

// ---- calls that fail ----

TEST_P(NativeFailures, AnotherCallIsNamedOnBothSides) {
  with_library(
      two,
      [](const Member& me, const Communicator&) {
        check_sum(me, 1000, vendors_library);
        const OnDevice memory(me.device(), Bytes(400'000));
        const ReduceOp op = me.rank() == 0 ? ReduceOp::sum : ReduceOp::product;
        const Status status = me.all_reduce(memory.view(), memory.view(), {DataType::f32, op}, soon(), vendors_library);
        EXPECT_EQ(status.code(), Code::invalid_argument) << status.str();
        EXPECT_TRUE(names(status, "sum") && names(status, "product") && names(status, vendors_library)) << status.str();
      },
      true);
}

// `what` of the library of rank 0 hangs in an all_reduce of both ranks, or before it where they have not connected.
void while_it_hangs(const char* what, bool connects,
                    const std::function<void(const Member&, const Communicator&, const MemoryView&)>& body) {
  with_library(
      two,
      [&](const Member& me, const Communicator& world) {
        if (connects) {
          check_sum(me, 1000, vendors_library);
          // The other rank may still be in that call. No barrier: an abort would end the other rank's as well.
          std::array<int, 2> words{};
          const Work sent = *me.isend({words.data(), 4}, 1 - me.rank(), 0);
          HMC_ASSERT_OK(me.recv({&words[1], 4}, 1 - me.rank(), 0, soon()).status());
          HMC_ASSERT_OK(sent.wait(soon()));
        }
        if (me.rank() == 0) let_fail(me.device(), what, 1, hangs);
        const Bytes before = input(DataType::f32, 100'000, static_cast<std::size_t>(me.rank()));
        const OnDevice memory(me.device(), before);
        body(me, world, memory.view());
        ASSERT_TRUE(memory.read() == before) << "nothing was reduced";
        EXPECT_EQ(library_calls(world), connects ? 1U : 0U);
      },
      true);
}

constexpr std::array<std::pair<const char*, bool>, 4> hanging{
    {{"ncclKernel", true}, {"ncclAllReduce", true}, {"ncclKernel", false}, {"ncclCommInitRank", false}}};

TEST_P(NativeFailures, TheDeadlineEndsWhatHangs) {
  for (const auto& [what, connects] : hanging) {
    SCOPED_TRACE(what);
    while_it_hangs(what, connects, [](const Member& me, const Communicator&, const MemoryView& memory) {
      const Deadline deadline = me.rank() == 0 ? Deadline::after_seconds(2) : soon();
      const Status status = me.all_reduce(memory, memory, sum_of_f32, deadline, vendors_library);
      EXPECT_FALSE(status.ok());
      if (me.rank() == 0) {
        EXPECT_EQ(status.code(), Code::timeout) << status.str();
      }
      EXPECT_TRUE(names(status, me.rank() == 0 ? "rank 1" : "rank 0")) << status.str();
    });
  }
}

void expect_nothing_joins_after_an_abort(int rank) {
  native::Library& library = *native::library_of("cuda");
  HMC_ASSERT_OK(library.open());
  const auto communicator = native::RankCommunicator::make(library, Device::parse("cuda:0").value(), rank, 2).value();
  communicator->abort();
  std::promise<Status> connected;
  std::atomic<int> published = 0;
  const auto done = [&](const Status& status) { connected.set_value(status); };
  if (rank == 0) {
    communicator->make_number([&](const Result<native::UniqueId>& id) {
      if (id.ok()) ++published;
      done(id.status());
    });
  } else {
    communicator->connect(native::UniqueId{}, done);
  }
  auto outcome = connected.get_future();
  const bool ends = outcome.wait_for(std::chrono::seconds(30)) == std::future_status::ready;
  EXPECT_TRUE(ends) << "rank " << rank << " waits for the other";
  if (!ends) _exit(1);  // the thread uses what is here
  EXPECT_EQ(outcome.get().code(), Code::closed) << rank;
  EXPECT_EQ(published.load(), 0);
  communicator->close(soon());
}

TEST_P(NativeFailures, NothingJoinsAfterAnAbort) {
  const Environment libraries(testing::simulated_libraries());
  testing::run_job(1, [](const testing::Process&) {
    testing::simulate_vendors();
    for (const int rank : {0, 1}) expect_nothing_joins_after_an_abort(rank);
  });
}

TEST_P(NativeFailures, CancelAndAbortEndWhatHangs) {
  for (const auto& [what, connects] : hanging) {
    for (const bool aborts : {false, true}) {
      SCOPED_TRACE(std::string(what) + (aborts ? ", abort" : ", cancel"));
      while_it_hangs(what, connects, [&](const Member& me, const Communicator& world, const MemoryView& memory) {
        const Result<Work> work =
            me.iall_reduce(memory, memory, sum_of_f32, vendors_library);  // refused at one that comes too late
        if (me.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          if (aborts) {
            HMC_EXPECT_OK(world.abort("enough"));
          } else {
            static_cast<void>(work->cancel());
          }
        }
        const Status status = work.ok() ? work->wait(soon()) : work.status();
        EXPECT_EQ(status.code(), Code::cancelled) << status.str();
        if (aborts) {
          EXPECT_TRUE(names(status, "enough")) << status.str();
        }
      });
    }
  }
}

// A call that the library blocks in does not keep the process from other work.
TEST_P(NativeFailures, MessagesGoOnWhileItHangs) {
  while_it_hangs("ncclAllReduce", true, [](const Member& me, const Communicator&, const MemoryView& memory) {
    const Work work = *me.iall_reduce(memory, memory, sum_of_f32, vendors_library);
    std::array<int, 2> values{me.rank() + 5, 0};
    for (int round = 0; round < 50; ++round) {
      const Work sent = *me.isend({values.data(), 4}, 1 - me.rank(), round);
      HMC_ASSERT_OK(me.recv({&values[1], 4}, 1 - me.rank(), round, soon()).status());
      HMC_ASSERT_OK(sent.wait(soon()));
      ASSERT_EQ(values[1], 6 - me.rank());
    }
    if (me.rank() == 0) {
      EXPECT_FALSE(work.done());
      static_cast<void>(work.cancel());
    }
    EXPECT_EQ(work.wait(soon()).code(), Code::cancelled);
  });
}

// What the library of rank 0 says is the error on both ranks, and the process does without it from then on.
TEST_P(NativeFailures, ItsErrorIsNamedAndThenItIsAvoided) {
  struct Case {
    const char* call;
    int code;
    const char* text;
  };
  for (const Case& each : {Case{"ncclAllReduce", system_error, "unhandled system error (ncclAllReduce: an injected error)"},
                           Case{"ncclKernel", internal_error, "internal error"}}) {
    SCOPED_TRACE(each.call);
    with_library(
        two,
        [&](const Member& me, const Communicator& world) {
          check_sum(me, 1000, vendors_library);
          if (me.rank() == 0) let_fail(me.device(), each.call, 1, each.code);
          const OnDevice memory(me.device(), input(DataType::f32, 100'000, static_cast<std::size_t>(me.rank())));
          const Status status = me.all_reduce(memory.view(), memory.view(), sum_of_f32, soon(), vendors_library);
          EXPECT_EQ(status.code(), Code::device) << status.str();
          EXPECT_TRUE(names(status, each.text) && names(status, "NCCL 2.27.3 (simulated)")) << status.str();
          if (me.rank() == 1) {
            EXPECT_TRUE(names(status, "rank 0")) << status.str();
          }
          const std::string reason = world.plan("all_reduce", 4 << 20)->reason;
          if (me.rank() == 0) {
            EXPECT_NE(reason.find("is not used: it failed earlier in this process: "), std::string::npos) << reason;
            EXPECT_NE(reason.find(each.text), std::string::npos) << reason;
          }
          const Communicator again = *world.shrink(soon());
          EXPECT_EQ(again.size(), 2);
          check_gathered(*again.self(), 3001);
          HMC_EXPECT_OK(again.close(soon()));
        },
        true);
  }
}

// An error of another process is no reason to avoid the library.
TEST_P(NativeFailures, ARemoteErrorEndsTheCall) {
  with_library(
      two,
      [](const Member& me, const Communicator& world) {
        check_sum(me, 1000, vendors_library);
        if (me.rank() == 0) let_fail(me.device(), "ncclKernel", 1, remote_error);
        const OnDevice memory(me.device(), Bytes(4000));
        const Status status = me.all_reduce(memory.view(), memory.view(), sum_of_f32, soon(), vendors_library);
        EXPECT_TRUE(names(status, "remote process exited")) << status.str();
        const std::string reason = world.plan("all_reduce", 4 << 20)->reason;
        EXPECT_EQ(reason.find("is not used"), std::string::npos) << reason;
      },
      true);
}

TEST_P(NativeFailures, AKilledRankIsNamed) {
  for (const auto& [what, connects] : hanging) {
    for (const std::size_t count : {std::size_t{10}, std::size_t{100'000}})
      testing::check_killed_rank("cuda", what, hangs, connects, count);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, NativeFailures, ::testing::Values("1", "0"), testing::how_they_agree);

}  // namespace
}  // namespace hmc
