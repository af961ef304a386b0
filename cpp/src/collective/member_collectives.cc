// Barrier and all-to-all, of one Member and of several that join by one call.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>

#include "collective/choose.h"
#include "collective/communicator_state.h"
#include "collective/execute.h"
#include "collective/member_calls.h"
#include "collective/tuning.h"
#include "hmc/communicator.h"

namespace hmc {
namespace {

using Layout = Member::Layout;

Result<Share> all_to_all_share(const Member& member, const MemoryView& out, const MemoryView& in, std::string_view algorithm) {
  HMC_TRY(check(member.state()));
  const auto& group = member.state()->group;
  HMC_TRY(check_memory("all_to_all", out, in, {}));
  if (out.bytes != in.bytes || in.bytes % group->size() != 0) {
    return Status(Code::invalid_argument, "all_to_all among " + std::to_string(group->size()) +
                                              " ranks needs an input and an output of that many equal blocks; the input has " +
                                              std::to_string(in.bytes) + " bytes, the output " + std::to_string(out.bytes));
  }
  const auto rank = static_cast<std::uint32_t>(member.rank());
  const std::uint64_t block = in.bytes / group->size();
  HMC_ASSIGN(const Algorithm named,
             spread_algorithm(*group, {.kind = CallKind::all_to_all, .size = group->size(), .bytes = in.bytes}, algorithm));
  const AllToAllTuning tuning = all_to_all_tuning(on_host(out, in), named);
  const CallKind kind = relays(group->size(), block, tuning) ? CallKind::all_to_all_relayed : CallKind::all_to_all;
  const bool shares = goes_shared(*group, CallKind::all_to_all, in.bytes, named);
  const std::uint64_t detail = tuning.inline_copy | static_cast<std::uint64_t>(named) << 48 |
                               (shares ? std::uint64_t{out.device.is_cpu() ? 1U : 2U} << 56 : 0);
  const auto planned = group->schedules().planned(rank, {kind, block, detail}, [&] {
    PlannedCall made{plan_all_to_all(rank, group->size(), block, tuning)};
    if (shares)
      plan_shared(*group, rank, CallKind::all_to_all, named, out.device, fused::way_of_all_to_all(group->size(), block, named),
                  made);
    return made;
  });
  Share share{group, rank, encode_call(kind, block, named), {planned, &planned->schedule}, {in, out}};
  if (shares) share_spread(share, planned);
  return share;
}

Status check_all_to_all_v(const Group& group, const MemoryView& out, const Layout& out_layout, const MemoryView& in,
                          const Layout& in_layout) {
  HMC_TRY(check_memory("all_to_all_v", out, in, {}));
  HMC_TRY(check_layout("all_to_all_v", "output", out_layout, out, group.size()));
  HMC_TRY(check_layout("all_to_all_v", "input", in_layout, in, group.size()));
  return check_disjoint("all_to_all_v", out_layout);
}

Result<Share> all_to_all_v_share(const Member& member, const MemoryView& out, const Layout& out_layout, const MemoryView& in,
                                 const Layout& in_layout) {
  HMC_TRY(check(member.state()));
  const auto& group = member.state()->group;
  HMC_TRY(check_all_to_all_v(*group, out, out_layout, in, in_layout));
  const auto rank = static_cast<std::uint32_t>(member.rank());
  auto schedule = std::make_shared<const Schedule>(
      plan_all_to_all_v(rank, group->size(), {out_layout.counts, out_layout.displacements},
                        {in_layout.counts, in_layout.displacements}, all_to_all_tuning(on_host(out, in))));
  return Share{group, rank, encode_call(CallKind::all_to_all_v), std::move(schedule), {in, out}};
}

Result<Share> barrier_share(const Member& member) {
  HMC_TRY(check(member.state()));
  const auto& group = member.state()->group;
  const auto rank = static_cast<std::uint32_t>(member.rank());
  return Share{group, rank, encode_call(CallKind::barrier), group->schedules().barrier(rank), {}};
}

// A barrier of one or several Members. It has no memory, so it ends at once when it is cancelled or at its deadline; that breaks
// the group, and its messages in flight end by themselves.
class BarrierWork final : public WorkState {
 public:
  explicit BarrierWork(std::vector<std::shared_ptr<CollectiveWork>> parts)
      : WorkState(parts.front()->engine()), parts_(std::move(parts)), left_(parts_.size()) {}
  // ---- engine lock held ----
  void start(Deadline deadline) {
    accepted();
    const auto self = std::static_pointer_cast<BarrierWork>(shared_from_this());
    for (const auto& part : parts_) {
      part->on_complete_locked([self](const Status& status) { self->on_part(status); });
    }
    if (done() || deadline.is_never()) return;
    timer_ = engine()->at(deadline, [this] {
      timer_ = 0;
      const auto late = std::ranges::find_if(parts_, [](const auto& part) { return !part->done(); });
      give_up(Status(Code::timeout, "the deadline passed waiting for " + (late == parts_.end() ? "" : (*late)->missing())));
    });
  }
  Status cancel_locked() override {
    give_up(Status(Code::cancelled, "cancelled by this rank"));
    return {};
  }

