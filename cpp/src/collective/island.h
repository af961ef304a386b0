// Island: ranks of one group whose links to one another are faster than those to other ranks. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace hmc {

struct Island {
  std::vector<std::uint32_t> ranks;  // ascending
  std::vector<double> bandwidths;    // by rank, of its link to other islands, bytes per second
};
// Of links that nothing is known of.
inline constexpr double assumed_border = 1e10;

}  // namespace hmc
