#include "progress/work_state.h"

#include <utility>

namespace hmc {
namespace {

// For a peer to stop: within microseconds if it runs, on a busy host within a few turns of its scheduler.
constexpr double stop_seconds = 1;

}  // namespace

WorkState::WorkState(std::shared_ptr<Engine> engine) noexcept : engine_(std::move(engine)) {}

WorkState::~WorkState() = default;

void WorkState::accepted() {
  if (!done()) self_ = shared_from_this();
}

void WorkState::complete(Status status) noexcept {
  if (done()) return;
  // Kept to the end of this call: whoever sees done_ may drop its handle at once.
  const std::shared_ptr<WorkState> self = std::move(self_);
  status_ = std::move(status);
  done_.store(1, std::memory_order_release);
  engine_->wake_waiters();
  if (unattended_) engine_->unattended().fetch_sub(1, std::memory_order_relaxed);
  if (hook_) std::exchange(hook_, nullptr)(status_);
  if (!hooks_.empty()) {
    for (auto& hook : std::exchange(hooks_, {})) hook(status_);
  }
  if (!callbacks_.empty()) {
    for (auto& callback : std::exchange(callbacks_, {})) {
      engine_->dispatch([callback = std::move(callback), outcome = status_] { callback(outcome); });
    }
  }
  released();
}

Status WorkState::cancel_locked() { return {Code::unsupported, "this operation cannot be stopped; it will complete by itself"}; }

Status WorkState::withdraw_locked() {
  if (done()) return {Code::invalid_argument, "the operation is already complete"};
  return cancel_locked();
}

Status WorkState::wait(Deadline deadline) {
  if (done()) return status_;
  if (engine_->forked()) return forked_status();
  if (engine_->drive_flag(deadline, done_)) return status_;
  return {Code::timeout, "the deadline passed before the operation completed; it is still under way and may be waited for again"};
}

void WorkState::then(std::function<void(const Status&)> callback) {
  if (engine_->forked()) return;
  {
    const auto lock = engine_->lock();
    if (!done()) {
      callbacks_.push_back(std::move(callback));
      leave_unattended();
      return;
    }
  }
  engine_->dispatch([callback = std::move(callback), outcome = status_] { callback(outcome); });
}

Status WorkState::cancel() {
  if (engine_->forked()) return forked_status();
  Status stopped;
  {
    const auto lock = engine_->lock();
    if (done()) return {Code::invalid_argument, "the operation is already complete"};
    stopped = cancel_locked();
  }
  if (stopped.code() != Code::would_block) return stopped;
  const bool ended = engine_->drive_flag(Deadline::after_seconds(stop_seconds), done_);
  return ended && status_.code() == Code::cancelled ? Status() : Status(Code::unsupported, std::string(stopped.message()));
}

Status WorkState::withdraw() {
  if (engine_->forked()) return forked_status();
  const auto lock = engine_->lock();
  Status stopped = withdraw_locked();
  if (stopped.code() != Code::would_block) return stopped;
  return {Code::unsupported, std::string(stopped.message())};
}

void WorkState::leave_unattended() noexcept {
  if (!std::exchange(unattended_, true)) engine_->unattended().fetch_add(1, std::memory_order_relaxed);
}

void WorkState::on_complete_locked(std::function<void(const Status&)> hook) {
  if (done()) {
    hook(status_);
  } else if (!hook_) {
    hook_ = std::move(hook);
  } else {
    hooks_.push_back(std::move(hook));
  }
}

std::shared_ptr<WorkState> completed_work(std::shared_ptr<Engine> engine, Status status) {
  auto work = std::make_shared<WorkState>(std::move(engine));
  work->status_ = std::move(status);
  work->done_.store(1, std::memory_order_release);
  return work;
}

}  // namespace hmc
