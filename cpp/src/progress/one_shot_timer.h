// OneShotTimer: a timer of an engine that its owner may stop and start again. Engine lock held throughout.
#pragma once

#include <functional>
#include <utility>

#include "progress/engine.h"

namespace hmc {

// The owner stops it, or outlives it: the engine calls back until then.
class OneShotTimer {
 public:
  explicit OneShotTimer(Engine& engine) noexcept : engine_(engine) {}
  OneShotTimer(const OneShotTimer&) = delete;
  OneShotTimer& operator=(const OneShotTimer&) = delete;

  // Replaces the action that is pending; with Deadline::never() none is. `action` may start the timer again.
  void start(Deadline due, std::function<void()> action) {
    stop();
    due_ = due;
    if (due.is_never()) return;
    id_ = engine_.at(due, [this, action = std::move(action)] {
      id_ = 0;
      action();
    });
  }
  void stop() {
    if (id_ != 0) engine_.cancel_timer(std::exchange(id_, 0));
  }
  [[nodiscard]] bool pending() const noexcept { return id_ != 0; }
  [[nodiscard]] Deadline due() const noexcept { return due_; }  // of the last start

 private:
  Engine& engine_;
  Engine::TimerId id_ = 0;
  Deadline due_ = Deadline::never();
};

}  // namespace hmc
