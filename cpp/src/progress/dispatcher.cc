#include "progress/dispatcher.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <new>
#include <system_error>
#include <utility>

#include "base/fork.h"
#include "base/log.h"
#include "base/thread.h"

namespace hmc {
namespace {

constexpr auto retry_every = std::chrono::milliseconds(100);

}  // namespace

// Shared with the thread, which may outlive the Dispatcher when that ends inside a callback.
struct Dispatcher::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  std::unique_ptr<std::thread> thread;  // joined by stop()
  bool running = false;                 // some thread serves the queue
  bool stopping = false;                // the thread ends when the queue is empty
  TimePoint retry_at;                   // where it lacks a thread
  std::atomic<bool> lacks_thread{false};
};

Dispatcher::Dispatcher() : state_(std::make_shared<State>()) {}

Dispatcher::~Dispatcher() {
  if (state_) stop();
}

void Dispatcher::run(const std::shared_ptr<State>& state) {
  const std::uint32_t epoch = fork_epoch();
  std::unique_lock lock(state->mutex);
  for (;;) {
    if (!state->queue.empty()) {
      auto function = std::move(state->queue.front());
      state->queue.pop_front();
      lock.unlock();
      function();
      function = nullptr;                 // its captures end before the lock is taken: they may dispatch
      if (fork_epoch() != epoch) return;  // forked in there, and this is the child's only thread: the process ends with it
      lock.lock();
    } else if (state->stopping) {
      state->running = false;
      return;
    } else {
      state->changed.wait(lock);
    }
  }
}

void Dispatcher::dispatch(std::function<void()> function) {
  const std::scoped_lock lock(state_->mutex);
  state_->queue.push_back(std::move(function));
  if (state_->running) {
    state_->changed.notify_one();
    return;
  }
  const bool before = state_->lacks_thread.load();
  if (!start() && !before)
    log(LogLevel::error, "no thread for callbacks could be started (limit of processes reached?); they wait until one can");
}

// Its mutex is held.
bool Dispatcher::start() {
  auto thread = start_thread("hmc-dispatch", [state = state_] { run(state); });
  state_->lacks_thread.store(thread == nullptr);
  if (!thread) {
    state_->retry_at = Deadline::Clock::now() + retry_every;
    return false;
  }
  state_->running = true;
  if (state_->stopping) {
    thread->detach();
  } else {
    state_->thread = std::move(thread);
  }
  return true;
}

bool Dispatcher::lacks_thread() const noexcept { return state_ && state_->lacks_thread.load(); }

std::optional<Dispatcher::TimePoint> Dispatcher::retry() {
  if (!lacks_thread()) return std::nullopt;
  const std::scoped_lock lock(state_->mutex);
  if (state_->running || state_->queue.empty()) {
    state_->lacks_thread.store(false);
    return std::nullopt;
  }
  if (Deadline::Clock::now() >= state_->retry_at && start()) return std::nullopt;
  return state_->retry_at;
}

void Dispatcher::stop() {
  std::unique_ptr<std::thread> thread;
  {
    const std::scoped_lock lock(state_->mutex);
    state_->stopping = true;
    thread = std::move(state_->thread);
    state_->changed.notify_one();
  }
  if (!thread) return run_here();
  if (thread->get_id() == std::this_thread::get_id()) {
    thread->detach();
  } else {
    thread->join();
  }
}

// What waits for a thread that the system has refused.
void Dispatcher::run_here() {
  {
    const std::scoped_lock lock(state_->mutex);
    if (state_->running || state_->queue.empty()) return;
    state_->running = true;
  }
  const auto state = state_;  // a callback may end this
  run(state);
}

void Dispatcher::abandon() noexcept {
  // Leaked on purpose: the thread does not exist here and its mutex may be held for ever.
  if (state_) new std::shared_ptr<State>(std::move(state_));
}

}  // namespace hmc
