// Which part of an exchange between islands each island and each border link takes. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collective/island.h"
#include "hmc/measurement.h"

namespace hmc {

// Parts of 1 in proportion to `bandwidths`, which are positive: all links end at the same time.
std::vector<double> split_by_bandwidth(std::span<const double> bandwidths);

// The least size of a chunk that crosses a border, in bytes.
struct ChunkLimits {
  std::uint64_t fast = 0;  // over links so fast that the fixed cost of a chunk counts, and over unknown ones
  std::uint64_t slow = 0;  // over all others, where a small one is soon across: its receiver goes on while the next one follows
  // `bandwidth`: of the link, bytes per second.
  [[nodiscard]] std::uint64_t least_over(double bandwidth) const;
};

// Replaces measured `bandwidths` that differ by no more than repeated measurements do by their mean. With equal parts, messages are
// cut into fewer pieces.
std::vector<double> without_noise(std::span<const double> bandwidths);

// Gives each rank the bandwidth of its fastest measured link to another island, in the slower direction, without_noise(). False,
// and nothing is changed: a rank has no such link in both directions. `links`: between ranks of the islands, which are 0 to n - 1.
bool use_measured_borders(std::span<const MeasuredLink> links, std::vector<Island>& islands);

// The part of the elements that each of at least two islands reduces for all, so that an exchange (all_reduce among islands) takes
// least. Island i with part s sends and receives 1 + (islands - 2) * s times the buffer: what others reduce, and its own results.
std::vector<double> split_among_islands(std::span<const double> bandwidths);

}  // namespace hmc
