// Calls of the vendor's library that end early, or whose ranks leave, on simulated devices with a simulated library.
#include <array>
#include <chrono>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "collective/communicator_state.h"
#include "collective/group.h"
#include "collective/with_library.h"

namespace hmc {
namespace {

using testing::check_sum;
using testing::input;
using testing::let_fail;
using testing::OnDevice;
using testing::soon;
using testing::sum_of_f32;
using testing::vendors_library;
using testing::with_library;

class NativeEndings : public testing::WithLibrary {};

constexpr int hangs = 7;

// Without a barrier, whose messages another rank's end would withdraw.
void meet(const Member& me) {
  std::array<int, 2> words{};
  for (int r = 0; r < me.size(); ++r) {
    if (r == me.rank()) continue;
    const Work sent = *me.isend({words.data(), 4}, r, 0);
    HMC_ASSERT_OK(me.recv({&words[1], 4}, r, 0, soon()).status());
    HMC_ASSERT_OK(sent.wait(soon()));
  }
}

TEST_P(NativeEndings, ACloseEndsWhatHangsElsewhere) {
  for (const bool context : {false, true}) {
    SCOPED_TRACE(context ? "Context" : "Communicator");
    with_library(
        {"cuda:0", "cuda:1"},
        [&](const Member& me, const Communicator& world) {
          check_sum(me, 1000, vendors_library);
          meet(me);
          if (me.rank() == 1) let_fail(me.device(), "ncclKernel", 1, hangs);
          const OnDevice memory(me.device(), input(DataType::f32, 100'000, static_cast<std::size_t>(me.rank())));
          const Work work = *me.iall_reduce(memory.view(), memory.view(), sum_of_f32, vendors_library);
          if (me.rank() == 1) {
            std::this_thread::sleep_for(std::chrono::milliseconds(300));
            HMC_EXPECT_OK(context ? world.context().close(soon()) : world.close(soon()));
          }
          const Status status = work.wait(soon(20));
          EXPECT_EQ(status.code(), Code::closed) << status.str();
        },
        true);
  }
}

// A call that has ended does not wait in memory for the library, which makes its number.
TEST_P(NativeEndings, ACancelledCallKeepsNoGroup) {
  with_library({"cuda:0", "cuda:1"}, [](const Member& me, const Communicator& world) {
    std::weak_ptr<Group> group;
    const std::vector<int> ranks{0, 1};
    {
      const Communicator two = *world.subgroup(ranks, 7);
      if (std::string_view(GetParam()) == "1") HMC_ASSERT_OK(two.share_memory(soon()));
      group = two.state()->group;
      if (me.rank() == 0) let_fail(me.device(), "ncclGetUniqueId", 1, hangs);
      const OnDevice memory(me.device(), input(DataType::f32, 1000, static_cast<std::size_t>(me.rank())));
      const Work work = *two.self()->iall_reduce(memory.view(), memory.view(), sum_of_f32, vendors_library);
      if (me.rank() == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        static_cast<void>(work.cancel());
      }
      EXPECT_EQ(work.wait(soon()).code(), Code::cancelled);
      HMC_EXPECT_OK(two.close(soon()));
    }
    for (int i = 0; i < 500 && !group.expired(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_TRUE(group.expired());
  });
}

// The ranks do without the library: one that names it and one that does not get an error, and do not wait for each other.
TEST_P(NativeEndings, AnotherCallIsNamedWhereTheLibraryIsRefused) {
  for (const int names_it : {0, 1}) {
    with_library(
        {"cuda:0", "cuda:0", "cuda:1"},
        [&](const Member& me, const Communicator&) {
          const OnDevice memory(me.device(), input(DataType::f32, 1000, static_cast<std::size_t>(me.rank())));
          const auto all_reduce = [&](std::string_view algorithm) {
            return me.all_reduce(memory.view(), memory.view(), sum_of_f32, soon(20), algorithm);
          };
          EXPECT_EQ(all_reduce(vendors_library).code(), Code::unsupported);
          meet(me);
          const Status status = all_reduce(me.rank() == names_it ? vendors_library : "");
          const bool may_be_over = me.rank() == names_it && status.code() == Code::unsupported;
          EXPECT_TRUE(status.code() == Code::invalid_argument || may_be_over) << status.str();
        },
        true);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, NativeEndings, ::testing::Values("1", "0"), testing::how_they_agree);

}  // namespace
}  // namespace hmc
