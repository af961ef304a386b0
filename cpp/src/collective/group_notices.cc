#include "collective/group_notices.h"

#include <algorithm>
#include <iterator>

#include "base/log.h"
#include "comm/context_state.h"
#include "comm/counters.h"
#include "comm/messages/messenger.h"

namespace hmc {
namespace {

// Beyond these the oldest are discarded: a rank that would have needed one waits for its deadline.
constexpr std::size_t max_unsent = 4096;  // to one peer
constexpr std::size_t min_unsent = 256;   // the same, where many peers are not connected
constexpr std::size_t max_all_unsent = 1 << 18;
constexpr std::size_t max_kept = 4096;
constexpr std::size_t max_told = 65536;

constexpr MessageType no_control = 0;  // send_left()

void count_discarded(ContextState& context) {
  context.counters().add("group_notices.discarded", 1);
  warn_once("group_notices",
            "more groups ended than are remembered for ranks that are not connected or have not made them; such a rank "
            "may wait for its deadline in a call of one");
}

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
  const Message message{{breakage.group_id, type, breakage.aborts()}, std::make_shared<const Bytes>(encode(breakage))};
  for (const auto& peer : peers) send(*peer, message);
}

void GroupNotices::send_left(const std::vector<std::shared_ptr<PeerState>>& peers, std::uint64_t group_id, std::uint32_t scope) {
  for (const auto& peer : peers) send(*peer, {{group_id, no_control, false}, nullptr, scope});
}

void GroupNotices::send(PeerState& peer, const Message& message) {
  const PeerPhase phase = peer.phase();
  if (phase == PeerPhase::ready) return deliver(peer, message);
  if (phase != PeerPhase::idle && phase != PeerPhase::connecting) return;
  const auto [found, is_first] = unsent_->try_emplace(&peer);
  Waiting& waiting = found->second;
  const auto [number, is_new] = waiting.numbers.try_emplace(message.key, waiting.next);
  waiting.messages[number->second] = message;
  if (is_new) ++waiting.next;
  if (waiting.messages.size() > std::clamp(max_all_unsent / unsent_->size(), min_unsent, max_unsent)) {
    const auto oldest = waiting.messages.begin();
    waiting.numbers.erase(oldest->second.key);
    waiting.messages.erase(oldest);
    count_discarded(peer.context());
  }
  if (!is_first) return;
  const auto send_all = [unsent = unsent_, &to = peer](const Status& ready) {
    const auto all = unsent->extract(&to);
    if (all.empty() || !ready.ok()) return;
    for (const auto& [place, kept] : all.mapped().messages) deliver(to, kept);
  };
  peer.when_ready(send_all, WhenIdle::wait);
}

// The end of a peer is noticed by itself.
void GroupNotices::deliver(PeerState& peer, const Message& message) {
  if (message.payload == nullptr) return leave_scope(peer, message.scope);
  static_cast<void>(peer.send_control(std::get<MessageType>(message.key), *message.payload));
}

void GroupNotices::keep(MessageType type, const job::Breakage& breakage, ContextState& context) {
  const auto known = std::ranges::find_if(kept_, [&](const Notice& each) {
    return each.type == type && each.breakage.group_id == breakage.group_id && each.breakage.aborts() == breakage.aborts();
  });
  if (known != kept_.end()) {
    if (breakage.sequence < known->breakage.sequence) known->breakage = breakage;
    return;
  }
  kept_.push_back({type, breakage});
  if (kept_.size() <= max_kept) return;
  kept_.pop_front();
  count_discarded(context);
}

std::vector<GroupNotices::Notice> GroupNotices::take(std::uint64_t group_id) {
  const auto of_group =
      std::stable_partition(kept_.begin(), kept_.end(), [&](const Notice& each) { return each.breakage.group_id != group_id; });
  std::vector<Notice> found(std::make_move_iterator(of_group), std::make_move_iterator(kept_.end()));
  kept_.erase(of_group, kept_.end());
  return found;
}

}  // namespace hmc
