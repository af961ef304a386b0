// The fixture of tests over WorkState, in both modes of progress.
#pragma once

#include <memory>
#include <utility>

#include "progress/engine_testing.h"
#include "progress/work_state.h"

namespace hmc::testing {

class WorkFixture : public EngineModes {
 protected:
  std::shared_ptr<WorkState> pending() {
    auto state = std::make_shared<WorkState>(engine_);
    const auto lock = engine_->lock();
    state->accepted();
    return state;
  }
  void complete(WorkState& state, Status status = {}) {
    const auto lock = engine_->lock();
    state.complete(std::move(status));
  }
  // Completes after `seconds`, in an engine round.
  void complete_later(const std::shared_ptr<WorkState>& state, double seconds, Status status = {}) {
    const auto lock = engine_->lock();
    engine_->at(Deadline::after_seconds(seconds), [state, status] { state->complete(status); });
  }
};

}  // namespace hmc::testing
