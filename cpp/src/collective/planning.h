// The CollectivePlan of a call over links of given cost. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "collective/choose.h"
#include "collective/cost.h"
#include "hmc/plan.h"

namespace hmc {

inline constexpr std::uint32_t max_planned_ranks = 256;  // all pairs of more take seconds

// What CollectivePlan::schedule() tells of.
struct PlannedSchedules {
  std::vector<Schedule> by_rank;
  bool merged_chunks = false;         // fewer steps than the execution has: the same bytes go the same way
  bool by_messages = true;            // else they stand for what passes through shared or mapped memory
  std::vector<std::string> messages;  // names of the algorithms by messages that can carry out the call
};

// What the ranks of a group are, as far as their Schedules depend on it, and what it costs.
struct PlannedGroup {
  CostModel cost;
  std::vector<bool> on_host;      // by rank: its buffers are CPU memory
  std::vector<bool> staged = {};  // by rank: the CPU reduces its device memory
  bool may_fuse = false;          // reductions of CPU memory, over shared memory
  bool may_map = false;           // those of device memory, over mapped memory
  std::string library = {};       // "NCCL 2.27.3": may carry calls out; empty: none may
  std::string no_library = {};    // why it does not, as a sentence; empty: it does, or no matter
  std::function<std::string(std::uint32_t, std::uint32_t)> basis = {};  // of a link's figures
  std::string figures = {};                                             // CollectivePlan::figures
};

// Bytes of inputs per second that a rank reduces in an exact call, where it reduces `rate` of others. Measured with AVX2: an
// element of 32 or 64 bits takes 0.5 ns more, a narrower one 1 ns.
[[nodiscard]] constexpr double exact_rate(double rate, std::size_t element) noexcept {
  return 1 / (1 / rate + (element < 4 ? 1e-9 : 5e-10) / static_cast<double>(element));
}

// Of the call of that name. Errors: invalid_argument, unsupported (too many ranks).
Result<EqualCall> equal_call(std::string_view name, std::uint64_t bytes, const PlanOptions& options, std::uint32_t size);
// `algorithm`: the name of one; empty: as the call chooses. Errors: invalid_argument, one that cannot carry out the call.
Result<CollectivePlan> plan_of(const EqualCall& call, const PlannedGroup& group, std::string_view algorithm = {});

}  // namespace hmc
