// Dispatcher: one thread that runs user callbacks in order, started at first use.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "hmc/deadline.h"

namespace hmc {

// Thread rules: any thread may call anything; functions may call dispatch() and stop().
class Dispatcher {
 public:
  Dispatcher();
  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  void dispatch(std::function<void()> function);
  using TimePoint = Deadline::Clock::time_point;
  // The system refused the thread, and something waits for it: retry() is to be called.
  [[nodiscard]] bool lacks_thread() const noexcept;
  // Starts the thread, if that is due. Returns when to call it again; none: no need.
  std::optional<TimePoint> retry();
  // Returns once everything dispatched so far has run; on the dispatcher thread itself it returns at once, and the rest runs when
  // the callback has unwound. What is dispatched later runs on a thread that ends when it has nothing left.
  void stop();
  // In a forked child: forgets the thread and the queue, touching neither.
  void abandon() noexcept;

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);
  bool start();
  void run_here();
  std::shared_ptr<State> state_;
};

}  // namespace hmc
