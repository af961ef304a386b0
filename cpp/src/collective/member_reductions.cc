// all_reduce, reduce_scatter and reduce, of one Member and of several that join by one call.
#include <array>
#include <bit>
#include <cstddef>
#include <memory_resource>
#include <string>
#include <vector>

#include "collective/choose.h"
#include "collective/device_reducer.h"
#include "collective/equal_blocks.h"
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

// Of hierarchical calls, which round sums more than once.
std::shared_ptr<const std::vector<Island>> islands_for(Group& group, const ReduceStep& step) {
  return step.exact ? nullptr : group.schedules().islands(group);
}

// A call of one rank that reduces, checked.
struct Asked {
  CallKind kind;
  const std::shared_ptr<Group>& group;
  std::uint32_t rank;
  const MemoryView& out;
  const MemoryView& in;
  const Reduction& reduction;
  const ReduceStep& step;
  Algorithm named;
  std::uint64_t bytes;     // of the input
  std::uint32_t call = 0;  // of encode_call()
  std::uint64_t root = 0;
  bool equal = true;  // blocks, if it has any, are: its plan is kept for the rank's next calls of that size
};

// What is planned besides the Schedule for who reduces.
struct Wanted {
  bool staged = false;    // and the CPU's
  bool way = false;       // over shared memory
  bool exchange = false;  // by the devices' kernels
};

// What the planned call depends on, besides its kind and size.
std::uint64_t detail_of(const Asked& asked, const ReduceTuning& tuning, const Wanted& wanted) {
  const std::uint64_t flags = (tuning.islands ? 1 : 0) | (wanted.staged ? 2 : 0) | (wanted.way ? 4 : 0) | (wanted.exchange ? 8 : 0);
  return asked.root << 16 | flags << 12 | static_cast<std::uint64_t>(asked.named) << 5 | size_of(asked.reduction.type) << 1 |
         (tuning.staged ? 1 : 0);
}

// `plan` makes what all of the rank's calls alike have in common: schedule(tuning), way(), exchange().
template <class Plan>
std::shared_ptr<const PlannedCall> planned(const Asked& asked, bool staged, const Wanted& wanted, const Plan& plan) {
  ReduceTuning tuning = reduce_tuning(staged, asked.named);
  if (asked.bytes >= tuning.hierarchical) tuning.islands = islands_for(*asked.group, asked.step);
  const auto make = [&] {
    PlannedCall made{plan.schedule(tuning)};
    if (wanted.staged) {
      ReduceTuning by_cpu = tuning;
      by_cpu.staged = true;
      made.staged = plan.schedule(by_cpu);
    }
    if (wanted.way) made.way = plan.way();
    if (wanted.exchange) made.exchange = plan.exchange();
    return made;
  };
  if (!asked.equal) return std::make_shared<const PlannedCall>(make());
  return asked.group->schedules().planned(asked.rank, {asked.kind, asked.bytes, detail_of(asked, tuning, wanted)}, make);
}

