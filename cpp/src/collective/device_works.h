// What devices carry out for an engine, as Works. Engine lock held throughout.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>

#include "base/pollable.h"
#include "device/runtime.h"
#include "progress/work_state.h"

namespace hmc {

// What `start` starts on a device of `runtime`: it has a Completion for DeviceRuntime::copy() or its like. The Work ends as that
// does, or with the error of `start`. It cannot be cancelled.
std::shared_ptr<WorkState> work_on_device(const std::shared_ptr<Engine>& engine, DeviceRuntime& runtime,
                                          const std::function<Status(Completion* done)>& start);

class OrderedWork;

// Works that one stream of a device carries out, which end in the order in which they were started. cuEventQuery takes 1.3 us, a
// third of a launch, so one question to the vendor serves all of them, and in a row of starts it is put off: a thread that waits
// for other ranks to start the next call sees them at once, and one that posts call after call asks at every eighth.
class OrderedWorks final : public std::enable_shared_from_this<OrderedWorks>, private Pollable {
 public:
  explicit OrderedWorks(std::shared_ptr<Engine> engine) noexcept : engine_(std::move(engine)) {}
  // As work_on_device(). The same `runtime` at every call.
  std::shared_ptr<WorkState> start(DeviceRuntime& runtime, const std::function<Status(Completion* done)>& start);

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds unasked{2};  // after a start; a kernel takes longer
  static constexpr std::size_t most_unasked = 8;          // starts since the last question; posts, where they start nothing

  bool poll() override;
  bool arm() override { return false; }  // nothing wakes a thread when a kernel ends

  const std::shared_ptr<Engine> engine_;
  DeviceRuntime* runtime_ = nullptr;
  std::deque<std::shared_ptr<OrderedWork>> pending_;
  std::shared_ptr<OrderedWorks> self_;  // while some are pending
  Clock::time_point asks_from_;         // nothing that was started last is over earlier
  std::size_t asks_at_ = most_unasked;  // with so many pending, earlier
  std::size_t unasked_looks_ = 0;       // of posts, since the last question
};

}  // namespace hmc
