// Which of several lanes takes the next piece of an operation.
#pragma once

#include <cstddef>
#include <span>

namespace hmc::verbs {

struct LaneLoad {
  double rate = 0;            // measured, bytes per second; before that what the ports say
  std::size_t under_way = 0;  // bytes
  bool near = true;           // its card is on the memory's side of the host
};

// Should lane `index` take `chunk` bytes of the `left` that an operation has to go? Not when the others would be through with all
// of them sooner; a far lane counts for half where there are near ones. Every lane asks when it has room, so faster ones take more.
[[nodiscard]] bool takes_chunk(std::span<const LaneLoad> lanes, std::size_t index, std::size_t chunk, std::size_t left) noexcept;

// Bytes under way on a lane of that rate: enough to keep it busy, so few that a short message does not wait long behind them.
[[nodiscard]] std::size_t window_of(double rate) noexcept;

}  // namespace hmc::verbs
