// Which of several rails takes the next piece of an operation.
#pragma once

#include <cstddef>
#include <span>

namespace hmc::verbs {

struct RailLoad {
  double rate = 0;            // measured, bytes per second; before that what the ports say
  std::size_t in_flight = 0;  // bytes
  bool near = true;           // its card is on the memory's side of the host
  std::size_t passed = 0;     // bytes that the others have carried since it last carried a piece
};

// Should rail `index` take `chunk` bytes of the `left` that an operation has to go? Not when the others would be through with all
// of them sooner; a far rail counts for half where there are near ones. Every rail asks when it has room, so faster ones take more.
// A rail that would always decline takes a piece now and then, so that its rate is measured again: rates of the past may be wrong.
// Such pieces cost about a hundredth of the time.
[[nodiscard]] bool takes_chunk(std::span<const RailLoad> rails, std::size_t index, std::size_t chunk, std::size_t left) noexcept;

// Bytes under way on a rail of that rate: enough to keep it busy, so few that a short message does not wait long behind them.
[[nodiscard]] std::size_t window_of(double rate) noexcept;

}  // namespace hmc::verbs
