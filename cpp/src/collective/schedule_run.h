// ScheduleRun: which steps of one Schedule are ready, in flight and done. Engine lock held throughout.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "collective/plan.h"
#include "progress/work_state.h"

namespace hmc {

class ScheduleRun {
 public:
  using Index = std::uint32_t;
  explicit ScheduleRun(std::shared_ptr<const Schedule> schedule);

  [[nodiscard]] const std::shared_ptr<const Schedule>& schedule() const noexcept { return schedule_; }
  [[nodiscard]] std::span<const Step> steps() const noexcept { return schedule_->steps; }
  [[nodiscard]] std::span<const Slice> sources() const noexcept { return schedule_->sources; }

  // The steps that wait for nothing, in the order in which the schedule has them. Once, and never where what the steps are for is
  // done otherwise: until then nothing is ready, in flight or done.
  void begin();
  [[nodiscard]] bool has_ready() const noexcept { return !ready_.empty(); }
  [[nodiscard]] Index next_ready() const noexcept { return ready_.back(); }
  [[nodiscard]] Index take_ready() noexcept;

  void posted(Index index, std::shared_ptr<WorkState> message);
  // Of a step in flight, which is no longer.
  [[nodiscard]] std::shared_ptr<WorkState> take_message(Index index) noexcept;
  // Null unless the step is in flight.
  [[nodiscard]] const std::shared_ptr<WorkState>& message(Index index) const noexcept {
    static const std::shared_ptr<WorkState> none;
    return progress_.empty() ? none : progress_[index].message;
  }
  // The step is done, and those that wait for it alone are ready.
  void finish(Index index);
  // The step is done with, and those that wait for it never run.
  void give_up(Index index) noexcept;
  // All steps are done with: what they are for has been done otherwise. Nothing is in flight.
  void skip() noexcept {
    ready_.clear();
    left_ = 0;
  }
  [[nodiscard]] bool done(Index index) const noexcept { return !progress_.empty() && progress_[index].done; }

  // A poisoned step has not brought what was expected; when it is finished, those that wait for it are poisoned too.
  void poison(Index index) noexcept { progress_[index].poisoned = true; }
  [[nodiscard]] bool poisoned(Index index) const noexcept { return progress_[index].poisoned; }

  [[nodiscard]] bool all_done() const noexcept { return left_ == 0; }
  [[nodiscard]] bool in_flight() const noexcept { return in_flight_ > 0; }

 private:
  struct Progress {
    std::uint32_t waits = 0;  // steps that must be done before
    bool done = false;
    bool poisoned = false;
    std::shared_ptr<WorkState> message;
  };

  std::shared_ptr<const Schedule> schedule_;
  std::vector<Progress> progress_;  // by step, from begin() on
  std::vector<Index> ready_;        // taken from the back
  std::uint32_t left_ = 0;          // steps not done
  std::uint32_t in_flight_ = 0;
};

}  // namespace hmc
