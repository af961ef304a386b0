// Points in time that blocking calls give up at. Monotonic clock; immune to wall-clock steps.
#pragma once

#include <chrono>

namespace hmc {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline never() noexcept { return Deadline(Clock::time_point::max()); }
  static Deadline at(Clock::time_point when) noexcept { return Deadline(when); }
  // `duration` from now; negative counts as zero, and a duration beyond the clock's range as never.
  template <class Rep, class Period>
  static Deadline after(std::chrono::duration<Rep, Period> duration) {
    const auto seconds = std::chrono::duration<double>(duration).count();
    if (!(seconds < 1e9)) return never();
    return Deadline(Clock::now() +
                    std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds < 0 ? 0 : seconds)));
  }
  // `seconds` from now, as Python passes it; infinity means never.
  static Deadline after_seconds(double seconds) { return after(std::chrono::duration<double>(seconds)); }

  [[nodiscard]] bool is_never() const noexcept { return when_ == Clock::time_point::max(); }
  [[nodiscard]] bool passed() const noexcept { return !is_never() && Clock::now() >= when_; }
  [[nodiscard]] Clock::time_point when() const noexcept { return when_; }
  // Milliseconds left, rounded up, for poll-like calls: -1 for never, 0 when passed.
  [[nodiscard]] int poll_timeout_ms() const noexcept {
    if (is_never()) return -1;
    const auto left = when_ - Clock::now();
    if (left <= Clock::duration::zero()) return 0;
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    return ms > 1'000'000'000 ? 1'000'000'000 : static_cast<int>(ms);
  }

 private:
  explicit Deadline(Clock::time_point when) noexcept : when_(when) {}
  Clock::time_point when_;
};

}  // namespace hmc
