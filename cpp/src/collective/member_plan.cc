// plan() and islands() of Member and Communicator: what the group knows of its links, without asking other ranks.
#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "collective/device_reducer.h"
#include "collective/member_calls.h"
#include "collective/native/calls.h"
#include "collective/places.h"
#include "collective/planning.h"
#include "comm/peer_state.h"
#include "comm/routing/peer_routes.h"

namespace hmc {
namespace {

// Where nothing is known. Of links: what `local`, `shm`, `staging` and `tcp` expect of themselves.
constexpr LinkCost same_process_default{1e-7, 10e9}, same_host_default{2e-7, 10e9}, same_host_device_default{2e-5, 5e9},
    between_hosts_default{1e-5, 3e9};
// Of ranks: one thread that reduces f32 in memory, and what posting a message and its completion take.
constexpr double reduction_default = 10e9, overhead_default = 5e-7;

enum class Basis : std::uint8_t { measured, path, topology, alike, fallback };
constexpr std::array basis_names{"measured", "path", "topology", "alike", "default"};

// Latency and bandwidth of every link of a group, and what they rest on.
class LinkSurvey {
 public:
  // `staged`: by rank, it reduces its device memory in host memory. `measured`: may be null.
  LinkSurvey(const Group& group, std::vector<bool> staged, const Measurement* measured)
      : group_(group),
        staged_(std::move(staged)),
        measured_(measured),
        hosts_(hosts_of(group)),
        cards_(written_cards(group)),
        basis_(std::size_t{group.size()} * group.size(), Basis::fallback) {}

  CostModel take() {
    CostModel cost(group_.size(), same_process_default, {.reduction = reduction_default, .overhead = overhead_default});
    {
      const auto lock = group_.engine()->lock();
      for (const std::uint32_t rank : group_.local()) ask_paths(rank, cost);
    }
    for (std::uint32_t from = 0; from < group_.size(); ++from) {
      for (std::uint32_t to = 0; to < group_.size(); ++to) {
        if (basis(from, to) == Basis::fallback) assume(from, to, cost);
        if (from != to) overlay_written(from, to, cost);
      }
    }
    if (measured_ != nullptr) overlay_measured(cost);
    // A rank moves its messages with one thread or one card: the fastest of its links takes all of it.
    for (std::uint32_t from = 0; group_.size() > 1 && from < group_.size(); ++from) {
      double most = 0;
      for (std::uint32_t to = 0; to < group_.size(); ++to) {
        if (to != from) most = std::max({most, cost.link(from, to).bandwidth, cost.link(to, from).bandwidth});
      }
      cost.rank(from).injection = most;
    }
    return cost;
  }
  [[nodiscard]] Basis& basis(std::uint32_t from, std::uint32_t to) { return basis_[std::size_t{from} * group_.size() + to]; }

 private:
  // Same process, same host, and the vendors at the two ends: links of one class are alike.
  using Class = std::tuple<bool, bool, std::string, std::string>;

  [[nodiscard]] std::pair<Device, Device> ends(std::uint32_t from, std::uint32_t to) const {
    const Device source = group_.rank(from).device, target = group_.rank(to).device;
    const bool through_host = staged_[to] && !source.is_cpu() && !target.is_cpu();
    return {source, through_host ? Device::cpu() : target};
  }
  [[nodiscard]] Class class_of(std::uint32_t from, std::uint32_t to) const {
    const auto [source, target] = ends(from, to);
    return {group_.rank(from).process == group_.rank(to).process, hosts_[from] == hosts_[to], std::string(source.vendor()),
            std::string(target.vendor())};
  }

