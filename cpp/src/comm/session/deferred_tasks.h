// DeferredTasks: what any thread leaves for the next poll of a Context, which runs it under the engine lock. Owned by ContextImpl.
// Any thread, lock held or not, unless said otherwise.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <vector>

namespace hmc {

class DeferredTasks {
 public:
  // True: there was none before, so the engine must be woken. After stop() the task is destroyed instead.
  [[nodiscard]] bool add(std::function<void()> task);
  [[nodiscard]] bool pending() const noexcept { return pending_.load(); }
  bool run();  // engine lock held; true if there were any
  // The tasks that will not run, for the caller to destroy without the engine lock.
  [[nodiscard]] std::vector<std::function<void()>> stop();
  [[nodiscard]] bool stopped() const noexcept { return stopped_.load(); }

 private:
  std::mutex mutex_;
  std::vector<std::function<void()>> tasks_;
  std::atomic<bool> pending_{false};
  std::atomic<bool> stopped_{false};
};

}  // namespace hmc
