#include "collective/schedule_run.h"

#include <algorithm>
#include <utility>

namespace hmc {

ScheduleRun::ScheduleRun(std::shared_ptr<const Schedule> schedule)
    : schedule_(std::move(schedule)), left_(static_cast<std::uint32_t>(schedule_->steps.size())) {}

void ScheduleRun::begin() {
  progress_ = std::vector<Progress>(schedule_->steps.size());
  for (Index i = 0; i < progress_.size(); ++i) {
    progress_[i].waits = schedule_->steps[i].waits;
    if (progress_[i].waits == 0) ready_.push_back(i);
  }
  std::ranges::reverse(ready_);
}

ScheduleRun::Index ScheduleRun::take_ready() noexcept {
  const Index index = ready_.back();
  ready_.pop_back();
  return index;
}

void ScheduleRun::posted(Index index, std::shared_ptr<WorkState> message) {
  progress_[index].message = std::move(message);
  ++in_flight_;
}

std::shared_ptr<WorkState> ScheduleRun::take_message(Index index) noexcept {
  --in_flight_;
  return std::exchange(progress_[index].message, nullptr);
}

void ScheduleRun::finish(Index index) {
  const Step& step = schedule_->steps[index];
  give_up(index);
  for (std::uint32_t n = 0; n < step.next_count; ++n) {
    const Index next = schedule_->next[step.first_next + n];
    // The size of one message says nothing about another: a window of sends is not poisoned by an earlier receive.
    if (progress_[index].poisoned) poison(next);
    if (--progress_[next].waits == 0) ready_.push_back(next);
  }
}

void ScheduleRun::give_up(Index index) noexcept {
  progress_[index].done = true;
  --left_;
}

}  // namespace hmc
