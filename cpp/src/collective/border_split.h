// Which part of an exchange between islands each island and each border link takes. Pure.
#pragma once

#include <span>
#include <vector>

namespace hmc {

// Parts of 1 in proportion to `bandwidths`, which are positive: all links end at the same time.
std::vector<double> split_by_bandwidth(std::span<const double> bandwidths);

// The part of the elements that each of at least two islands reduces for all, so that an exchange (all_reduce among islands) takes
// least. Island i with part s sends and receives 1 + (islands - 2) * s times the buffer: what others reduce, and its own results.
std::vector<double> split_among_islands(std::span<const double> bandwidths);

}  // namespace hmc
