#include "transport/verbs/split.h"

#include <algorithm>
#include <limits>

namespace hmc::verbs {

bool takes_chunk(std::span<const LaneLoad> lanes, std::size_t index, std::size_t chunk, std::size_t left) noexcept {
  const bool any_near = std::ranges::any_of(lanes, &LaneLoad::near);
  const auto seconds = [&](const LaneLoad& lane) {
    const double alone = static_cast<double>(lane.under_way + chunk) / std::max(lane.rate, 1.0);
    return any_near && !lane.near ? 2 * alone : alone;
  };
  double rate = 0;  // of the others together
  double waiting = static_cast<double>(left);
  double soonest = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    if (i == index) continue;
    rate += lanes[i].rate;
    waiting += static_cast<double>(lanes[i].under_way);
    soonest = std::min(soonest, seconds(lanes[i]));
  }
  // The lane that would be through soonest always takes: so it is never all that decline.
  return seconds(lanes[index]) <= std::max(waiting / std::max(rate, 1.0), soonest);
}

std::size_t window_of(double rate) noexcept {
  constexpr double seconds = 100e-6;
  constexpr double least = 1 << 20;
  constexpr double most = 2 << 20;
  return static_cast<std::size_t>(std::clamp(rate * seconds, least, most));
}

}  // namespace hmc::verbs
