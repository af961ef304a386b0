#include "collective/planning.h"

#include <algorithm>
#include <utility>

#include "collective/cost_bound.h"
#include "collective/fused/one_shot.h"

namespace hmc {
namespace {

constexpr std::uint64_t simulated_steps = 1 << 18;  // of all ranks together: a fraction of a second

using Tunings = std::vector<Tuning>;  // by rank

std::vector<Schedule> schedules_of(const EqualCall& call, const Tunings& tunings) {
  std::vector<Schedule> all;
  for (std::uint32_t r = 0; r < call.size; ++r) all.push_back(schedule_of(call, r, coarser(call, tunings[r], simulated_steps)));
  return all;
}

Result<std::optional<PlannedAlternative>> runner_up_of(const EqualCall& call, Tunings tunings, const CostModel& cost) {
  for (Tuning& tuning : tunings) {
    const auto other = other_tuning(call, tuning);
    if (!other) return std::optional<PlannedAlternative>();
    tuning = *other;
  }
  HMC_ASSIGN(const double seconds, predict(schedules_of(call, tunings), cost));
  return std::optional(PlannedAlternative{choice_of(call, tunings.front()).algorithm, seconds});
}

// Through shared slots the same bytes pass between the same ranks as by messages: in chunks, or whole inputs in one shot.
bool is_fused(const EqualCall& call, const PlannedGroup& group) {
  return group.may_fuse && reduces(call.kind) && std::ranges::all_of(group.on_host, [](bool host) { return host; });
}

// Of device memory.
std::string who_reduces(const EqualCall& call, const PlannedGroup& group) {
  const auto devices = std::ranges::count(group.on_host, false);
  if (!reduces(call.kind) || devices == 0) return "";
  const auto by_cpu = std::ranges::count(group.staged, true);
  if (by_cpu == 0) return " The devices reduce their ranks' parts.";
  if (by_cpu == devices) return " The CPU reduces device memory, staged through host memory.";
  return " " + std::to_string(devices - by_cpu) + " devices reduce their ranks' parts; the CPU reduces those of the other " +
         std::to_string(by_cpu) + ", staged through host memory.";
}

Tuning fused_tuning(const EqualCall& call, Tuning tuning) {
  const bool one_shot = fused::in_one_shot(call.bytes, call.size);
  tuning.reduce.whole = one_shot ? call.bytes * call.size : 0;
  tuning.reduce.chunk = one_shot ? fused::shot_bytes : fused::Slots(nullptr, call.size).chunk();
  return tuning;
}

Choice fused_choice(const EqualCall& call) {
  const std::string why = "All ranks are on one host, and an input has " + bytes_text(call.bytes) + ", ";
  const std::string limit = bytes_text(fused::shot_bytes / (call.size - 1));
  if (fused::in_one_shot(call.bytes, call.size))
    return {"whole inputs through shared memory", why + "at most " + limit + ": one exchange costs less than three."};
  return {"one pass over shared memory, chunks of " + bytes_text(fused::Slots(nullptr, call.size).chunk()),
          why + "more than " + limit + ": each array is read and written once."};
}

}  // namespace

Result<EqualCall> equal_call(std::string_view name, std::uint64_t bytes, const PlanOptions& options, std::uint32_t size) {
  HMC_ASSIGN(const CallKind kind, equal_call_kind(name));
  if (size > max_planned_ranks) {
    return Status(Code::unsupported, "plan of " + std::string(name) + " among " + std::to_string(size) +
                                         " ranks: it covers up to " + std::to_string(max_planned_ranks) + " ranks");
  }
  // A negative root is no rank either.
  const EqualCall call{kind, size, bytes, size_of(options.type), static_cast<std::uint32_t>(options.root)};
  HMC_TRY(check_call(call));
  return call;
}

Result<CollectivePlan> plan_of(const EqualCall& call, const PlannedGroup& group) {
  Tunings tunings;
  for (std::uint32_t r = 0; r < call.size; ++r)
    tunings.push_back(tuning_for(group.on_host[r], !group.staged.empty() && group.staged[r]));
  const Tunings by_messages = tunings;
  const bool fused = is_fused(call, group);
  if (fused) {
    for (Tuning& tuning : tunings) tuning = fused_tuning(call, tuning);
  }
  const auto schedules = schedules_of(call, tunings);
  CollectivePlan plan;
  HMC_ASSIGN(plan.seconds, predict(schedules, group.cost));
  auto [algorithm, reason] = fused ? fused_choice(call) : choice_of(call, tunings.front());
  plan.call = name_of(call.kind);
  plan.bytes = call.bytes;
  plan.ranks = static_cast<int>(call.size);
  plan.algorithm = std::move(algorithm);
  plan.reason = std::move(reason) + who_reduces(call, group);
  for (const PairTraffic& pair : traffic_of(schedules)) {
    const LinkCost& link = group.cost.link(pair.from, pair.to);
    plan.links.push_back({static_cast<int>(pair.from), static_cast<int>(pair.to), pair.bytes, link.latency * 1e6, link.bandwidth,
                          group.basis ? group.basis(pair.from, pair.to) : "given"});
  }
  plan.lower_bound = lower_bound(call.kind, call.bytes, call.root, group.cost);
  if (fused) {
    HMC_ASSIGN(const double seconds, predict(schedules_of(call, by_messages), group.cost));
    plan.runner_up = PlannedAlternative{"by messages: " + choice_of(call, by_messages.front()).algorithm, seconds};
  } else {
    HMC_ASSIGN(plan.runner_up, runner_up_of(call, std::move(tunings), group.cost));
  }
  plan.figures = group.figures;
  return plan;
}

Result<CollectivePlan> plan_collective(std::string_view call, std::uint64_t bytes, const UniformLinks& links,
                                       const PlanOptions& options) {
  if (links.ranks < 1)
    return Status(Code::invalid_argument, "plan: " + std::to_string(links.ranks) + " ranks; a group has at least 1");
  const auto size = static_cast<std::uint32_t>(links.ranks);
  HMC_ASSIGN(const EqualCall planned, equal_call(call, bytes, options, size));
  const RankCost rank{.injection = links.injection == 0 ? links.bandwidth : links.injection,
                      .reduction = links.reduction,
                      .overhead = links.overhead};
  return plan_of(planned, {.cost = CostModel(size, {links.latency, links.bandwidth}, rank),
                           .on_host = std::vector<bool>(size, true),
                           .figures = "given: all ranks and links alike"});
}

}  // namespace hmc
