// How the planners are tuned for where the memory is: for the execution and for plan() alike.
#pragma once

#include <limits>

#include "collective/algorithm.h"
#include "collective/plan.h"
#include "collective/plan_reduce.h"
#include "collective/plan_spread.h"
#include "hmc/peer.h"

namespace hmc {

[[nodiscard]] inline bool on_host(const MemoryView& out, const MemoryView& in) noexcept {
  return out.device.is_cpu() && in.device.is_cpu();
}

// With `algorithm`, which is able to carry out the call, the planners take that one for all sizes but 0.
inline constexpr std::uint64_t every_size = std::numeric_limits<std::uint64_t>::max();

// `host`: both buffers of the call are CPU memory. Other memory is moved by messages, also within a rank.
[[nodiscard]] inline AllToAllTuning all_to_all_tuning(bool host, Algorithm algorithm = Algorithm::chosen) {
  AllToAllTuning tuning;
  if (algorithm == Algorithm::direct || is_shared(algorithm)) tuning.relay_block = 0;
  if (algorithm == Algorithm::relayed) tuning.relay_block = every_size;
  if (algorithm == Algorithm::relayed) tuning.relay_ranks = 3;
  if (!host) tuning.inline_copy = 0;
  return tuning;
}
// `staged`: device memory that the CPU reduces.
[[nodiscard]] inline ReduceTuning reduce_tuning(bool staged, Algorithm algorithm = Algorithm::chosen) {
  ReduceTuning tuning;
  if (algorithm == Algorithm::whole) tuning.whole = every_size;
  if (algorithm == Algorithm::divided) tuning.whole = 0;
  if (algorithm != Algorithm::chosen) tuning.hierarchical = algorithm == Algorithm::hierarchical ? 0 : every_size;
  tuning.staged = staged;
  return tuning;
}
// `in_place`: the rank's own block is where it belongs.
[[nodiscard]] inline SpreadTuning spread_tuning(bool host, bool in_place, Algorithm algorithm = Algorithm::chosen) {
  SpreadTuning tuning;
  if (algorithm == Algorithm::tree) tuning.tree = every_size;
  if (algorithm == Algorithm::divided || algorithm == Algorithm::direct) tuning.tree = 0;
  if (algorithm != Algorithm::chosen) tuning.hierarchical = algorithm == Algorithm::hierarchical ? 0 : every_size;
  if (!host) tuning.inline_copy = 0;
  tuning.in_place = in_place;
  return tuning;
}

// Of a broadcast. `host`: all Members are CPUs. To and from devices a message costs as much as some hundred KiB.
[[nodiscard]] inline SpreadTuning broadcast_tuning(bool host, Algorithm algorithm = Algorithm::chosen) {
  constexpr std::uint64_t chunk_of_devices = 4 << 20;
  SpreadTuning tuning = spread_tuning(true, true, algorithm);
  if (!host) tuning.chunk = chunk_of_devices;
  return tuning;
}

}  // namespace hmc
