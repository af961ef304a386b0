// What the engine's tests share.
#pragma once

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/fd.h"
#include "progress/engine.h"

namespace hmc::testing {

struct Handler final : FdHandler {
  explicit Handler(std::function<void(std::uint32_t)> f) : function(std::move(f)) {}
  void on_ready(std::uint32_t events) override { function(events); }
  std::function<void(std::uint32_t)> function;
};

struct Poller final : Pollable {
  bool poll() override { return on_poll && on_poll(); }
  bool arm() override {
    ++arms;
    return !on_arm || on_arm();
  }
  void disarm() override { ++disarms; }
  [[nodiscard]] bool busy() const override { return !on_busy || on_busy(); }
  std::function<bool()> on_poll;
  std::function<bool()> on_arm;
  std::function<bool()> on_busy;
  std::atomic<int> arms{0};
  std::atomic<int> disarms{0};
};

inline UniqueFd make_event(unsigned value = 0) { return UniqueFd(eventfd(value, EFD_CLOEXEC | EFD_NONBLOCK)); }

inline void raise_event(int fd) {
  const std::uint64_t one = 1;
  ASSERT_EQ(write(fd, &one, sizeof one), 8);
}

inline double process_cpu() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Waits up to 60 s without turning the engine.
inline bool eventually(const std::function<bool()>& condition) {
  const Deadline deadline = Deadline::after_seconds(60);
  while (!condition()) {
    if (deadline.passed()) return condition();
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  return true;
}

// An engine in each of its modes.
class EngineModes : public ::testing::TestWithParam<Progress> {
 protected:
  void SetUp() override { engine_ = Engine::create(GetParam()).value(); }
  void TearDown() override {
    if (engine_) engine_->stop();
  }
  // What `function` needs to become true, with the engine turned in the way of its mode.
  bool until(const std::function<bool()>& function, double seconds = 60) {
    return engine_->drive(Deadline::after_seconds(seconds), function);
  }
  std::shared_ptr<Engine> engine_;
};

inline std::string mode_name(const ::testing::TestParamInfo<Progress>& mode) {
  return mode.param == Progress::manual ? "manual" : "background";
}

}  // namespace hmc::testing
