#include "comm/session/rank_scopes.h"

#include <utility>

#include "comm/context_impl.h"

namespace hmc {

void RankScopes::add(std::uint32_t scope, std::vector<std::shared_ptr<PeerState>> owner_by_rank) {
  owners_[scope] = std::move(owner_by_rank);
}

void RankScopes::remove(std::uint32_t scope) {
  owners_.erase(scope);
  context_.notifier().table().drop_scope(scope);
  context_.messenger().drop_scope(scope);
  context_.engine()->wake_waiters();
}

PeerState* RankScopes::owner(std::uint32_t scope, std::uint32_t rank) const noexcept {
  const auto found = owners_.find(scope);
  return found != owners_.end() && rank < found->second.size() ? found->second[rank].get() : nullptr;
}

Status RankScopes::senders_left(std::uint32_t scope, std::uint32_t rank) const {
  Status last;
  const auto found = owners_.find(scope);
  if (found == owners_.end()) return last;
  for (std::uint32_t r = 0; r < found->second.size(); ++r) {
    const PeerState& peer = *found->second[r];
    if (r == rank) continue;
    if (peer.phase() != PeerPhase::lost && peer.phase() != PeerPhase::closed) return {};
    if (last.ok() || last.code() == Code::closed) last = peer.failure();
  }
  return last.with_context("no other rank is left to send");
}

}  // namespace hmc
