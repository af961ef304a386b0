// Worker: one thread, of a Context or of the process, for what may be slow and must not run under the engine lock: registering
// memory that a peer asks for, giving user memory back. Started at first use, asleep when idle. User callbacks do not run here, so
// it is never held up by them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "hmc/status.h"

namespace hmc {

class Worker {
 public:
  Worker() = default;
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Any thread, any lock. Errors: out_of_memory (the system gives no thread), closed (after stop()); the task then runs nowhere.
  [[nodiscard]] Status run(std::function<void()> task);
  // Runs out what is queued and joins. Not from the worker itself, no lock held. Idempotent.
  void stop();

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  std::unique_ptr<std::thread> thread_;
  bool stopped_ = false;
  std::uint32_t fork_epoch_ = 0;
};

}  // namespace hmc
