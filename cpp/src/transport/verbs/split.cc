#include "transport/verbs/split.h"

#include <algorithm>
#include <limits>

namespace hmc::verbs {
namespace {

// The others carry so many times longer than a probe takes, at the rates that are known. Of a rate that is next to nothing the most
// is believed that keeps probes coming.
bool probe_is_due(const RailLoad& rail, double rate_of_others, std::size_t chunk) noexcept {
  constexpr std::size_t least_probe = 64 << 10;
  constexpr double interval = 64;
  constexpr double most_ratio = 512;
  if (chunk < least_probe) return false;  // would measure nothing
  const double ratio = std::clamp(rate_of_others / std::max(rail.rate, 1.0), 1.0, most_ratio);
  return static_cast<double>(rail.passed) >= interval * ratio * static_cast<double>(chunk);
}

}  // namespace

bool takes_chunk(std::span<const RailLoad> rails, std::size_t index, std::size_t chunk, std::size_t left) noexcept {
  const bool any_near = std::ranges::any_of(rails, &RailLoad::near);
  const auto seconds = [&](const RailLoad& rail) {
    const double alone = static_cast<double>(rail.in_flight + chunk) / std::max(rail.rate, 1.0);
    return any_near && !rail.near ? 2 * alone : alone;
  };
  double rate = 0;  // of the others together
  double waiting = static_cast<double>(left);
  double soonest = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < rails.size(); ++i) {
    if (i == index) continue;
    rate += rails[i].rate;
    waiting += static_cast<double>(rails[i].in_flight);
    soonest = std::min(soonest, seconds(rails[i]));
  }
  if (probe_is_due(rails[index], rate, chunk)) return true;
  // The rail that would be through soonest always takes: so it is never all that decline.
  return seconds(rails[index]) <= std::max(waiting / std::max(rate, 1.0), soonest);
}

std::size_t window_of(double rate) noexcept {
  constexpr double seconds = 100e-6;
  constexpr double least = 1 << 20;
  constexpr double most = 2 << 20;
  return static_cast<std::size_t>(std::clamp(rate * seconds, least, most));
}

}  // namespace hmc::verbs
