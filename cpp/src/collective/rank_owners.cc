#include "collective/rank_owners.h"

#include <algorithm>

#include "comm/context_state.h"

namespace hmc {

void RankOwners::add(const PeerState* peer, std::uint32_t rank) { ++owned_.try_emplace(peer, Owned{rank, 0}).first->second.count; }

RankOwners::Owned RankOwners::owned_by(const PeerState* peer) const noexcept {
  const auto found = owned_.find(peer);
  return found == owned_.end() ? Owned{} : found->second;
}

void RankOwners::note(const RemoteBuffer& remote, const PeerState* peer, std::uint32_t rank) {
  if (owned_by(peer).count < 2) return;  // the peer says it all
  const auto lock = engine_->lock();
  if (noted_.size() >= sweep_at_) {
    std::erase_if(noted_, [](const auto& entry) { return entry.second.state.expired(); });
    sweep_at_ = std::max<std::size_t>(64, 2 * noted_.size());
  }
  noted_.insert_or_assign(remote.state().get(), Noted{remote.state(), rank});
}

Result<std::uint32_t> RankOwners::rank_of(const RemoteBuffer& remote) const {
  if (!remote.valid()) return Status(Code::invalid_argument, "the RemoteBuffer is empty");
  const Owned owned = owned_by(owner_of(remote).get());
  if (owned.count == 1) return owned.first;
  if (owned.count == 0) {
    return Status(Code::invalid_argument, "the RemoteBuffer belongs to a process outside this Communicator; use its Peer");
  }
  const auto lock = engine_->lock();
  const auto found = noted_.find(remote.state().get());
  return found == noted_.end() ? owned.first : found->second.rank;
}

}  // namespace hmc
