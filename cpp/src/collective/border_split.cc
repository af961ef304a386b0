#include "collective/border_split.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>

namespace hmc {

std::vector<double> split_by_bandwidth(std::span<const double> bandwidths) {
  const double all = std::accumulate(bandwidths.begin(), bandwidths.end(), 0.0);
  std::vector<double> parts;
  for (const double bandwidth : bandwidths) parts.push_back(bandwidth / all);
  return parts;
}

std::uint64_t ChunkLimits::least_over(double bandwidth) const {
  constexpr double worth = 4e-5;  // seconds on the link: several times what HMC and a network spend on a chunk of any size
  const double bytes = bandwidth * worth;
  if (!(bytes < static_cast<double>(fast))) return fast;
  return std::min(fast, std::max(slow, static_cast<std::uint64_t>(bytes)));
}

std::vector<double> without_noise(std::span<const double> bandwidths) {
  constexpr double noise = 1.15;  // from the slowest to the fastest of one kind
  std::vector<std::size_t> order(bandwidths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return bandwidths[i]; });
  std::vector<double> alike(bandwidths.size());
  for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    double sum = 0;
    for (end = begin; end < order.size() && bandwidths[order[end]] <= noise * bandwidths[order[begin]]; ++end)
      sum += bandwidths[order[end]];
    for (std::size_t i = begin; i < end; ++i) alike[order[i]] = sum / static_cast<double>(end - begin);
  }
  return alike;
}

bool use_measured_borders(std::span<const MeasuredLink> links, std::vector<Island>& islands) {
  std::map<int, std::size_t> island_of;  // by rank
  for (std::size_t i = 0; i < islands.size(); ++i) {
    for (const std::uint32_t rank : islands[i].ranks) island_of[static_cast<int>(rank)] = i;
  }
  std::map<std::pair<int, int>, double> across;
  for (const MeasuredLink& link : links) {
    if (island_of.at(link.source) != island_of.at(link.target)) across[{link.source, link.target}] = link.bandwidth;
  }
  std::vector<double> fastest(island_of.size());
  for (const auto& [ends, bandwidth] : across) {
    const auto back = across.find({ends.second, ends.first});
    double& known = fastest[static_cast<std::size_t>(ends.first)];
    if (back != across.end()) known = std::max(known, std::min(bandwidth, back->second));
  }
  if (std::ranges::find(fastest, 0.0) != fastest.end()) return false;
  const std::vector<double> alike = without_noise(fastest);
  for (Island& island : islands) {
    island.bandwidths.clear();
    for (const std::uint32_t rank : island.ranks) island.bandwidths.push_back(alike[rank]);
  }
  return true;
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
