// How the planners are tuned for where the memory is: for the execution and for plan() alike.
#pragma once

#include "collective/plan.h"
#include "collective/plan_reduce.h"
#include "collective/plan_spread.h"
#include "hmc/peer.h"

namespace hmc {

[[nodiscard]] inline bool on_host(const MemoryView& out, const MemoryView& in) noexcept {
  return out.device.is_cpu() && in.device.is_cpu();
}

// `host`: both buffers of the call are CPU memory. Other memory is moved by messages, also within a rank.
[[nodiscard]] inline AllToAllTuning all_to_all_tuning(bool host) {
  AllToAllTuning tuning;
  if (!host) tuning.inline_copy = 0;
  return tuning;
}
// `staged`: device memory that the CPU reduces.
[[nodiscard]] inline ReduceTuning reduce_tuning(bool staged) {
  ReduceTuning tuning;
  tuning.staged = staged;
  return tuning;
}
// `in_place`: the rank's own block is where it belongs.
[[nodiscard]] inline SpreadTuning spread_tuning(bool host, bool in_place) {
  SpreadTuning tuning;
  if (!host) tuning.inline_copy = 0;
  tuning.in_place = in_place;
  return tuning;
}

}  // namespace hmc
