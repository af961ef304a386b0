#include "hmc/completion_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <utility>

#include "base/fd.h"
#include "base/fork.h"
#include "progress/engine.h"
#include "progress/work_state.h"

namespace hmc {

// Its lock is taken last, inside the engine lock of any Context.
class CompletionQueueState {
 public:
  explicit CompletionQueueState(UniqueFd fd) noexcept : fd_(std::move(fd)) {}
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] bool forked() const noexcept { return fork_epoch() != epoch_; }

  void push(std::uint64_t token) {
    const std::scoped_lock lock(mutex_);
    tokens_.push_back(token);
    if (tokens_.size() > 1) return;  // readable already
    const std::uint64_t one = 1;
    if (write(fd_.get(), &one, sizeof one) < 0) return;  // an eventfd that is read at every drain is never full
  }

  std::vector<std::uint64_t> drain() {
    const std::scoped_lock lock(mutex_);
    if (tokens_.empty()) return {};
    std::uint64_t count = 0;
    if (read(fd_.get(), &count, sizeof count) < 0) return std::exchange(tokens_, {});
    return std::exchange(tokens_, {});
  }

 private:
  const UniqueFd fd_;
  std::mutex mutex_;
  std::vector<std::uint64_t> tokens_;
  const std::uint32_t epoch_ = fork_epoch();
};

Result<CompletionQueue> CompletionQueue::create() {
  install_fork_handler();
  UniqueFd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) return errno_status("create a completion queue", errno);
  CompletionQueue queue;
  queue.state_ = std::make_shared<CompletionQueueState>(std::move(fd));
  return queue;
}

int CompletionQueue::fd() const noexcept { return state_ ? state_->fd() : -1; }

void CompletionQueue::watch(const Work& work, std::uint64_t token) const {
  if (!state_ || !work.valid() || state_->forked()) return;
  WorkState& operation = *work.state();
  if (operation.done()) {
    state_->push(token);
    return;
  }
  if (operation.engine()->forked()) return;
  const auto lock = operation.engine()->lock();
  operation.on_complete_locked([weak = std::weak_ptr(state_), token](const Status&) {
    if (const auto state = weak.lock()) state->push(token);
  });
  if (!operation.done()) operation.leave_unattended();
}

std::vector<std::uint64_t> CompletionQueue::drain() const {
  if (!state_ || state_->forked()) return {};
  return state_->drain();
}

}  // namespace hmc
