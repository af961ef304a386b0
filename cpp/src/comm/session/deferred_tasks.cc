#include "comm/session/deferred_tasks.h"

#include <utility>

namespace hmc {

bool DeferredTasks::add(std::function<void()> task) {
  const std::scoped_lock lock(mutex_);
  if (stopped_.load()) return false;
  tasks_.push_back(std::move(task));
  pending_.store(true);
  return tasks_.size() == 1;
}

bool DeferredTasks::run() {
  if (!pending_.load(std::memory_order_relaxed)) return false;
  std::vector<std::function<void()>> tasks;
  {
    const std::scoped_lock lock(mutex_);
    tasks.swap(tasks_);
    pending_.store(false);
  }
  for (auto& task : tasks) task();
  return !tasks.empty();
}

std::vector<std::function<void()>> DeferredTasks::stop() {
  const std::scoped_lock lock(mutex_);
  stopped_.store(true);
  return std::exchange(tasks_, {});
}

}  // namespace hmc