 private:
  void on_part(const Status& status) {
    if (outcome_.ok()) outcome_ = status;
    if (--left_ == 0) complete(outcome_);
  }
  void give_up(const Status& reason) {
    const auto self = shared_from_this();
    for (const auto& part : parts_) {
      if (!part->done()) part->fail(reason);
    }
    complete(reason.with_context("barrier"));
  }
  void released() noexcept override {
    if (timer_ != 0) engine()->cancel_timer(std::exchange(timer_, 0));
  }

  const std::vector<std::shared_ptr<CollectiveWork>> parts_;
  std::size_t left_;
  Status outcome_;
  Engine::TimerId timer_ = 0;
};

Result<Work> start_barriers(std::span<const Member> members, Deadline deadline) {
  std::vector<std::shared_ptr<CollectiveWork>> parts;
  for (const Member& member : members) {
    HMC_ASSIGN(auto part, start(barrier_share(member)));
    parts.push_back(std::move(part));
  }
  const auto engine = parts.front()->engine();
  const auto work = std::make_shared<BarrierWork>(std::move(parts));
  const auto lock = engine->lock();
  work->start(deadline);
  return Work(work);
}

}  // namespace

Status Member::barrier(Deadline deadline) const { return run(barrier_share(*this), deadline); }

Result<Work> Member::ibarrier(Deadline deadline) const { return start_barriers({this, 1}, deadline); }

Status Member::all_to_all(const MemoryView& out, const MemoryView& in, Deadline deadline, std::string_view algorithm) const {
  return run(all_to_all_share(*this, out, in, algorithm), deadline);
}

Result<Work> Member::iall_to_all(const MemoryView& out, const MemoryView& in, std::string_view algorithm) const {
  return as_work(start(all_to_all_share(*this, out, in, algorithm)));
}

Status Member::all_to_all_v(const MemoryView& out, const Layout& out_layout, const MemoryView& in, const Layout& in_layout,
                            Deadline deadline) const {
  return run(all_to_all_v_share(*this, out, out_layout, in, in_layout), deadline);
}

Result<Work> Member::iall_to_all_v(const MemoryView& out, const Layout& out_layout, const MemoryView& in,
                                   const Layout& in_layout) const {
  return as_work(start(all_to_all_v_share(*this, out, out_layout, in, in_layout)));
}

Status Communicator::barrier(Deadline deadline) const {
  HMC_TRY(check(*this));
  std::vector<Share> shares;
  for (const Member& member : local()) {
    HMC_ASSIGN(auto share, barrier_share(member));
    shares.push_back(std::move(share));
  }
  return run_shares(std::move(shares), deadline);
}

Result<Work> Communicator::ibarrier(Deadline deadline) const {
  HMC_TRY(check(*this));
  return start_barriers(local(), deadline);
}

Status Communicator::all_to_all(std::span<const MemberBuffers> members, Deadline deadline, std::string_view algorithm) const {
  for (const auto& one : members) {
    if (one.in.bytes != members.front().in.bytes) {
      return {Code::invalid_argument, "all_to_all: the Members' inputs have different sizes; use all_to_all_v"};
    }
  }
  return run_all(*this, "all_to_all", members, deadline,
                 [&](const MemberBuffers& one) { return all_to_all_share(one.member, one.out, one.in, algorithm); });
}

Status Communicator::all_to_all_v(std::span<const MemberBuffersV> members, Deadline deadline) const {
  return run_all(*this, "all_to_all_v", members, deadline, [](const MemberBuffersV& one) {
    return all_to_all_v_share(one.member, one.out, one.out_layout, one.in, one.in_layout);
  });
}

}  // namespace hmc
