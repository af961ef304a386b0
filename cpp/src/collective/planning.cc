#include "collective/planning.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <utility>

#include "collective/cost_bound.h"
#include "collective/fused/one_shot.h"
#include "collective/mapped/calls.h"

namespace hmc {
namespace {

constexpr std::uint64_t simulated_steps = 1 << 18;  // of all ranks together: a fraction of a second

// One way to carry out a call: what a plan says of it, and every rank's Schedule.
struct Carried {
  Choice choice;
  std::vector<Schedule> schedules;
  bool merged_chunks = false;  // schedules of other steps than the execution's, and fewer
};

bool all_on_host(const PlannedGroup& group) {
  return std::ranges::all_of(group.on_host, [](bool host) { return host; });
}

// The memory that the ranks may pass the call through.
Sharing sharing_of(const EqualCall& call, const PlannedGroup& group) {
  const bool host = all_on_host(group);
  const bool on_devices = std::ranges::none_of(group.on_host, [](bool on_host) { return on_host; });
  return {.cpu = group.may_fuse && fused::may_carry(call.kind) && host,
          .devices = group.may_map && fused::may_carry(call.kind) && on_devices && !call.exact,
          .library = !group.library.empty() && on_devices && !call.exact && !name_of(call.kind, Algorithm::native).empty()};
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

// Through mapped memory likewise.
Tuning mapped_tuning(const EqualCall& call, Tuning tuning) {
  const bool whole = call.bytes <= mapped::most_whole_bytes(call.size);
  tuning.reduce.whole = whole ? call.bytes * call.size : 0;
  tuning.reduce.chunk = tuning.spread.chunk = most_exchange_blocks * exchange_segment(call.size).slot;
  tuning.spread.tree = tuning.all_to_all.relay_block = 0;
  return tuning;
}

std::string how_it_maps(const EqualCall& call) {
  const bool whole = call.bytes <= mapped::most_whole_bytes(call.size);
  const std::string limit = (whole ? "at most " : "more than ") + bytes_text(mapped::most_whole_bytes(call.size));
  if (call.kind == CallKind::reduce_scatter) return " Each rank reduces its part.";
  if (reduces(call.kind) && whole) return " An input has " + limit + ", so it goes whole to each rank that wants the result.";
  if (reduces(call.kind)) return " An input has " + limit + ", so each rank reduces a part of it.";
  if (call.kind != CallKind::broadcast) return " Each rank writes its blocks into the others' memory.";
  if (call.size == 2 || whole) return " The root writes into the others' memory.";
  return " There are " + limit + ", so the root gives each of the others a part, which that one passes on.";
}

Choice mapped_choice(const EqualCall& call) {
  return {Algorithm::mapped, std::string(name_of(call.kind, Algorithm::mapped)),
          "All ranks are on one host, and their devices, of one vendor, may map each other's memory." + how_it_maps(call)};
}

// The library's own way is not known: as if each rank reduced a part, or sent its block to all.
Tuning library_tuning_of(Tuning tuning) {
  tuning.reduce.whole = 0;
  tuning.reduce.hierarchical = tuning.spread.hierarchical = every_size;
  return tuning;
}

Choice library_choice(const EqualCall& call, const PlannedGroup& group) {
  return {Algorithm::native, std::string(name_of(call.kind, Algorithm::native)),
          group.library +
              " spans all ranks: each has its own device, all of one vendor. Bytes and time are "
              "those of HMC's messages: the library's own way is not known."};
}

// Through shared slots the same bytes pass between the same ranks as by messages: in chunks, or whole inputs in one shot.
Tuning shared_tuning(const EqualCall& call, Tuning tuning, Algorithm algorithm) {
  const bool one_shot = algorithm == Algorithm::shared_whole;
  tuning.reduce.whole = one_shot ? call.bytes * call.size : 0;
  tuning.reduce.chunk = one_shot ? fused::shot_bytes : fused::Slots(nullptr, call.size).chunk();
  tuning.spread.tree = tuning.all_to_all.relay_block = 0;
  return tuning;
}

Schedule shared_schedule_of(const EqualCall& call, std::uint32_t rank, const Tuning& tuning, bool maps) {
  if (call.kind != CallKind::broadcast) return schedule_of(call, rank, tuning);
  if (maps && call.size > 2 && call.bytes > mapped::most_whole_bytes(call.size)) return schedule_of(call, rank, tuning);
  // Each rank reads the root's slots, or gets what it writes.
  std::vector<std::uint64_t> counts(call.size), displacements(call.size);
  counts[call.root] = call.bytes;
  return plan_all_gather_blocks(rank, call.size, {counts, displacements}, tuning.spread);
}

Choice shared_choice(const EqualCall& call, Algorithm algorithm) {
  const std::string name(name_of(call.kind, algorithm));
  const std::string why = std::string("All ranks are on one host, and ") +
                          (reduces(call.kind) ? "an input has " : "the blocks have ") + bytes_text(call.bytes) + ", ";
  const std::string limit = bytes_text(fused::most_in_one_shot(call.kind, call.size));
  if (algorithm == Algorithm::shared_whole)
    return {algorithm, name,
            why + "at most " + limit + ": one exchange costs less than " + (reduces(call.kind) ? "three." : "two.")};
  if (reduces(call.kind)) {
    return {algorithm, name + ", chunks of " + bytes_text(fused::Slots(nullptr, call.size).chunk()),
            why + "more than " + limit + ": each array is read and written once."};
  }
  return {
      algorithm,
      name + ", chunks of " + bytes_text(fused::spread_chunk(fused::Slots(nullptr, call.size), call.kind != CallKind::all_to_all)),
      why + "more than " + limit + ": copied twice in the caches they cost less than by messages."};
}

// By messages, unless `algorithm` is one over shared memory.
Carried carried_by(const EqualCall& call, const PlannedGroup& group, Algorithm algorithm) {
  Carried carried;
  for (std::uint32_t r = 0; r < call.size; ++r) {
    const bool staged = !group.staged.empty() && group.staged[r];
    Tuning tuning = tuning_for(group.on_host[r], staged, is_shared(algorithm) ? Algorithm::chosen : algorithm);
    if (call.kind == CallKind::broadcast) tuning.spread.chunk = broadcast_tuning(all_on_host(group)).chunk;
    tuning.reduce.islands = tuning.spread.islands = call.islands;
    const bool maps = algorithm == Algorithm::mapped, native = algorithm == Algorithm::native;
    const bool shared = is_shared(algorithm) && !native;
    if (native) tuning = library_tuning_of(tuning);
    if (shared) tuning = maps ? mapped_tuning(call, tuning) : shared_tuning(call, tuning, algorithm);
    if (r == 0) {
      carried.choice = native    ? library_choice(call, group)
                       : !shared ? choice_of(call, tuning)
                       : maps    ? mapped_choice(call)
                                 : shared_choice(call, algorithm);
    }
    const Tuning coarse = coarser(call, tuning, simulated_steps);
    carried.schedules.push_back(shared ? shared_schedule_of(call, r, coarse, maps) : schedule_of(call, r, coarse));
    const bool coarser = coarse.reduce.chunk != tuning.reduce.chunk || coarse.reduce.border_chunk != tuning.reduce.border_chunk ||
                         coarse.spread.chunk != tuning.spread.chunk || coarse.spread.border_chunk != tuning.spread.border_chunk;
    if (r == 0 && coarser && !is_shared(algorithm)) {
      const Schedule executed = schedule_of(call, r, tuning);
      carried.merged_chunks = !std::ranges::equal(executed.steps, carried.schedules[r].steps, {}, &Step::bytes, &Step::bytes);
    }
  }
  return carried;
}

// As HMC chooses.
Carried carried(const EqualCall& call, const PlannedGroup& group) {
  const Sharing sharing = sharing_of(call, group);
  if (sharing.devices && call.size > 1 && mapped::carries(call.kind, call.size, call.bytes))
    return carried_by(call, group, Algorithm::mapped);
  const bool shared =
      sharing.cpu && call.size > 1 && (reduces(call.kind) || fused::spreads_shared(call.kind, call.size, call.bytes));
  if (!shared) return carried_by(call, group, Algorithm::chosen);
  return carried_by(call, group,
                    fused::fits_one_shot(call.kind, call.size, call.bytes) ? Algorithm::shared_whole : Algorithm::shared_pass);
}

// What else HMC has for the call, besides what it chooses. Its text is empty if there is nothing.
Carried runner_up_of(const EqualCall& call, const PlannedGroup& group, const Choice& taken) {
  if (is_shared(taken.algorithm)) {
    Carried other = carried_by(call, group, Algorithm::chosen);
    other.choice.text = "by messages: " + other.choice.text;
    return other;
  }
  for (const Algorithm algorithm : algorithms_of(call, {})) {
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
  const Sharing sharing = sharing_of(call, group);
  HMC_ASSIGN(const Algorithm named, named_algorithm(call, algorithm, sharing));
  const Carried chosen = carried(call, group);
  Carried taken = chosen, other;
  if (named != Algorithm::chosen && named != chosen.choice.algorithm) {
    taken = carried_by(call, group, named);
    if (taken.choice.algorithm != named) taken.choice.text = name_of(call.kind, named);  // an empty call
    const std::string library = named == Algorithm::native ? taken.choice.reason + " " : "";
    taken.choice.reason = "It was named. " + library + "HMC chooses \"" + chosen.choice.text + "\". " + chosen.choice.reason;
    other = chosen;
  } else {
    other = runner_up_of(call, group, chosen.choice);
  }
  CostModel cost = group.cost;
  for (std::uint32_t r = 0; call.exact && r < call.size; ++r)
    cost.rank(r).reduction = exact_rate(cost.rank(r).reduction, call.element);
  CollectivePlan plan;
  HMC_ASSIGN(plan.seconds, predict(taken.schedules, cost));
  if (!std::isfinite(plan.seconds)) return Status(Code::invalid_argument, "plan: the figures make a time beyond all numbers");
  plan.call = name_of(call.kind);
  plan.bytes = call.bytes;
  plan.ranks = static_cast<int>(call.size);
  plan.algorithm = std::move(taken.choice.text);
  plan.reason = std::move(taken.choice.reason) + (taken.choice.algorithm == Algorithm::native ? "" : who_reduces(call, group)) +
                exactness_text(call, group.cost);
  if (!group.no_library.empty() && call.size > 1 && !name_of(call.kind, Algorithm::native).empty())
    plan.reason += " " + group.no_library;
  plan.algorithms = algorithm_names(call, sharing);
  for (const PairTraffic& pair : traffic_of(taken.schedules)) {
    const LinkCost& link = cost.link(pair.from, pair.to);
    plan.links.push_back({static_cast<int>(pair.from), static_cast<int>(pair.to), pair.bytes, link.latency * 1e6, link.bandwidth,
                          group.basis ? group.basis(pair.from, pair.to) : "given"});
  }
  plan.lower_bound = lower_bound(call.kind, call.bytes, call.root, cost);
  plan.element = reduces(call.kind) ? call.element : 0;
  plan.schedules = std::make_shared<const PlannedSchedules>(PlannedSchedules{
      std::move(taken.schedules), taken.merged_chunks, !is_shared(taken.choice.algorithm), algorithm_names(call, {})});
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
                  .figures = "assumed, not measured: all ranks and links alike"},
                 options.algorithm);
}

}  // namespace hmc
