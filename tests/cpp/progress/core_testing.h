// What the tests of the engine's parts share: a core without an engine, so that no thread runs but those of the test.
#pragma once

#include <gtest/gtest.h>

#include <chrono>

#include "progress/engine_core.h"
#include "progress/engine_testing.h"

namespace hmc::testing {

// A test whose wake is missing hangs: its sleep has no end of its own.
constexpr auto for_ever = WatcherRole::TimePoint::max();

class CoreFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(core_.rounds.sources().descriptors().open().ok());
    ASSERT_TRUE(core_.role.open().ok());
  }
  void TearDown() override {
    core_.role.close();
    core_.rounds.sources().descriptors().close();
  }
  void add(Pollable& pollable) {
    const auto held = core_.lock.lock();
    core_.rounds.pollables().add(pollable);
  }
  void remove(Pollable& pollable) {
    const auto held = core_.lock.lock();
    core_.rounds.pollables().remove(pollable);
  }
  [[nodiscard]] bool armed() {
    const auto held = core_.lock.lock();
    return core_.rounds.pollables().armed();
  }
  // Drivers answer every kick at once, for long enough that the watcher trusts them to.
  void make_drivers_prompt() {
    const auto now = Deadline::Clock::now();
    for (unsigned i = 0; i < Kicks::prompt_answers; ++i) {
      core_.kicks.kick();
      core_.kicks.expect_answer(now);
      core_.kicks.answer(now);
    }
  }
  // The sleep that the watcher announced ends by a ring: at once, or never.
  void expect_rung() { core_.role.sleep(nullptr, for_ever); }
  // It ends by its time.
  void expect_not_rung() {
    const auto until = Deadline::Clock::now() + std::chrono::milliseconds(5);
    core_.role.sleep(nullptr, until);
    EXPECT_GE(Deadline::Clock::now(), until);
  }

  EngineCore core_;
};

}  // namespace hmc::testing
