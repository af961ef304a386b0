// Island: ranks of one group whose links to one another are faster than those to other ranks. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hmc {

struct Island {
  std::vector<std::uint32_t> ranks;  // ascending
  // By rank, of its link to other islands; only their proportions count, among all islands. Positive.
  std::vector<double> bandwidths;
};

// More have too many pieces for the rounds of a Schedule.
inline constexpr std::size_t most_islands = 64;

// Whether a hierarchy saves bytes between islands: there are several, one of which has several ranks.
[[nodiscard]] inline bool has_hierarchy(std::span<const Island> islands) noexcept {
  return islands.size() > 1 && islands.size() <= most_islands &&
         std::ranges::any_of(islands, [](const Island& island) { return island.ranks.size() > 1; });
}

}  // namespace hmc
