// all_reduce, reduce_scatter and reduce, of one Member and of several that join by one call.
#include <array>
#include <bit>
#include <string>
#include <vector>

#include "collective/choose.h"
#include "collective/device_reducer.h"
#include "collective/mapped/calls.h"
#include "collective/member_calls.h"
#include "collective/native/calls.h"
#include "collective/plan_reduce.h"
#include "collective/tuning.h"

namespace hmc {
namespace {

Result<ReduceStep> step_of(std::string_view call, const Group& group, const Reduction& reduction, std::uint64_t bytes) {
  if (const Status fits = check_reduction(reduction); !fits.ok()) return fits.with_context(call);
  const std::size_t element = size_of(reduction.type);
  if (bytes % element != 0) {
    return Status(Code::invalid_argument, std::string(call) + ": " + std::to_string(bytes) + " bytes are no whole number of " +
                                              std::string(name_of(reduction.type)) + ", which have " + std::to_string(element));
  }
  ReduceStep step{.type = reduction.type, .op = reduction.op, .exact = reduction.exact && is_floating(reduction.type)};
  if (reduction.op == ReduceOp::premul_sum) step.scale = reduction.factor;
  if (reduction.op == ReduceOp::avg) step.divisor = group.size();
  return step;
}

struct Planned {
  std::shared_ptr<const Schedule> schedule;
  // Where the device reduces; see CollectiveBuffers.
  std::shared_ptr<DeviceScratch> scratch = nullptr;
  std::shared_ptr<const Schedule> staged = nullptr;
  bool maps = false;  // the rank's device takes part in calls over mapped memory
};

// The Schedule that `plan(tuning)` makes for who reduces: the device, where it is able to and has the scratch memory, else the CPU.
// Other ranks see no difference. `deferred`: it may be carried out without that, by the vendor's library.
template <class Plan>
Result<Planned> planned(Group& group, std::uint32_t rank, const MemoryView& out, const MemoryView& in, const Reduction& reduction,
                        Algorithm algorithm, bool deferred, const Plan& plan) {
  const bool host = on_host(out, in);
  const bool on_one = !host && !(reduction.exact && is_floating(reduction.type)) && out.device == in.device;
  Planned found;
  found.maps = on_one && group.fused().possible() && (algorithm == Algorithm::chosen || algorithm == Algorithm::mapped) &&
               group.fused().devices().prepare(rank, in.device, reduction.type);
  const bool device = on_one && device_reduces(in.device, reduction.type, group.size());
  found.schedule = plan(reduce_tuning(!host && !device, algorithm));
  if (!device && !found.maps) return found;
  if (found.maps || deferred) {
    found.staged = device ? plan(reduce_tuning(true, algorithm)) : found.schedule;
  } else {
    auto scratch = DeviceScratch::take(in.device, found.schedule->scratch);
    if (!scratch.ok()) return Planned{plan(reduce_tuning(true, algorithm))};
    found.scratch = std::move(scratch).value();
  }
  return found;
}

std::uint64_t schedule_detail(const ReduceTuning& tuning, const Reduction& reduction, Algorithm algorithm, std::uint64_t root = 0) {
  return root << 16 | (tuning.islands ? 1 << 12 : 0) | static_cast<std::uint64_t>(algorithm) << 5 | size_of(reduction.type) << 1 |
         (tuning.staged ? 1 : 0);
}

// Of hierarchical calls, which round sums more than once.
std::shared_ptr<const std::vector<Island>> islands_for(Group& group, const ReduceStep& step) {
  return step.exact ? nullptr : group.schedules().islands(group);
}

Result<Algorithm> algorithm_named(CallKind kind, Group& group, std::uint64_t bytes, const ReduceStep& step, std::string_view name) {
  if (name.empty()) return Algorithm::chosen;
  const bool possible = group.fused().possible();
  return named_algorithm({.kind = kind, .size = group.size(), .bytes = bytes, .islands = islands_for(group, step)}, name,
                         {.cpu = possible,
                          .devices = possible && group.fused().devices().may_be_named(),
                          .library = group.fused().natives().may_be_named()});
}

// What every rank passes alike, besides the type and the operation. The factor is applied by the rank that reduces.
std::uint32_t call_of(CallKind kind, const Reduction& reduction, Algorithm algorithm, std::uint64_t bytes, std::uint64_t root = 0) {
  const std::array alike{bytes, root, std::bit_cast<std::uint64_t>(reduction.factor)};
  return encode_call(kind, reduction, std::span(alike).first(reduction.op == ReduceOp::premul_sum ? 3 : 2), algorithm);
}

std::uint32_t call_of(CallKind kind, const Reduction& reduction, Algorithm algorithm, std::span<const std::uint64_t> sizes) {
  std::vector<std::uint64_t> alike(sizes.begin(), sizes.end());
  alike.push_back(0);
  if (reduction.op == ReduceOp::premul_sum) alike.push_back(std::bit_cast<std::uint64_t>(reduction.factor));
  return encode_call(kind, reduction, alike, algorithm);
}

// The share of the rank's device over mapped memory.
std::shared_ptr<const ExchangeCall> by_kernel(const Share& share, const fused::Plan& plan) {
  auto call = std::make_shared<ExchangeCall>(mapped::reduction(share.rank, share.group->size(), plan));
  call->input = share.buffers.in.data;
  call->output = share.buffers.out.data;
  call->reduction = share.buffers.reduction;
  return call;
}

Result<Share> all_reduce_share(const Member& member, const MemoryView& out, const MemoryView& in, const Reduction& reduction,
                               std::string_view algorithm) {
  HMC_TRY(check(member.state()));
  const auto& group = member.state()->group;
  if (out.bytes != in.bytes) {
    return Status(Code::invalid_argument, "all_reduce: the input has " + std::to_string(in.bytes) + " bytes, the output " +
                                              std::to_string(out.bytes) + "; both need the same size");
  }
  HMC_TRY(check_memory("all_reduce", out, in, 0));
  HMC_ASSIGN(const ReduceStep step, step_of("all_reduce", *group, reduction, in.bytes));
  HMC_ASSIGN(const Algorithm named, algorithm_named(CallKind::all_reduce, *group, in.bytes, step, algorithm));
  const std::uint32_t rank = rank_in(member), size = group->size();
  const auto library =
      by_library(*group, rank, named, in.device, native::reduction_call(native::Kind::all_reduce, out, in, reduction, in.bytes));
  HMC_ASSIGN(auto found, planned(*group, rank, out, in, reduction, named, library.has_value(), [&](ReduceTuning tuning) {
               if (in.bytes >= tuning.hierarchical) tuning.islands = islands_for(*group, step);
               return group->schedules().get(
                   rank, {CallKind::all_reduce, in.bytes, schedule_detail(tuning, reduction, named)},
                   [&] { return plan_all_reduce(rank, size, in.bytes, size_of(reduction.type), tuning); });
             }));
  Share share{group,
              rank,
              call_of(CallKind::all_reduce, reduction, named, in.bytes),
              std::move(found.schedule),
              {in, out, step, {}, std::move(found.scratch), std::move(found.staged)}};
  if (group->fused().possible() && may_be_shared(named))
    share.fused = fused::way_of_all_reduce(rank, size, in.bytes, size_of(reduction.type), named);
  if (found.maps) share.fused->on_device = by_kernel(share, *fused::plan_all_reduce(rank, size, in.bytes, size_of(reduction.type)));
  set_library(share, named, library);
  share.packable = true;
  return share;
}

// `equal`: the blocks are, one after the other, so that the rank's last Schedules may have the call's.
Result<Share> reduce_scatter_share(const Member& member, const MemoryView& out, const MemoryView& in, const Member::Layout& layout,
                                   const Reduction& reduction, std::string_view algorithm, bool equal = false) {
  const auto& group = member.state()->group;
  const std::uint32_t rank = rank_in(member), size = group->size();
  HMC_TRY(check_layout("reduce_scatter", "input", layout, in, size));
  if (out.bytes != layout.counts[rank]) {
    return Status(Code::invalid_argument, "reduce_scatter: the output has " + std::to_string(out.bytes) + " bytes, block " +
                                              std::to_string(rank) + " of the input " + std::to_string(layout.counts[rank]) +
                                              "; both need the same size");
  }
  HMC_TRY(check_memory("reduce_scatter", in, out, layout.displacements[rank]));
  ReduceStep step;
  std::uint64_t bytes = 0;
  for (const std::uint64_t count : layout.counts) {
    HMC_ASSIGN(step, step_of("reduce_scatter", *group, reduction, count));
    bytes += count;
  }
  HMC_ASSIGN(const Algorithm named, algorithm_named(CallKind::reduce_scatter, *group, bytes, step, algorithm));
  std::optional<native::Call> library;
  if (are_packed(layout, out.bytes)) {
    library = by_library(*group, rank, named, in.device,
                         native::reduction_call(native::Kind::reduce_scatter, out, in, reduction, out.bytes));
  }
  HMC_ASSIGN(auto found, planned(*group, rank, out, in, reduction, named, library.has_value(), [&](ReduceTuning tuning) {
               if (bytes >= tuning.hierarchical) tuning.islands = islands_for(*group, step);
               const auto plan = [&] {
                 return plan_reduce_scatter(rank, size, {layout.counts, layout.displacements}, size_of(reduction.type), tuning);
               };
               if (!equal) return std::make_shared<const Schedule>(plan());
               return group->schedules().get(rank, {CallKind::reduce_scatter, bytes, schedule_detail(tuning, reduction, named)},
                                             plan);
             }));
  Share share{group,
              rank,
              call_of(CallKind::reduce_scatter, reduction, named, layout.counts),
              std::move(found.schedule),
              {in, out, step, {}, std::move(found.scratch), std::move(found.staged)}};
  if (group->fused().possible() && may_be_shared(named))
    share.fused = fused::way_of_reduce_scatter(rank, {layout.counts, layout.displacements}, named);
  if (found.maps) share.fused->on_device = by_kernel(share, *fused::plan_reduce_scatter({layout.counts, layout.displacements}));
  set_library(share, named, library);
  return share;
}

Result<Share> equal_reduce_scatter_share(const Member& member, const MemoryView& out, const MemoryView& in,
                                         const Reduction& reduction, std::string_view algorithm) {
  HMC_TRY(check(member.state()));
  const std::uint64_t size = member.state()->group->size();
  if (in.bytes != out.bytes * size) {
    return Status(Code::invalid_argument, "reduce_scatter among " + std::to_string(size) +
                                              " ranks needs an input of that many blocks of the output's size; the input has " +
                                              std::to_string(in.bytes) + " bytes, the output " + std::to_string(out.bytes));
  }
  std::vector<std::uint64_t> counts(size, out.bytes), displacements(size);
  for (std::uint64_t r = 0; r < size; ++r) displacements[r] = r * out.bytes;
  HMC_ASSIGN(Share share, reduce_scatter_share(member, out, in, {counts, displacements}, reduction, algorithm, true));
  share.packable = true;
  return share;
}

Result<Share> uneven_reduce_scatter_share(const Member& member, const MemoryView& out, const MemoryView& in,
                                          const Member::Layout& layout, const Reduction& reduction, std::string_view algorithm) {
  HMC_TRY(check(member.state()));
  return reduce_scatter_share(member, out, in, layout, reduction, algorithm);
}

Result<Share> reduce_share(const Member& member, const MemoryView& out, const MemoryView& in, int root, const Reduction& reduction,
                           std::string_view algorithm) {
  HMC_TRY(check(member.state()));
  const auto& group = member.state()->group;
  HMC_TRY(check_root(*group, "reduce", root));
  const std::uint32_t rank = rank_in(member), size = group->size(), at = static_cast<std::uint32_t>(root);
  const MemoryView target = rank == at ? out : MemoryView{nullptr, 0, in.device};
  if (rank == at && out.bytes != in.bytes) {
    return Status(Code::invalid_argument, "reduce: the input has " + std::to_string(in.bytes) + " bytes, the root's output " +
                                              std::to_string(out.bytes) + "; both need the same size");
  }
  HMC_TRY(check_memory("reduce", target, in, 0));
  HMC_ASSIGN(const ReduceStep step, step_of("reduce", *group, reduction, in.bytes));
  HMC_ASSIGN(const Algorithm named, algorithm_named(CallKind::reduce, *group, in.bytes, step, algorithm));
  const auto library =
      by_library(*group, rank, named, in.device, native::reduction_call(native::Kind::reduce, target, in, reduction, in.bytes, at));
  HMC_ASSIGN(auto found, planned(*group, rank, target, in, reduction, named, library.has_value(), [&](ReduceTuning tuning) {
               if (in.bytes >= tuning.hierarchical) tuning.islands = islands_for(*group, step);
               return group->schedules().get(
                   rank, {CallKind::reduce, in.bytes, schedule_detail(tuning, reduction, named, at)},
                   [&] { return plan_reduce(rank, size, at, in.bytes, size_of(reduction.type), tuning); });
             }));
  Share share{group,
              rank,
              call_of(CallKind::reduce, reduction, named, in.bytes, at),
              std::move(found.schedule),
              {in, target, step, {}, std::move(found.scratch), std::move(found.staged)}};
  if (group->fused().possible() && may_be_shared(named))
    share.fused = fused::way_of_reduce(rank, size, at, in.bytes, size_of(reduction.type), named);
  if (found.maps) share.fused->on_device = by_kernel(share, *fused::plan_reduce(rank, size, at, in.bytes, size_of(reduction.type)));
  set_library(share, named, library);
  share.root = at;
  share.packable = true;
  return share;
}

}  // namespace

Status Member::all_reduce(const MemoryView& out, const MemoryView& in, const Reduction& reduction, Deadline deadline,
                          std::string_view algorithm) const {
  return run(all_reduce_share(*this, out, in, reduction, algorithm), deadline);
}

Result<Work> Member::iall_reduce(const MemoryView& out, const MemoryView& in, const Reduction& reduction,
                                 std::string_view algorithm) const {
  return as_work(start(all_reduce_share(*this, out, in, reduction, algorithm)));
}

Status Member::reduce_scatter(const MemoryView& out, const MemoryView& in, const Reduction& reduction, Deadline deadline,
                              std::string_view algorithm) const {
  return run(equal_reduce_scatter_share(*this, out, in, reduction, algorithm), deadline);
}

Result<Work> Member::ireduce_scatter(const MemoryView& out, const MemoryView& in, const Reduction& reduction,
                                     std::string_view algorithm) const {
  return as_work(start(equal_reduce_scatter_share(*this, out, in, reduction, algorithm)));
}

Status Member::reduce_scatter_v(const MemoryView& out, const MemoryView& in, const Layout& in_layout, const Reduction& reduction,
                                Deadline deadline, std::string_view algorithm) const {
  return run(uneven_reduce_scatter_share(*this, out, in, in_layout, reduction, algorithm), deadline);
}

Result<Work> Member::ireduce_scatter_v(const MemoryView& out, const MemoryView& in, const Layout& in_layout,
                                       const Reduction& reduction, std::string_view algorithm) const {
  return as_work(start(uneven_reduce_scatter_share(*this, out, in, in_layout, reduction, algorithm)));
}

Status Member::reduce(const MemoryView& out, const MemoryView& in, int root, const Reduction& reduction, Deadline deadline,
                      std::string_view algorithm) const {
  return run(reduce_share(*this, out, in, root, reduction, algorithm), deadline);
}

Result<Work> Member::ireduce(const MemoryView& out, const MemoryView& in, int root, const Reduction& reduction,
                             std::string_view algorithm) const {
  return as_work(start(reduce_share(*this, out, in, root, reduction, algorithm)));
}

Status Communicator::all_reduce(std::span<const MemberBuffers> members, const Reduction& reduction, Deadline deadline,
                                std::string_view algorithm) const {
  return run_all(*this, "all_reduce", members, deadline,
                 [&](const MemberBuffers& one) { return all_reduce_share(one.member, one.out, one.in, reduction, algorithm); });
}

Status Communicator::reduce_scatter(std::span<const MemberBuffers> members, const Reduction& reduction, Deadline deadline,
                                    std::string_view algorithm) const {
  return run_all(*this, "reduce_scatter", members, deadline, [&](const MemberBuffers& one) {
    return equal_reduce_scatter_share(one.member, one.out, one.in, reduction, algorithm);
  });
}

Status Communicator::reduce(std::span<const MemberBuffers> members, int root, const Reduction& reduction, Deadline deadline,
                            std::string_view algorithm) const {
  return run_all(*this, "reduce", members, deadline,
                 [&](const MemberBuffers& one) { return reduce_share(one.member, one.out, one.in, root, reduction, algorithm); });
}

}  // namespace hmc
