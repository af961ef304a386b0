#include "progress/worker.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>

#include "base/fork.h"

namespace hmc {

Worker::~Worker() {
  if (thread_ && fork_epoch_ != fork_epoch()) {
    static_cast<void>(thread_.release());  // the thread exists in the parent only
    return;
  }
  stop();
}

Status Worker::run(std::function<void()> task) {
  const std::scoped_lock lock(mutex_);
  if (stopped_) return {Code::closed, "background work was not started: its Context is closed"};
  if (!thread_) {
    fork_epoch_ = fork_epoch();
    // Signals belong to the application's threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::make_unique<std::thread>([this] { loop(); });
    } catch (const std::system_error&) {
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!thread_)
      return {Code::out_of_memory,
              "the system refused a thread for background work; raise ulimit -u or the pids.max of its cgroup"};
  }
  tasks_.push_back(std::move(task));
  wake_.notify_one();
  return {};
}

void Worker::stop() {
  std::unique_ptr<std::thread> thread;
  {
    const std::scoped_lock lock(mutex_);
    stopped_ = true;
    thread = std::move(thread_);
    wake_.notify_one();
  }
  if (thread) thread->join();
}

void Worker::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopped_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    {
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }  // destroyed without the lock: it may own user memory
    lock.lock();
  }
}

}  // namespace hmc