  // Of the links between a rank of this process and those that it is connected with; both directions are taken to be alike.
  void ask_paths(std::uint32_t rank, CostModel& cost) {
    for (std::uint32_t to = 0; to < group_.size(); ++to) {
      PeerState& peer = *group_.rank(to).peer;
      if (!peer.is_self() && peer.phase() != PeerPhase::ready) continue;
      const auto [source, target] = ends(rank, to);
      std::vector<std::string> rejected;
      const auto candidates = peer.routes().rank(source, target, peer.routes().buffers_only(source, target), rejected);
      if (candidates.empty() || !(candidates.front().reach.bandwidth > 0)) continue;
      const LinkCost found{std::max(0.0, candidates.front().reach.latency_us * 1e-6), candidates.front().reach.bandwidth};
      for (const auto& [a, b] : {std::pair(rank, to), std::pair(to, rank)}) {
        cost.link(a, b) = found;
        basis(a, b) = Basis::path;
        LinkCost& slowest = known_.emplace(class_of(a, b), found).first->second;
        slowest = {std::max(slowest.latency, found.latency), std::min(slowest.bandwidth, found.bandwidth)};
      }
    }
  }

  void assume(std::uint32_t from, std::uint32_t to, CostModel& cost) {
    if (const auto alike = known_.find(class_of(from, to)); alike != known_.end()) {
      cost.link(from, to) = alike->second;
      basis(from, to) = Basis::alike;
      return;
    }
    const auto [source, target] = ends(from, to);
    const bool one_process = group_.rank(from).process == group_.rank(to).process;
    cost.link(from, to) = hosts_[from] != hosts_[to]             ? between_hosts_default
                          : !source.is_cpu() || !target.is_cpu() ? same_host_device_default
                          : one_process                          ? same_process_default
                                                                 : same_host_default;
  }

  void overlay_written(std::uint32_t from, std::uint32_t to, CostModel& cost) {
    if (cards_[from] == nullptr || cards_[to] == nullptr) return;
    const Topology& written = *group_.world()->written();
    const TopologyLink* link = written.link(cards_[from]->name, cards_[to]->name);
    double bandwidth = link != nullptr ? link->bandwidth : 0;
    if (bandwidth <= 0 && hosts_[from] != hosts_[to])
      bandwidth = std::min(nic_bandwidth(written, cards_[from]->host), nic_bandwidth(written, cards_[to]->host));
    if (bandwidth <= 0) return;
    cost.link(from, to).bandwidth = bandwidth;
    basis(from, to) = Basis::topology;
  }

  // A link that was not measured is taken to be like the measured ones, not as its Path expects.
  void overlay_measured(CostModel& cost) {
    std::map<Class, LinkCost> slowest;
    for (const MeasuredLink& link : measured_->links) {
      const auto from = static_cast<std::uint32_t>(link.source), to = static_cast<std::uint32_t>(link.target);
      const LinkCost found{link.latency_us * 1e-6, link.bandwidth};
      cost.link(from, to) = found;
      basis(from, to) = Basis::measured;
      LinkCost& known = slowest.emplace(class_of(from, to), found).first->second;
      known = {std::max(known.latency, found.latency), std::min(known.bandwidth, found.bandwidth)};
    }
    for (std::uint32_t from = 0; from < group_.size(); ++from) {
      for (std::uint32_t to = 0; to < group_.size(); ++to) {
        if (from == to || basis(from, to) == Basis::measured || basis(from, to) == Basis::topology) continue;
        const auto alike = slowest.find(class_of(from, to));
        if (alike == slowest.end()) continue;
        cost.link(from, to) = alike->second;
        basis(from, to) = Basis::alike;
      }
    }
  }