// The share of who reduces: the device, where it is able to and has the scratch memory, else the CPU. Other ranks see no
// difference. `library`: it may be carried out by that.
template <class Plan>
Result<Share> share_of(const Asked& asked, const std::optional<native::Call>& library, const Plan& plan) {
  Group& group = *asked.group;
  const MemoryView &out = asked.out, &in = asked.in;
  const bool host = on_host(out, in);
  const bool on_one = !host && !asked.step.exact && out.device == in.device;
  const bool shares = group.fused().possible() && may_be_shared(asked.named);
  const bool maps = on_one && shares && (asked.named == Algorithm::chosen || asked.named == Algorithm::mapped) &&
                    group.fused().devices().prepare(asked.rank, in.device, asked.reduction.type);
  const bool device = maps ? group.fused().devices().reduces(asked.rank, asked.reduction.type)
                           : on_one && device_reduces(in.device, asked.reduction.type, group.size());
  const bool deferred = maps || (device && library);  // scratch memory is taken if the call goes by messages
  auto found = planned(asked, !host && !device, {.staged = device && deferred, .way = shares, .exchange = maps}, plan);
  std::shared_ptr<DeviceScratch> scratch;
  if (device && !deferred) {
    if (auto taken = DeviceScratch::take(in.device, found->schedule.scratch); taken.ok()) {
      scratch = std::move(taken).value();
    } else {
      found = planned(asked, true, {.way = shares}, plan);
    }
  }
  Result<Share> made(Share{asked.group, asked.rank, asked.call, {found, &found->schedule}, {in, out, asked.step}});
  Share& share = made.value();
  share.buffers.scratch = std::move(scratch);
  if (deferred) share.buffers.staged = {found, found->staged ? &*found->staged : &found->schedule};
  share.fused = found->way;
  set_library(share, asked.named, library);
  share.root = static_cast<std::uint32_t>(asked.root);
  if (maps) {
    const ExchangeCall* const exchange = &*found->exchange;
    share.fused->on_device = {std::move(found), exchange};
  }
  return made;
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
  std::array<std::byte, 1024> space;  // enough for most groups
  std::pmr::monotonic_buffer_resource memory(space.data(), space.size());
  std::pmr::vector<std::uint64_t> alike(&memory);
  alike.reserve(sizes.size() + 2);
  alike.assign(sizes.begin(), sizes.end());
  alike.push_back(0);
  if (reduction.op == ReduceOp::premul_sum) alike.push_back(std::bit_cast<std::uint64_t>(reduction.factor));
  return encode_call(kind, reduction, alike, algorithm);
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
  std::optional<native::Call> library;
  if (named == Algorithm::native)
    library = by_library(*group, rank, in.device, native::reduction_call(native::Kind::all_reduce, out, in, reduction, in.bytes));
  const std::size_t element = size_of(reduction.type);
  struct {
    std::uint32_t rank, size;
    std::uint64_t bytes;
    std::size_t element;
    Algorithm named;
    [[nodiscard]] Schedule schedule(const ReduceTuning& tuning) const {
      return plan_all_reduce(rank, size, bytes, element, tuning);
    }
    [[nodiscard]] fused::Way way() const { return fused::way_of_all_reduce(rank, size, bytes, element, named); }
    [[nodiscard]] ExchangeCall exchange() const {
      return mapped::reduction(rank, size, *fused::plan_all_reduce(rank, size, bytes, element));
    }
  } const plan{rank, size, in.bytes, element, named};
  const std::uint32_t call = call_of(CallKind::all_reduce, reduction, named, in.bytes);
  auto share = share_of({CallKind::all_reduce, group, rank, out, in, reduction, step, named, in.bytes, call}, library, plan);
  share->packable = true;
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
  if (named == Algorithm::native && are_packed(layout, out.bytes)) {
    library =
        by_library(*group, rank, in.device, native::reduction_call(native::Kind::reduce_scatter, out, in, reduction, out.bytes));
  }
  struct {
    std::uint32_t rank, size;
    BlockLayout blocks;
    std::size_t element;
    Algorithm named;
    [[nodiscard]] Schedule schedule(const ReduceTuning& tuning) const {
      return plan_reduce_scatter(rank, size, blocks, element, tuning);
    }
    [[nodiscard]] fused::Way way() const { return fused::way_of_reduce_scatter(rank, blocks, named); }
    [[nodiscard]] ExchangeCall exchange() const { return mapped::reduction(rank, size, *fused::plan_reduce_scatter(blocks)); }
  } const plan{rank, size, {layout.counts, layout.displacements}, size_of(reduction.type), named};
  const std::uint32_t call = call_of(CallKind::reduce_scatter, reduction, named, layout.counts);
  return share_of({CallKind::reduce_scatter, group, rank, out, in, reduction, step, named, bytes, call, 0, equal}, library, plan);
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
  const EqualBlocks blocks(static_cast<std::uint32_t>(size), out.bytes);
  auto share = reduce_scatter_share(member, out, in, blocks.layout(), reduction, algorithm, true);
  if (share.ok()) share->packable = true;
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
  std::optional<native::Call> library;
  if (named == Algorithm::native)
    library =
        by_library(*group, rank, in.device, native::reduction_call(native::Kind::reduce, target, in, reduction, in.bytes, at));
  struct {
    std::uint32_t rank, size, root;
    std::uint64_t bytes;
    std::size_t element;
    Algorithm named;
    [[nodiscard]] Schedule schedule(const ReduceTuning& tuning) const {
      return plan_reduce(rank, size, root, bytes, element, tuning);
    }
    [[nodiscard]] fused::Way way() const { return fused::way_of_reduce(rank, size, root, bytes, element, named); }
    [[nodiscard]] ExchangeCall exchange() const {
      return mapped::reduction(rank, size, *fused::plan_reduce(rank, size, root, bytes, element));
    }
  } const plan{rank, size, at, in.bytes, size_of(reduction.type), named};
  const std::uint32_t call = call_of(CallKind::reduce, reduction, named, in.bytes, at);
  auto share = share_of({CallKind::reduce, group, rank, target, in, reduction, step, named, in.bytes, call, at}, library, plan);
  share->packable = true;
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
