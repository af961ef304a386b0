// all_gather, broadcast, gather and scatter, of one Member and of several that join by one call.
#include <array>
#include <numeric>
#include <string>
#include <vector>

#include "collective/choose.h"
#include "collective/equal_blocks.h"
#include "collective/member_calls.h"
#include "collective/native/calls.h"
#include "collective/plan_spread.h"
#include "collective/tuning.h"

namespace hmc {
namespace {

Status bad_total(std::string_view call, std::string_view whole, const MemoryView& all, std::string_view part, const MemoryView& one,
                 std::uint32_t size) {
  return {Code::invalid_argument, std::string(call) + " among " + std::to_string(size) + " ranks: the " + std::string(whole) +
                                      " needs that many blocks of the " + std::string(part) + "'s size; it has " +
                                      std::to_string(all.bytes) + " bytes, the " + std::string(part) + " " +
                                      std::to_string(one.bytes)};
}

Status bad_block(std::string_view call, std::string_view part, const MemoryView& one, std::uint32_t rank, std::uint64_t count) {
  return {Code::invalid_argument, std::string(call) + ": the " + std::string(part) + " has " + std::to_string(one.bytes) +
                                      " bytes, block " + std::to_string(rank) + " of the layout " + std::to_string(count) +
                                      "; both need the same size"};
}

// `equal`: the blocks are, one after the other, so that the rank's last Schedules may have the call's.
Result<Share> all_gather_share(const Member& member, const MemoryView& out, const Member::Layout& layout, const MemoryView& in,
                               std::string_view algorithm, bool equal = false) {
  HMC_TRY(check(member.state()));
  const auto& group = member.state()->group;
  const std::uint32_t rank = rank_in(member);
  HMC_TRY(check_layout("all_gather", "output", layout, out, group->size()));
  if (!equal) HMC_TRY(check_disjoint("all_gather", layout));
  if (in.bytes != layout.counts[rank]) return bad_block("all_gather", "input", in, rank, layout.counts[rank]);
  HMC_TRY(check_memory("all_gather", out, in, layout.displacements[rank]));
  const std::uint64_t bytes = std::reduce(layout.counts.begin(), layout.counts.end());
  HMC_ASSIGN(const Algorithm named,
             spread_algorithm(*group, {.kind = CallKind::all_gather, .size = group->size(), .bytes = bytes}, algorithm));
  SpreadTuning tuning = spread_tuning(on_host(out, in), in_place(out, in, layout.displacements[rank]), named);
  if (bytes >= tuning.hierarchical) tuning.islands = group->schedules().islands(*group);
  const bool shares = goes_shared(*group, CallKind::all_gather, bytes, named);
  const auto plan = [&] {
    const BlockLayout blocks{layout.counts, layout.displacements};
    PlannedCall made{plan_all_gather_blocks(rank, group->size(), blocks, tuning)};
    if (shares)
      plan_shared(*group, rank, CallKind::all_gather, named, out.device, fused::way_of_all_gather(rank, blocks, named), made);
    return made;
  };
  const std::uint64_t detail = (shares ? std::uint64_t{out.device.is_cpu() ? 1U : 2U} << 8 : 0) |
                               static_cast<std::uint64_t>(named) << 3 | (tuning.islands ? 4 : 0) |
                               (tuning.inline_copy > 0 ? 2 : 0) | (tuning.in_place ? 1 : 0);
  const auto planned = equal ? group->schedules().planned(rank, {CallKind::all_gather, bytes, detail}, plan)
                             : std::make_shared<const PlannedCall>(plan());
  Share share{group, rank, encode_call(CallKind::all_gather, layout.counts, named), {planned, &planned->schedule}, {in, out, {}}};
  if (shares) share_spread(share, planned);
  std::optional<native::Call> library;
  if (named == Algorithm::native && are_packed(layout, in.bytes))
    library = by_library(*group, rank, in.device, native::spread_call(native::Kind::all_gather, out, in, in.bytes));
  set_library(share, named, library);
  return share;
}

Result<Share> equal_all_gather_share(const Member& member, const MemoryView& out, const MemoryView& in,
                                     std::string_view algorithm) {
  HMC_TRY(check(member.state()));
  const std::uint32_t size = member.state()->group->size();
  if (out.bytes != in.bytes * size) return bad_total("all_gather", "output", out, "input", in, size);
  const EqualBlocks blocks(size, in.bytes);
  auto share = all_gather_share(member, out, blocks.layout(), in, algorithm, true);
  if (share.ok()) share->packable = true;
  return share;
}

Result<Share> broadcast_share(const Member& member, const MemoryView& view, int root, std::string_view algorithm) {
  HMC_TRY(check(member.state()));
  const auto& group = member.state()->group;
  HMC_TRY(check_root(*group, "broadcast", root));
  HMC_TRY(check_memory("broadcast", view, {}, 0));
  const std::uint32_t rank = rank_in(member), size = group->size(), at = static_cast<std::uint32_t>(root);
  HMC_ASSIGN(const Algorithm named,
             spread_algorithm(*group, {.kind = CallKind::broadcast, .size = size, .bytes = view.bytes}, algorithm));
  SpreadTuning tuning = broadcast_tuning(all_on_host(*group), named);
  if (view.bytes >= tuning.hierarchical) tuning.islands = group->schedules().islands(*group);
  const bool shares = goes_shared(*group, CallKind::broadcast, view.bytes, named);
  const std::uint64_t detail =
      (shares ? std::uint64_t{view.device.is_cpu() ? 1U : 2U} << 40 : 0) | static_cast<std::uint64_t>(named) << 32 | at;
  const auto planned = group->schedules().planned(rank, {CallKind::broadcast, view.bytes, detail}, [&] {
    PlannedCall made{plan_broadcast(rank, size, at, view.bytes, tuning)};
    if (shares) {
      plan_shared(*group, rank, CallKind::broadcast, named, view.device, fused::way_of_broadcast(rank, at, view.bytes, named),
                  made);
    }
    return made;
  });
  const std::array alike{std::uint64_t{view.bytes}, std::uint64_t{at}};
  Share share{group, rank, encode_call(CallKind::broadcast, alike, named), {planned, &planned->schedule}, {{}, view, {}}};
  share.root = at;
  share.packable = true;
  if (shares) share_spread(share, planned);
  std::optional<native::Call> library;
  if (named == Algorithm::native)
    library = by_library(*group, rank, view.device, native::spread_call(native::Kind::broadcast, view, view, view.bytes, at));
  set_library(share, named, library);
  return share;
}

// `layout`: of the root's output; other ranks pass none.
Result<Share> gather_share(const Member& member, const MemoryView& out, const Member::Layout& layout, const MemoryView& in,
                           int root) {
  const auto& group = member.state()->group;
  const std::uint32_t rank = rank_in(member), size = group->size(), at = static_cast<std::uint32_t>(root);
  const std::array alike{std::uint64_t{at}};
  const std::uint32_t call = encode_call(CallKind::gather, alike);
  if (rank != at) {
    HMC_TRY(check_memory("gather", {}, in, 0));
    const EqualBlocks blocks(size, in.bytes);
    const Member::Layout all = blocks.layout();
    auto schedule = std::make_shared<const Schedule>(plan_gather(rank, size, at, {all.counts, all.displacements}));
    return Share{group, rank, call, std::move(schedule), {in, {}, {}}};
  }
  HMC_TRY(check_layout("gather", "output", layout, out, size));
  HMC_TRY(check_disjoint("gather", layout));
  if (in.bytes != layout.counts[rank]) return bad_block("gather", "input", in, rank, layout.counts[rank]);
  HMC_TRY(check_memory("gather", out, in, layout.displacements[rank]));
  const SpreadTuning tuning = spread_tuning(on_host(out, in), in_place(out, in, layout.displacements[rank]));
  auto schedule = std::make_shared<const Schedule>(plan_gather(rank, size, at, {layout.counts, layout.displacements}, tuning));
  return Share{group, rank, call, std::move(schedule), {in, out, {}}};
}

Result<Share> equal_gather_share(const Member& member, const MemoryView& out, const MemoryView& in, int root) {
  HMC_TRY(check(member.state()));
  HMC_TRY(check_root(*member.state()->group, "gather", root));
  const std::uint32_t size = member.state()->group->size();
  if (member.rank() == root && out.bytes != in.bytes * size) return bad_total("gather", "root's output", out, "input", in, size);
  return gather_share(member, out, EqualBlocks(size, in.bytes).layout(), in, root);
}

Result<Share> uneven_gather_share(const Member& member, const MemoryView& out, const Member::Layout& layout, const MemoryView& in,
                                  int root) {
  HMC_TRY(check(member.state()));
  HMC_TRY(check_root(*member.state()->group, "gather", root));
  return gather_share(member, out, layout, in, root);
}

// `layout`: of the root's input; other ranks pass none.
Result<Share> scatter_share(const Member& member, const MemoryView& out, const MemoryView& in, const Member::Layout& layout,
                            int root) {
  const auto& group = member.state()->group;
  const std::uint32_t rank = rank_in(member), size = group->size(), at = static_cast<std::uint32_t>(root);
  const std::array alike{std::uint64_t{at}};
  const std::uint32_t call = encode_call(CallKind::scatter, alike);
  if (rank != at) {
    HMC_TRY(check_memory("scatter", out, {}, 0));
    const EqualBlocks blocks(size, out.bytes);
    const Member::Layout all = blocks.layout();
    auto schedule = std::make_shared<const Schedule>(plan_scatter(rank, size, at, {all.counts, all.displacements}));
    return Share{group, rank, call, std::move(schedule), {{}, out, {}}};
  }
  HMC_TRY(check_layout("scatter", "input", layout, in, size));
  if (out.bytes != layout.counts[rank]) return bad_block("scatter", "output", out, rank, layout.counts[rank]);
  HMC_TRY(check_memory("scatter", in, out, layout.displacements[rank]));
  const SpreadTuning tuning = spread_tuning(on_host(out, in), in_place(in, out, layout.displacements[rank]));
  auto schedule = std::make_shared<const Schedule>(plan_scatter(rank, size, at, {layout.counts, layout.displacements}, tuning));
  return Share{group, rank, call, std::move(schedule), {in, out, {}}};
}

Result<Share> equal_scatter_share(const Member& member, const MemoryView& out, const MemoryView& in, int root) {
  HMC_TRY(check(member.state()));
  HMC_TRY(check_root(*member.state()->group, "scatter", root));
  const std::uint32_t size = member.state()->group->size();
  if (member.rank() == root && in.bytes != out.bytes * size) return bad_total("scatter", "root's input", in, "output", out, size);
  return scatter_share(member, out, in, EqualBlocks(size, out.bytes).layout(), root);
}

Result<Share> uneven_scatter_share(const Member& member, const MemoryView& out, const MemoryView& in, const Member::Layout& layout,
                                   int root) {
  HMC_TRY(check(member.state()));
  HMC_TRY(check_root(*member.state()->group, "scatter", root));
  return scatter_share(member, out, in, layout, root);
}

}  // namespace

Status Member::all_gather(const MemoryView& out, const MemoryView& in, Deadline deadline, std::string_view algorithm) const {
  return run(equal_all_gather_share(*this, out, in, algorithm), deadline);
}

Result<Work> Member::iall_gather(const MemoryView& out, const MemoryView& in, std::string_view algorithm) const {
  return as_work(start(equal_all_gather_share(*this, out, in, algorithm)));
}

Status Member::all_gather_v(const MemoryView& out, const Layout& out_layout, const MemoryView& in, Deadline deadline,
                            std::string_view algorithm) const {
  return run(all_gather_share(*this, out, out_layout, in, algorithm), deadline);
}

Result<Work> Member::iall_gather_v(const MemoryView& out, const Layout& out_layout, const MemoryView& in,
                                   std::string_view algorithm) const {
  return as_work(start(all_gather_share(*this, out, out_layout, in, algorithm)));
}

Status Member::broadcast(const MemoryView& view, int root, Deadline deadline, std::string_view algorithm) const {
  return run(broadcast_share(*this, view, root, algorithm), deadline);
}

Result<Work> Member::ibroadcast(const MemoryView& view, int root, std::string_view algorithm) const {
  return as_work(start(broadcast_share(*this, view, root, algorithm)));
}

Status Member::gather(const MemoryView& out, const MemoryView& in, int root, Deadline deadline) const {
  return run(equal_gather_share(*this, out, in, root), deadline);
}

Result<Work> Member::igather(const MemoryView& out, const MemoryView& in, int root) const {
  return as_work(start(equal_gather_share(*this, out, in, root)));
}

Status Member::gather_v(const MemoryView& out, const Member::Layout& out_layout, const MemoryView& in, int root,
                        Deadline deadline) const {
  return run(uneven_gather_share(*this, out, out_layout, in, root), deadline);
}

Result<Work> Member::igather_v(const MemoryView& out, const Member::Layout& out_layout, const MemoryView& in, int root) const {
  return as_work(start(uneven_gather_share(*this, out, out_layout, in, root)));
}

Status Member::scatter(const MemoryView& out, const MemoryView& in, int root, Deadline deadline) const {
  return run(equal_scatter_share(*this, out, in, root), deadline);
}

Result<Work> Member::iscatter(const MemoryView& out, const MemoryView& in, int root) const {
  return as_work(start(equal_scatter_share(*this, out, in, root)));
}

Status Member::scatter_v(const MemoryView& out, const MemoryView& in, const Member::Layout& in_layout, int root,
                         Deadline deadline) const {
  return run(uneven_scatter_share(*this, out, in, in_layout, root), deadline);
}

Result<Work> Member::iscatter_v(const MemoryView& out, const MemoryView& in, const Member::Layout& in_layout, int root) const {
  return as_work(start(uneven_scatter_share(*this, out, in, in_layout, root)));
}

Status Communicator::all_gather(std::span<const MemberBuffers> members, Deadline deadline, std::string_view algorithm) const {
  return run_all(*this, "all_gather", members, deadline,
                 [&](const MemberBuffers& one) { return equal_all_gather_share(one.member, one.out, one.in, algorithm); });
}

Status Communicator::broadcast(std::span<const MemberBuffers> members, int root, Deadline deadline,
                               std::string_view algorithm) const {
  return run_all(*this, "broadcast", members, deadline,
                 [&](const MemberBuffers& one) { return broadcast_share(one.member, one.out, root, algorithm); });
}

Status Communicator::gather(std::span<const MemberBuffers> members, int root, Deadline deadline) const {
  return run_all(*this, "gather", members, deadline,
                 [&](const MemberBuffers& one) { return equal_gather_share(one.member, one.out, one.in, root); });
}

Status Communicator::scatter(std::span<const MemberBuffers> members, int root, Deadline deadline) const {
  return run_all(*this, "scatter", members, deadline,
                 [&](const MemberBuffers& one) { return equal_scatter_share(one.member, one.out, one.in, root); });
}

}  // namespace hmc
