#include "collective/border_split.h"

#include <algorithm>
#include <numeric>

namespace hmc {

std::vector<double> split_by_bandwidth(std::span<const double> bandwidths) {
  const double all = std::accumulate(bandwidths.begin(), bandwidths.end(), 0.0);
  std::vector<double> parts;
  for (const double bandwidth : bandwidths) parts.push_back(bandwidth / all);
  return parts;
}

std::vector<double> split_among_islands(std::span<const double> bandwidths) {
  const auto islands = static_cast<double>(bandwidths.size());
  if (islands <= 2) return split_by_bandwidth(bandwidths);
  const double all = std::accumulate(bandwidths.begin(), bandwidths.end(), 0.0);
  const double slowest = *std::ranges::min_element(bandwidths);
  // Times of the exchange per byte of the buffer: all islands end together, or the slowest one, without a part, ends last.
  const double time = std::max(2 * (islands - 1) / all, 1 / slowest);
  std::vector<double> parts;
  for (const double bandwidth : bandwidths) parts.push_back(std::max(0.0, (time * bandwidth - 1) / (islands - 2)));
  const double given = std::accumulate(parts.begin(), parts.end(), 0.0);  // more than 1 where the slowest one ends last
  for (double& part : parts) part /= given;
  return parts;
}

}  // namespace hmc
