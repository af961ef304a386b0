#include "collective/planning.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "collective/cost_bound.h"
#include "collective/fused/one_shot.h"

namespace hmc {
namespace {

constexpr std::uint64_t simulated_steps = 1 << 18;  // of all ranks together: a fraction of a second

// One way to carry out a call: what a plan says of it, and every rank's Schedule.
struct Carried {
  Choice choice;
  std::vector<Schedule> schedules;
};

bool all_on_host(const PlannedGroup& group) {
  return std::ranges::all_of(group.on_host, [](bool host) { return host; });
}

// Whether the ranks may pass the call through shared memory.
bool is_shareable(const EqualCall& call, const PlannedGroup& group) {
  return group.may_fuse && reduces(call.kind) && all_on_host(group);
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

std::string exactness_text(const EqualCall& call, const CostModel& cost) {
  if (!call.exact || call.size == 1) return "";
  const double rate = cost.rank(0).reduction;
  char text[128];
  std::snprintf(text, sizeof text, " Exact: each sum is rounded once; a rank reduces %.3g GB/s of inputs, not %.3g.",
                exact_rate(rate, call.element) / 1e9, rate / 1e9);
  return text;
}

// Through shared slots the same bytes pass between the same ranks as by messages: in chunks, or whole inputs in one shot.
Tuning shared_tuning(const EqualCall& call, Tuning tuning, Algorithm algorithm) {
  const bool one_shot = algorithm == Algorithm::shared_whole;
  tuning.reduce.whole = one_shot ? call.bytes * call.size : 0;
  tuning.reduce.chunk = one_shot ? fused::shot_bytes : fused::Slots(nullptr, call.size).chunk();
  return tuning;
}

Choice shared_choice(const EqualCall& call, Algorithm algorithm) {
  const std::string name(name_of(call.kind, algorithm));
  const std::string why = "All ranks are on one host, and an input has " + bytes_text(call.bytes) + ", ";
  const std::string limit = bytes_text(fused::shot_bytes / (call.size - 1));
  if (algorithm == Algorithm::shared_whole)
    return {algorithm, name, why + "at most " + limit + ": one exchange costs less than three."};
  return {algorithm, name + ", chunks of " + bytes_text(fused::Slots(nullptr, call.size).chunk()),
          why + "more than " + limit + ": each array is read and written once."};
}

// By messages, unless `algorithm` is one over shared memory.
Carried carried_by(const EqualCall& call, const PlannedGroup& group, Algorithm algorithm) {
  Carried carried;
  for (std::uint32_t r = 0; r < call.size; ++r) {
    const bool staged = !group.staged.empty() && group.staged[r];
    Tuning tuning = tuning_for(group.on_host[r], staged, is_shared(algorithm) ? Algorithm::chosen : algorithm);
    tuning.reduce.islands = tuning.spread.islands = call.islands;
    if (is_shared(algorithm)) tuning = shared_tuning(call, tuning, algorithm);
    if (r == 0) carried.choice = is_shared(algorithm) ? shared_choice(call, algorithm) : choice_of(call, tuning);
    carried.schedules.push_back(schedule_of(call, r, coarser(call, tuning, simulated_steps)));
  }
  return carried;
}

// As HMC chooses.
Carried carried(const EqualCall& call, const PlannedGroup& group) {
  if (!is_shareable(call, group)) return carried_by(call, group, Algorithm::chosen);
  return carried_by(call, group, fused::in_one_shot(call.bytes, call.size) ? Algorithm::shared_whole : Algorithm::shared_pass);
}

// What else HMC has for the call, besides what it chooses. Its text is empty if there is nothing.
Carried runner_up_of(const EqualCall& call, const PlannedGroup& group, const Choice& taken) {
  if (is_shared(taken.algorithm)) {
    Carried other = carried_by(call, group, Algorithm::chosen);
    other.choice.text = "by messages: " + other.choice.text;
    return other;
  }
  for (const Algorithm algorithm : algorithms_of(call, false)) {
    if (algorithm == taken.algorithm) continue;
    Carried other = carried_by(call, group, algorithm);
    if (other.choice.algorithm != taken.algorithm) return other;  // an empty call goes one way
  }
  return {};
}

}  // namespace

Result<EqualCall> equal_call(std::string_view name, std::uint64_t bytes, const PlanOptions& options, std::uint32_t size) {
  HMC_ASSIGN(const CallKind kind, equal_call_kind(name));
  if (size > max_planned_ranks) {
    return Status(Code::unsupported, "plan of " + std::string(name) + " among " + std::to_string(size) +
                                         " ranks: it covers up to " + std::to_string(max_planned_ranks) + " ranks");
  }
  // A negative root is no rank either.
  if (options.exact && !reduces(kind)) {
    return Status(Code::invalid_argument, "plan of " + std::string(name) + ": exact belongs to calls that reduce");
  }
  const EqualCall call{kind,
                       size,
                       bytes,
                       size_of(options.type),
                       static_cast<std::uint32_t>(options.root),
                       options.exact && is_floating(options.type)};
  HMC_TRY(check_call(call));
  return call;
}

Result<CollectivePlan> plan_of(const EqualCall& call, const PlannedGroup& group, std::string_view algorithm) {
  const bool shareable = is_shareable(call, group);
  HMC_ASSIGN(const Algorithm named, named_algorithm(call, algorithm, shareable));
  const Carried chosen = carried(call, group);
  Carried taken = chosen, other;
  if (named != Algorithm::chosen && named != chosen.choice.algorithm) {
    taken = carried_by(call, group, named);
    if (taken.choice.algorithm != named) taken.choice.text = name_of(call.kind, named);  // an empty call
    taken.choice.reason = "It was named. HMC chooses \"" + chosen.choice.text + "\". " + chosen.choice.reason;
    other = chosen;
  } else {
    other = runner_up_of(call, group, chosen.choice);
  }
  CostModel cost = group.cost;
  for (std::uint32_t r = 0; call.exact && r < call.size; ++r)
    cost.rank(r).reduction = exact_rate(cost.rank(r).reduction, call.element);
  CollectivePlan plan;
  HMC_ASSIGN(plan.seconds, predict(taken.schedules, cost));
  plan.call = name_of(call.kind);
  plan.bytes = call.bytes;
  plan.ranks = static_cast<int>(call.size);
  plan.algorithm = std::move(taken.choice.text);
  plan.reason = std::move(taken.choice.reason) + who_reduces(call, group) + exactness_text(call, group.cost);
  plan.algorithms = algorithm_names(call, shareable);
  for (const PairTraffic& pair : traffic_of(taken.schedules)) {
    const LinkCost& link = cost.link(pair.from, pair.to);
    plan.links.push_back({static_cast<int>(pair.from), static_cast<int>(pair.to), pair.bytes, link.latency * 1e6, link.bandwidth,
                          group.basis ? group.basis(pair.from, pair.to) : "given"});
  }
  plan.lower_bound = lower_bound(call.kind, call.bytes, call.root, cost);
  if (!other.choice.text.empty()) {
    HMC_ASSIGN(const double seconds, predict(other.schedules, cost));
    plan.runner_up = PlannedAlternative{other.choice.text, seconds};
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
  return plan_of(planned,
                 {.cost = CostModel(size, {links.latency, links.bandwidth}, rank),
                  .on_host = std::vector<bool>(size, true),
                  .figures = "given: all ranks and links alike"},
                 options.algorithm);
}

}  // namespace hmc
