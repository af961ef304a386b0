#include "collective/group_notices.h"

#include <algorithm>
#include <utility>

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
  const Key key{breakage.group_id, type, breakage.aborts()};
  const auto [told, is_first] = told_.try_emplace(key, Told{breakage.sequence, next_told_});
  if (!is_first) {
    if (told->second.sequence <= breakage.sequence) return false;
    told->second.sequence = breakage.sequence;
    return true;
  }
  told_order_.emplace(next_told_++, key);
  if (told_.size() > max_told) {
    told_.erase(told_order_.begin()->second);
    told_order_.erase(told_order_.begin());
  }
  return true;
}

void GroupNotices::forget(MessageType type, std::uint64_t group_id) {
  for (const bool aborted : {false, true}) {
    if (const auto told = told_.extract({group_id, type, aborted})) told_order_.erase(told.mapped().number);
  }
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
  const auto [number, is_first] = kept_numbers_.try_emplace({breakage.group_id, type, breakage.aborts()}, next_kept_);
  if (!is_first) {
    job::Breakage& known = kept_.at(number->second).breakage;
    if (breakage.sequence < known.sequence) known = breakage;
    return;
  }
  kept_.emplace(next_kept_++, Notice{type, breakage});
  if (kept_.size() <= max_kept) return;
  const Notice& oldest = kept_.begin()->second;
  kept_numbers_.erase({oldest.breakage.group_id, oldest.type, oldest.breakage.aborts()});
  kept_.erase(kept_.begin());
  count_discarded(context);
}

std::vector<GroupNotices::Notice> GroupNotices::take(std::uint64_t group_id) {
  std::vector<std::uint64_t> numbers;
  const auto first = kept_numbers_.lower_bound({group_id, MessageType{}, false});
  auto end = first;
  for (; end != kept_numbers_.end() && std::get<0>(end->first) == group_id; ++end) numbers.push_back(end->second);
  kept_numbers_.erase(first, end);
  std::ranges::sort(numbers);
  std::vector<Notice> found;
  for (const std::uint64_t number : numbers) found.push_back(std::move(kept_.extract(number).mapped()));
  return found;
}

}  // namespace hmc
