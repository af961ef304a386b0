// Worker: tasks run in order; a system that gives no thread is an error, not a task that waits for ever.
#include "progress/worker.h"

#include <future>
#include <vector>

#include "testing.h"

namespace hmc {
namespace {

TEST(Worker, WithoutAThreadNothingIsPromised) {
  Worker worker;
  std::promise<std::vector<int>> all;
  std::vector<int> ran;
  {
    const testing::NoThreads refused;
    EXPECT_EQ(worker.run([&] { ran.push_back(0); }).code(), Code::out_of_memory);
  }
  for (int i = 1; i < 4; ++i) HMC_ASSERT_OK(worker.run([&ran, i] { ran.push_back(i); }));
  {
    const testing::NoThreads refused;  // it has its thread
    HMC_ASSERT_OK(worker.run([&] { all.set_value(ran); }));
  }
  auto result = all.get_future();
  ASSERT_EQ(result.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_EQ(result.get(), (std::vector<int>{1, 2, 3}));
  worker.stop();
  EXPECT_EQ(worker.run([] {}).code(), Code::closed);
}

}  // namespace
}  // namespace hmc
