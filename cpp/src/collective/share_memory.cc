#include "collective/share_memory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "collective/communicator_state.h"
#include "collective/group.h"
#include "collective/member_calls.h"
#include "collective/world.h"
#include "hmc/communicator.h"

namespace hmc {
namespace {

// Whether every rank says yes.
Result<bool> all_say(bool yes, const std::shared_ptr<Group>& group, Deadline deadline) {
  const Bytes own{yes ? std::byte{1} : std::byte{0}};
  HMC_ASSIGN(const auto said,
             gather_bytes(group, group->local(), std::vector<Bytes>(group->local().size(), own), CallKind::share_memory, deadline));
  return std::ranges::all_of(said, [](const Bytes& one) { return one == Bytes{std::byte{1}}; });
}

}  // namespace

Status share_memory(const std::shared_ptr<Group>& group, Deadline deadline) {
  fused::Offers& offers = group->world()->offers();
  if (!fused::Offers::may_share(*group)) return {};
  // Rank 0's process sends the segment first. After the first gathering it is on its way to everybody. Only a collective can wait
  // for ranks that have not called: an abort, a close and another call of a rank end it.
  const bool makes = group->rank(0).peer->is_self();
  std::shared_ptr<fused::Segment> segment;
  if (makes) segment = offers.share(*group, true, deadline);
  HMC_TRY(all_say(true, group, deadline).status());
  if (!makes) segment = offers.share(*group, true, deadline);
  HMC_ASSIGN(const bool all_mapped, all_say(segment != nullptr, group, deadline));
  if (segment && all_mapped) group->fused().use(std::move(segment));
  return {};
}

Status share_memory_of_new(const std::shared_ptr<Group>& group, Deadline deadline) {
  Status shared = share_memory(group, deadline);
  return shared.code() == Code::peer_lost ? Status() : shared;
}

Status Communicator::share_memory(Deadline deadline) const {
  HMC_TRY(check(*this));
  const auto& group = state_->group;
  HMC_TRY(group->open());
  if (group->fused().possible()) return {};
  {
    const auto lock = group->engine()->lock();
    if (has_begun(*group))
      return {Code::invalid_argument, "share_memory: the Communicator has begun a collective; this comes before its first one"};
  }
  return hmc::share_memory(group, deadline);
}

}  // namespace hmc
