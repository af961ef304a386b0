// Doorbell: where the watcher of an engine sleeps, and what ends its sleep.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/fd.h"
#include "hmc/deadline.h"
#include "hmc/status.h"

namespace hmc {

class Descriptors;

// Held by value by the engine. Any thread, engine lock held or not.
class Doorbell {
 public:
  Status open();
  // Ends the present sleep, or else the next one at once. To be called after the store that the sleeper is to see.
  void ring() noexcept;
  // Sleeps until rung, until `until`, or until one of `descriptors` (may be null) is ready. One thread at a time.
  void sleep(const Descriptors* descriptors, Deadline::Clock::time_point until) noexcept;
  // Closes the descriptor once no other thread uses it or those of a sleep. ring() and sleep() go on without: later sleeps do not
  // see `descriptors`.
  void close() noexcept;

 private:
  // While it is true, descriptors stay open.
  class Use {
   public:
    explicit Use(Doorbell& bell) noexcept;
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use() { users_.fetch_sub(1); }
    explicit operator bool() const noexcept { return open_; }

   private:
    std::atomic<std::uint32_t>& users_;
    bool open_;
  };

  UniqueFd fd_;
  std::atomic<std::uint32_t> rung_{0};  // since the watcher woke last
  std::atomic<std::uint32_t> users_{0};
  std::atomic<bool> closed_{false};
};

}  // namespace hmc
