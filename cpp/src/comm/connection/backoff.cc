#include "comm/connection/backoff.h"

#include <algorithm>
#include <chrono>

namespace hmc {
namespace {

constexpr double first_pause_seconds = 1;
constexpr double longest_pause_seconds = 60;
// A connection that lasted so long counts as new.
constexpr std::chrono::seconds steady{60};
// Retries where no other connection serves, the first of them after this time.
constexpr unsigned most_vain = 4;
constexpr double first_short_pause_seconds = 0.02;

}  // namespace

void Backoff::ready(Clock::time_point now) noexcept {
  used_ = true;
  ready_at_ = now;
}

void Backoff::failed(bool in_use, Clock::time_point now) noexcept {
  vain_ = in_use ? 0 : vain_ + 1;
  if (in_use && (pause_ == 0 || now - ready_at_ >= steady)) pause_ = first_pause_seconds / 2;
}

double Backoff::next_pause() noexcept {
  pause_ = std::min(pause_ * 2, longest_pause_seconds);
  return pause_;
}

bool Backoff::exhausted() const noexcept { return vain_ > most_vain; }

double Backoff::short_pause() const noexcept { return first_short_pause_seconds * (1U << std::min(vain_, most_vain)); }

}  // namespace hmc
