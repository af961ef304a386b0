// Communicator::abort: every collective of the group ends, on every rank.
#include <string>
#include <string_view>

#include "collective/communicator_state.h"
#include "collective/member_calls.h"
#include "hmc/communicator.h"

namespace hmc {
namespace {

void abort_group(Group& group, std::uint32_t rank, std::string_view reason) {
  std::string why = group.describe(rank) + " aborted the Communicator";
  if (!reason.empty()) why.append(": ").append(reason);
  const job::Breakage breakage{group.id(), job::Breakage::every, Status(Code::cancelled, std::move(why))};
  const auto lock = group.engine()->lock();
  group.world()->broke(breakage);
  // A rank whose only connections are to dead or stopped ranks would not be told otherwise.
  for (const auto& [peer, owned] : group.owners().all()) {
    const auto& other = group.rank(owned.first).peer;
    if (other->phase() == PeerPhase::idle || other->phase() == PeerPhase::connecting) send_broken(other, breakage);
  }
}

}  // namespace

Status Member::abort(std::string_view reason) const {
  HMC_TRY(check(state_));
  abort_group(*state_->group, static_cast<std::uint32_t>(rank_), reason);
  return {};
}

Status Communicator::abort(std::string_view reason) const {
  HMC_TRY(check(*this));
  abort_group(*state_->group, state_->group->local().front(), reason);
  return {};
}

}  // namespace hmc
