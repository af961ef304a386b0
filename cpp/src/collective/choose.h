// A collective of equal blocks as every rank makes it: which algorithm it takes, why, and every rank's Schedule. Pure.
//
// The planners choose; this asks them, and says what they chose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "collective/algorithm.h"
#include "collective/call.h"
#include "collective/tuning.h"
#include "hmc/status.h"

namespace hmc {

struct EqualCall {
  CallKind kind = CallKind::barrier;
  std::uint32_t size = 1;   // ranks
  std::uint64_t bytes = 0;  // of a rank's largest buffer in the call: what blocks there are, together
  std::size_t element = 1;  // bytes, of calls that reduce
  std::uint32_t root = 0;   // of calls that have one
  bool exact = false;       // of calls that reduce floating types: sums are rounded once
  // Of a group that has_hierarchy(), in calls that are not exact; else null.
  std::shared_ptr<const std::vector<Island>> islands = nullptr;
};

struct Tuning {
  AllToAllTuning all_to_all;
  ReduceTuning reduce;
  SpreadTuning spread;
};
// `staged`: of reduce_tuning().
[[nodiscard]] Tuning tuning_for(bool host, bool staged, Algorithm algorithm = Algorithm::chosen);

// By name. Errors: invalid_argument, naming the calls that there are.
Result<CallKind> equal_call_kind(std::string_view name);
// Errors: invalid_argument: sizes that are not whole blocks or elements, or more than 2^62 bytes among all ranks; no such root.
Status check_call(const EqualCall& call);

// ---- of a call that check_call() accepts ----
Schedule schedule_of(const EqualCall& call, std::uint32_t rank, const Tuning& tuning);
// "binomial tree, chunks of 256 KiB" if the ranks' Schedules have any, and why it is taken, as a sentence.
struct Choice {
  Algorithm algorithm = Algorithm::chosen;
  std::string text;
  std::string reason;
};
Choice choice_of(const EqualCall& call, const Tuning& tuning);
// With chunks so large that the ranks' Schedules have at most about `steps` together, if they can: the same bytes go the same way.
Tuning coarser(const EqualCall& call, Tuning tuning, std::uint64_t steps);

// "256 KiB", "1.5 GiB", "1 byte"
std::string bytes_text(std::uint64_t bytes);

}  // namespace hmc