  const Group& group_;
  const std::vector<bool> staged_;
  const Measurement* const measured_;
  const std::vector<std::uint32_t> hosts_;        // by rank
  const std::vector<const TopologyCard*> cards_;  // by rank
  std::vector<Basis> basis_;                      // by link
  std::map<Class, LinkCost> known_;               // the slowest of each class
};

std::string figures_of(const CollectivePlan& plan, const Measurement* measured, double reduction) {
  std::string text = measured != nullptr ? measured->origin() : "estimated, not measured";
  const char* before = "; links: ";
  for (const char* basis : basis_names) {
    const auto links = std::ranges::count(plan.links, basis, &PlannedLink::basis);
    if (links > 0) text += std::exchange(before, ", ") + std::to_string(links) + " " + basis;
  }
  char rates[96];
  std::snprintf(rates, sizeof rates, "; a rank reduces %.3g GB/s of inputs and spends %.3g us on a message", reduction / 1e9,
                overhead_default * 1e6);
  return text + rates;
}

// The ranks whose device memory the CPU reduces. A device of another process is taken to be able to what this process's device of
// the vendor is; where there is none, the CPU is taken to reduce.
std::vector<bool> staged_ranks(const Group& group, DataType type, bool exact) {
  std::map<std::string_view, bool> able{{Device::cpu().vendor(), true}};
  for (const std::uint32_t rank : group.local()) {
    const Device& device = group.rank(rank).device;
    if (!able.contains(device.vendor())) able[device.vendor()] = !exact && device_reduces(device, type, group.size());
  }
  std::vector<bool> staged;
  for (std::uint32_t r = 0; r < group.size(); ++r) staged.push_back(!able[group.rank(r).device.vendor()]);
  return staged;
}

// Whether the ranks' devices may map each other's memory. Those of other processes are taken to be able to what this process's are.
bool may_map(Group& group, DataType type) {
  const Device device = group.rank(group.local().front()).device;
  if (!group.fused().possible() || !group.fused().devices().possible() || device.is_cpu()) return false;
  const auto runtime = runtime_for(device);
  return runtime.ok() && (*runtime)->compute().prepare_exchange(device.index(), type).ok();
}

// What the vendor's library is to a plan. Other processes are taken to have what this one has.
void plan_library(Group& group, const EqualCall& call, const PlanOptions& options, PlannedGroup& planned) {
  if (!group.fused().natives().may_be_named()) return;
  native::Ranks& natives = group.fused().natives();
  const Reduction reduction{.type = options.type, .op = ReduceOp::sum, .factor = 1, .exact = call.exact};
  const MemoryView any{nullptr, 0, group.rank(group.local().front()).device};
  if (reduces(call.kind) && !native::reduction_call(native::Kind::all_reduce, any, any, reduction, 0)) return;
  const Status ready = natives.open();
  if (ready.ok()) {
    planned.library = natives.describe();
  } else {
    planned.no_library = natives.describe() + " is not used: " + std::string(ready.message()) + ".";
  }
}

Result<CollectivePlan> plan_in(Group& group, std::string_view name, std::uint64_t bytes, const PlanOptions& options) {
  HMC_ASSIGN(EqualCall call, equal_call(name, bytes, options, group.size()));
  if (!call.exact) call.islands = group.schedules().islands(group);
  const std::vector<bool> staged =
      reduces(call.kind) ? staged_ranks(group, options.type, call.exact) : std::vector<bool>(group.size());
  const auto measured = group.schedules().measured();
  LinkSurvey survey(group, staged, measured.get());
  PlannedGroup planned{survey.take(), {}};
  planned.staged = staged;
  planned.may_fuse = group.fused().possible();
  planned.may_map = may_map(group, options.type);
  plan_library(group, call, options, planned);
  for (std::uint32_t r = 0; r < group.size(); ++r) planned.on_host.push_back(group.rank(r).device.is_cpu());
  planned.basis = [&](std::uint32_t from, std::uint32_t to) {
    return basis_names[static_cast<std::size_t>(survey.basis(from, to))];
  };
  HMC_ASSIGN(CollectivePlan plan, plan_of(call, planned, options.algorithm));
  plan.figures = figures_of(plan, measured.get(), call.exact ? exact_rate(reduction_default, call.element) : reduction_default);
  return plan;
}

}  // namespace

Result<CollectivePlan> Member::plan(std::string_view call, std::uint64_t bytes, const PlanOptions& options) const {
  HMC_TRY(check(state_));
  return plan_in(*state_->group, call, bytes, options);
}

Result<CollectivePlan> Communicator::plan(std::string_view call, std::uint64_t bytes, const PlanOptions& options) const {
  HMC_TRY(check(*this));
  return plan_in(*state_->group, call, bytes, options);
}

Result<std::vector<std::vector<int>>> Communicator::islands() const {
  HMC_TRY(check(*this));
  const Group& group = *state_->group;
  std::vector<std::vector<int>> islands;
  for (const Island& island : islands_of(group)) islands.emplace_back(island.ranks.begin(), island.ranks.end());
  return islands;
}

}  // namespace hmc
