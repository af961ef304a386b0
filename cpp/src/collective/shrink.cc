// Communicator::shrink: the ranks that are left form a new group.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "collective/agree.h"
#include "collective/communicator_state.h"
#include "collective/member_calls.h"
#include "collective/share_memory.h"
#include "comm/session/rank_scopes.h"
#include "hmc/communicator.h"

namespace hmc {
namespace {

// The caller knows that ranks of `old` are gone: what was posted to them is no loss that the close of the Context has to report.
void leave_out_removed(const Group& old, const Group& shrunk) {
  const std::vector<std::uint32_t> kept = processes_of(shrunk);
  const auto lock = old.engine()->lock();
  for (std::uint32_t r = 0; r < old.size(); ++r) {
    if (std::ranges::find(kept, old.rank(r).process) == kept.end()) old.context().scopes().leave_out(*old.rank(r).peer);
  }
}

}  // namespace

Result<Communicator> Communicator::shrink(Deadline deadline) const {
  HMC_TRY(check(*this));
  const auto& group = state_->group;
  std::shared_ptr<Shrinking> shrinking;
  {
    const auto lock = group->engine()->lock();
    shrinking = group->world()->shrinks().begin(*group);
  }
  auto agreed = agree(*group, *shrinking, Agreed::living, deadline);
  if (!agreed) return agreed.status().with_context("shrink");
  leave_out_removed(*group, **agreed);
  Communicator shrunk = communicator_of(state_->context, *agreed);
  if (const Status shared = share_memory_of_new(*agreed, deadline); !shared.ok()) return shared.with_context("shrink");
  return shrunk;
}

std::vector<int> Communicator::old_ranks() const {
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r) {
    const std::uint32_t origin = state_->group->rank(static_cast<std::uint32_t>(r)).origin;
    ranks.push_back(origin == RankInfo::newcomer ? -1 : static_cast<int>(origin));
  }
  return ranks;
}

}  // namespace hmc
