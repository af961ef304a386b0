// Island: ranks of one group whose links to one another are faster than those to other ranks. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace hmc {

struct Island {
  std::vector<std::uint32_t> ranks;  // ascending
  // By rank, of its link to other islands; only their proportions count, among all islands. Positive.
  std::vector<double> bandwidths;
};

}  // namespace hmc
