#include "collective/group_notices.h"

#include <algorithm>
#include <iterator>

namespace hmc {
namespace {

// Beyond these the oldest are discarded: a rank that would have needed one waits for its deadline.
constexpr std::size_t max_unsent = 256;  // to one peer
constexpr std::size_t max_kept = 4096;
constexpr std::size_t max_told = 65536;

}  // namespace

bool GroupNotices::full() const noexcept { return told_.size() >= max_told; }

bool GroupNotices::is_new(MessageType type, const job::Breakage& breakage) {
  const auto [told, is_first] = told_.try_emplace({breakage.group_id, type, breakage.aborts()}, breakage.sequence);
  if (!is_first && told->second <= breakage.sequence) return false;
  told->second = breakage.sequence;
  return true;
}

void GroupNotices::forget(MessageType type, std::uint64_t group_id) {
  for (const bool aborted : {false, true}) told_.erase({group_id, type, aborted});
}

void GroupNotices::send(const std::vector<std::shared_ptr<PeerState>>& peers, MessageType type, const job::Breakage& breakage) {
  const auto message = std::make_shared<const Bytes>(encode(breakage));
  for (const auto& peer : peers) {
    const PeerPhase phase = peer->phase();
    if (phase == PeerPhase::ready) static_cast<void>(peer->send_control(type, *message));  // the end of a peer is noticed by itself
    if (phase != PeerPhase::idle && phase != PeerPhase::connecting) continue;
    const auto [found, is_first] = unsent_->try_emplace(peer.get());
    std::deque<Message>& messages = found->second;
    messages.emplace_back(type, message);
    if (messages.size() > max_unsent) messages.pop_front();
    if (!is_first) continue;
    const auto send_all = [unsent = unsent_, &to = *peer](const Status& ready) {
      const auto all = unsent->extract(&to);
      if (all.empty() || !ready.ok()) return;
      for (const auto& [each, payload] : all.mapped()) static_cast<void>(to.send_control(each, *payload));
    };
    peer->when_ready(send_all, WhenIdle::wait);
  }
}

void GroupNotices::keep(MessageType type, const job::Breakage& breakage) {
  const auto known = std::ranges::find_if(kept_, [&](const Notice& each) {
    return each.type == type && each.breakage.group_id == breakage.group_id && each.breakage.aborts() == breakage.aborts();
  });
  if (known != kept_.end()) {
    if (breakage.sequence < known->breakage.sequence) known->breakage = breakage;
    return;
  }
  kept_.push_back({type, breakage});
  if (kept_.size() > max_kept) kept_.pop_front();
}

std::vector<GroupNotices::Notice> GroupNotices::take(std::uint64_t group_id) {
  const auto of_group =
      std::stable_partition(kept_.begin(), kept_.end(), [&](const Notice& each) { return each.breakage.group_id != group_id; });
  std::vector<Notice> found(std::make_move_iterator(of_group), std::make_move_iterator(kept_.end()));
  kept_.erase(of_group, kept_.end());
  return found;
}

}  // namespace hmc
