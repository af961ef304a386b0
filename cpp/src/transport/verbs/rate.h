// RateEstimate: what one connection carries per second, learnt from its completions.
#pragma once

#include <chrono>
#include <cstddef>

namespace hmc::verbs {

// Times are passed in so that a test can choose them; clock() is called only for pieces that count.
class RateEstimate {
 public:
  using Clock = std::chrono::steady_clock;
  using ClockCall = Clock::time_point (*)();

  static constexpr std::size_t counted_piece = 32 << 10;  // smaller ones measure latency
  static constexpr std::size_t sample_bytes = 1 << 20;
  static constexpr std::chrono::microseconds sample_time{50};
  static constexpr std::chrono::microseconds single_time{1000};  // of a piece alone

  explicit RateEstimate(double start, ClockCall clock = &Clock::now) noexcept : clock_(clock), rate_(start) {}

  [[nodiscard]] double rate() const noexcept { return rate_; }  // bytes per second
  [[nodiscard]] std::size_t in_flight() const noexcept { return in_flight_; }
  void posted(std::size_t bytes);
  void completed(std::size_t bytes);
  // Returned by the queue pair without having been executed.
  void discarded(std::size_t bytes) noexcept;

 private:
  void measure(std::size_t bytes, bool last);
  void take(double sample, std::size_t bytes) noexcept;

  ClockCall clock_;
  double rate_;
  std::size_t in_flight_ = 0;
  // From the first counted piece until nothing is in flight.
  bool busy_ = false;
  bool sampled_ = false;  // in this busy period
  Clock::time_point busy_since_;
  std::size_t busy_bytes_ = 0;  // completed since then
  // Starts at a completion.
  bool sampling_ = false;
  Clock::time_point sample_since_;
  std::size_t sample_bytes_ = 0;
};

}  // namespace hmc::verbs
