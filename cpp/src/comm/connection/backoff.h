// Backoff: when a connection that failed is retried. Pure; copied from one attempt to the next.
#pragma once

#include "hmc/deadline.h"

namespace hmc {

class Backoff {
 public:
  using Clock = Deadline::Clock;

  void ready(Clock::time_point now) noexcept;
  // `in_use`: it was ready before; else the attempt itself failed.
  void failed(bool in_use, Clock::time_point now) noexcept;
  [[nodiscard]] bool used() const noexcept { return used_; }  // this attempt, or an earlier one, has been ready

  // The pause before the next attempt while other connections serve, in seconds. Doubles with each call.
  [[nodiscard]] double next_pause() noexcept;

  // ---- where no other connection serves ----
  [[nodiscard]] bool fresh() const noexcept { return vain_ == 0; }  // no retry has failed: retry immediately
  [[nodiscard]] bool exhausted() const noexcept;                    // too many retries have failed
  [[nodiscard]] double short_pause() const noexcept;                // seconds

 private:
  bool used_ = false;
  unsigned vain_ = 0;  // attempts in a row that never became ready
  double pause_ = 0;   // seconds
  Clock::time_point ready_at_;
};

}  // namespace hmc
