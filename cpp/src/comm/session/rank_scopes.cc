#include "comm/session/rank_scopes.h"

#include <utility>

#include "comm/context_impl.h"
#include "comm/messages/lanes.h"

namespace hmc {
namespace {

// Of the scopes that ended, at least so many are remembered: late messages of older ones stay unread until their peer ends.
constexpr std::size_t min_over = 32768;

Status why_ended(const PeerState& peer) {
  return peer.phase() == PeerPhase::lost || peer.phase() == PeerPhase::closed ? peer.failure() : Status();
}

}  // namespace

Status communicator_closed() { return {Code::closed, "the Communicator is closed"}; }

void RankScopes::add(std::uint32_t scope, std::vector<std::shared_ptr<PeerState>> owner_by_rank) {
  over_.erase(scope);
  earlier_over_.erase(scope);
  owners_[scope] = std::move(owner_by_rank);
}

void RankScopes::remove(std::uint32_t scope) {
  owners_.erase(scope);
  if (over_.size() >= min_over) earlier_over_ = std::exchange(over_, {});
  over_.insert(scope);
  context_.notifier().table().drop_scope(scope);
  context_.messenger().drop_scope(scope);
  context_.engine()->wake_waiters();
}

void RankScopes::leave_out(const PeerState& peer) { context_.closing().expect_lost(peer); }

PeerState* RankScopes::owner(std::uint32_t scope, std::uint32_t rank) const noexcept {
  const auto found = owners_.find(scope);
  return found != owners_.end() && rank < found->second.size() ? found->second[rank].get() : nullptr;
}

std::vector<std::uint32_t> RankScopes::ranks_of(std::uint32_t scope, const PeerState& peer) const {
  std::vector<std::uint32_t> ranks;
  const auto found = owners_.find(scope);
  if (found == owners_.end()) return ranks;
  for (std::uint32_t r = 0; r < found->second.size(); ++r) {
    if (found->second[r].get() == &peer) ranks.push_back(r);
  }
  return ranks;
}

template <class WhyNot>
Status RankScopes::senders_left(std::uint32_t scope, std::uint32_t rank, WhyNot why_not) const {
  Status last;
  const auto found = owners_.find(scope);
  if (found == owners_.end()) return last;
  for (std::uint32_t r = 0; r < found->second.size(); ++r) {
    if (r == rank) continue;
    const Status why = why_not(*found->second[r], r);
    if (why.ok()) return {};
    if (last.ok() || last.code() == Code::closed) last = why;
  }
  return last.with_context("no other rank is left to send");
}

Status RankScopes::senders_left(std::uint32_t scope, std::uint32_t rank) const {
  return senders_left(scope, rank, [](const PeerState& peer, std::uint32_t) { return why_ended(peer); });
}

Status RankScopes::message_senders_left(std::uint32_t scope, std::uint32_t rank) const {
  return senders_left(scope, rank, [scope](const PeerState& peer, std::uint32_t r) {
    const Status ended = why_ended(peer);
    return ended.ok() && messaging::has_left(peer, scope) ? messaging::left_status(peer, r) : ended;
  });
}

}  // namespace hmc
