#include "progress/worker.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "base/fork.h"
#include "base/thread.h"

namespace hmc {

struct Worker::State {
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::function<void()>> tasks;
  std::unique_ptr<std::thread> thread;  // joined by stop()
  bool stopped = false;
};

Worker::Worker() : state_(std::make_unique<State>()), fork_epoch_(fork_epoch()) {}

Worker::~Worker() {
  if (fork_epoch_ == fork_epoch()) {
    stop();
    return;
  }
  // Leaked on purpose: the thread exists in the parent only, its mutex may be held for ever, and the end of what it waits for would
  // wait for it.
  static_cast<void>(state_.release());
}

Status Worker::run(std::function<void()> task) {
  if (fork_epoch_ != fork_epoch()) return forked_status();
  State& state = *state_;
  const std::scoped_lock lock(state.mutex);
  if (state.stopped) return {Code::closed, "background work was not started: its Context is closed"};
  if (!state.thread) state.thread = start_thread("hmc-worker", [&state] { loop(state); });
  if (!state.thread)
    return {Code::out_of_memory, "the system refused a thread for background work; raise ulimit -u or the pids.max of its cgroup"};
  state.tasks.push_back(std::move(task));
  state.wake.notify_one();
  return {};
}

void Worker::stop() {
  if (fork_epoch_ != fork_epoch()) return;
  std::unique_ptr<std::thread> thread;
  {
    const std::scoped_lock lock(state_->mutex);
    state_->stopped = true;
    thread = std::move(state_->thread);
    state_->wake.notify_one();
  }
  if (thread) thread->join();
}

void Worker::loop(State& state) {
  std::unique_lock lock(state.mutex);
  while (true) {
    state.wake.wait(lock, [&state] { return state.stopped || !state.tasks.empty(); });
    if (state.tasks.empty()) return;
    {
      const auto task = std::move(state.tasks.front());
      state.tasks.pop_front();
      lock.unlock();
      task();
    }  // destroyed without the lock: it may own user memory
    lock.lock();
  }
}

}  // namespace hmc
