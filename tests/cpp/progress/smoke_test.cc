#include <gtest/gtest.h>

#include <thread>

#include "progress/engine.h"
#include "progress/work_state.h"

namespace hmc {
namespace {

TEST(Smoke, CompletesFromTimerInBothModes) {
  for (const Progress mode : {Progress::background, Progress::manual}) {
    auto engine = Engine::create(mode).value();
    auto state = std::make_shared<WorkState>(engine);
    {
      auto lock = engine->lock();
      state->accepted();
      engine->at(Deadline::after_seconds(0.05), [state] { state->complete({}); });
    }
    EXPECT_TRUE(state->wait(Deadline::after_seconds(10)).ok());
    engine->stop();
  }
}

}  // namespace
}  // namespace hmc
