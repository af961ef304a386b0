// Communicator::shrink: the ranks that are left form a new group.
#include <memory>

#include "collective/agree.h"
#include "collective/communicator_state.h"
#include "collective/member_calls.h"
#include "collective/share_memory.h"
#include "hmc/communicator.h"

namespace hmc {

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
