#include "transport/verbs/rate.h"

#include <algorithm>

namespace hmc::verbs {
namespace {

double rate_over(std::size_t bytes, RateEstimate::Clock::duration time) noexcept {
  const double seconds = std::chrono::duration<double>(time).count();
  return seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
}

}  // namespace

void RateEstimate::posted(std::size_t bytes) {
  in_flight_ += bytes;
  if (busy_ || bytes < counted_piece) return;
  busy_ = true;
  sampled_ = sampling_ = false;
  busy_bytes_ = 0;
  busy_since_ = clock_();
}

void RateEstimate::completed(std::size_t bytes) {
  if (bytes >= counted_piece) measure(bytes, bytes == in_flight_);
  discarded(bytes);
}

void RateEstimate::discarded(std::size_t bytes) noexcept {
  in_flight_ -= bytes;
  if (in_flight_ == 0) busy_ = false;
}

// `last`: nothing is in flight behind it.
void RateEstimate::measure(std::size_t bytes, bool last) {
  const auto now = clock_();
  busy_bytes_ += bytes;
  const double busy_rate = rate_over(busy_bytes_, now - busy_since_);
  // Between completions while more is in flight, so that neither a pause nor the way there counts. Completions that are polled
  // together are moments apart, however long the transfers took: a sample spans several polls.
  if (sampling_) {
    sample_bytes_ += bytes;
    if ((last || sample_bytes_ >= sample_bytes) && now - sample_since_ >= sample_time) {
      take(rate_over(sample_bytes_, now - sample_since_), sample_bytes_);
      sampled_ = true;
      sample_since_ = now;
      sample_bytes_ = 0;
    }
  } else if (last && now - busy_since_ >= single_time) {
    take(busy_rate, bytes);  // alone: beside such a time the way there is nothing
  } else {
    sampling_ = true;
    sample_since_ = now;
    sample_bytes_ = 0;
  }
  // What has completed since the busy period began took that long at most, the way there included. So it may raise the estimate,
  // never lower it: a connection that is given a piece now and then has no better sample.
  if (!sampled_) rate_ = std::max(rate_, busy_rate);
}

void RateEstimate::take(double sample, std::size_t bytes) noexcept {
  constexpr double weight = 0.25;  // of a full sample
  rate_ += (sample - rate_) * weight * std::min(1.0, static_cast<double>(bytes) / sample_bytes);
}

}  // namespace hmc::verbs
