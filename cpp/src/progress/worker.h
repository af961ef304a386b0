// Worker: one thread, of a Context or of the process, for what may be slow and must not run under the engine lock: registering
// memory that a peer asks for, giving user memory back. Started at first use, asleep when idle. User callbacks do not run here, so
// it is never held up by them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "hmc/status.h"

namespace hmc {

class Worker {
 public:
  Worker();
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Any thread, any lock. Errors: out_of_memory (the system gives no thread), closed (after stop(), and in a forked child); the
  // task then runs nowhere.
  [[nodiscard]] Status run(std::function<void()> task);
  // Runs out what is queued and joins. Not from the worker itself, no lock held. Idempotent.
  void stop();

 private:
  struct State;
  static void loop(State& state);

  std::unique_ptr<State> state_;
  const std::uint32_t fork_epoch_;
};

}  // namespace hmc
