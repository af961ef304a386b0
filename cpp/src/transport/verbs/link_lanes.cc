// Link: what happens when a lane fails and others remain.
//
// What was under way on it is in doubt: a write may have been executed without its acknowledgement coming back, or may sit in the
// network still. It is posted again on another lane, which is right because of three things.
// - Until an operation has been reported as complete, nobody may rely on what its target holds, so writing the same bytes there a
//   second time changes nothing for anybody.
// - After it has been reported nothing of the first attempt may land: the target may hold other bytes by then. So nothing is posted
//   again before the peer has closed its end (lane_down): its card executes nothing of that connection afterwards.
// - What the peer was told about by a signal must not be written again, for the signal lets it use the memory. One connection
//   executes in order, and the peer says how many signals it has taken: everything ahead of the last of them has been executed and
//   counts as done; signals behind it have not been, and are sent again.
// Each side closes both its ends, takes the messages that had come, and says so on every lane that is left.
#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "transport/verbs/link.h"

namespace hmc::verbs {
namespace {

constexpr auto steady = std::chrono::seconds(60);  // a lane that has lasted so long is as good as new

}  // namespace

std::size_t Link::live_lanes() const noexcept {
  return static_cast<std::size_t>(std::ranges::count_if(lanes_, [](const auto& lane) { return lane->state == Lane::State::live; }));
}

Lane* Link::first_live() const noexcept {
  Lane* first = nullptr;
  for (const auto& lane : lanes_) {
    if (lane->state == Lane::State::live && (first == nullptr || lane->rank < first->rank)) first = lane.get();
  }
  return first;
}

// The first that has not gone: on the next one the peer may not be ready for signals before. Null: it is on its way out.
Lane* Link::message_lane() const noexcept {
  Lane* const first = first_live();
  const auto before = [&](const auto& lane) {
    return (lane->state == Lane::State::draining || lane->state == Lane::State::left) && lane->rank < first->rank;
  };
  return first == nullptr || std::ranges::any_of(lanes_, before) ? nullptr : first;
}

// Receives for the peer's signals on the lane by which they will come next.
Status Link::ready_for_messages() {
  Lane* const first = first_live();
  if (first == nullptr || first->messages || free_receives_.size() < slots) return {};
  first->messages = true;
  return post_receives(*first, slots);
}

void Link::lose(Lane& lane, const Status& reason) {
  if (!ready_ || !lane.up()) return;
  const bool joining = lane.state == Lane::State::joining;
  if (!joining && live_lanes() == 1) return fail(reason);
  if (!joining) {
    log(LogLevel::warning, "one of " + std::to_string(lanes_.size()) + " verbs connections to a peer is given up (" +
                               std::string(reason.message()) + "); the others take its share");
    if (std::chrono::steady_clock::now() - lane.joined_at >= steady) lane.attempts = 0;
  }
  lane.state = Lane::State::draining;
  lane.outbound.reset();  // it reads and writes no memory here any more
  for (const unsigned slot : std::exchange(lane.returned, {})) free_receives_.push_back(slot);
  // What had arrived is in the completion queue; the other receives come back behind it.
  if (lane.receives_posted == 0) return drained(lane);
  if (const Status flushed = lane.inbound->flush(); !flushed.ok()) return fail(flushed);
  if (watch_timer_ == 0) watch();
}

void Link::drained(Lane& lane) {
  lane.inbound.reset();
  lane.state = Lane::State::left;
  if (const Status ready = ready_for_messages(); !ready.ok()) return fail(ready);
  announce(lane);
  if (lane.peer_left) decide(lane);
}

// Both sides have left the lane, and the peer has told what it took.
void Link::decide(Lane& lane) {
  lane.state = Lane::State::gone;
  std::vector<Record> all;
  std::size_t executed = 0;
  while (lane.posted() != 0) {
    all.push_back(lane.pop());
    const Record& one = all.back();
    if (one.ordinal != 0 && static_cast<std::int32_t>(signals_taken_ - one.ordinal) >= 0) executed = all.size();
  }
  // A read whose answer was lost has been executed, and is worth nothing.
  const auto done = [&](std::size_t i) {
    return i < executed && (all[i].kind == Record::Kind::write || all[i].kind == Record::Kind::message);
  };
  // Of an earlier lane, and not posted since: what of that was posted on this one stands before it.
  const std::deque<Record> behind = std::exchange(resend_, {});
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (done(i)) continue;
    if (all[i].ordinal != 0) --signals_sent_;
    doubt(all[i]);
  }
  for (const Record& one : std::exchange(lane.again, {})) doubt(one);
  for (const Record& one : std::exchange(lane.settles, {})) doubt(one);
  resend_.insert(resend_.end(), behind.begin(), behind.end());
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (done(i)) retire(all[i]);
    if (!ready_) return;
  }
  std::vector<std::uint64_t> idle;
  for (const auto& [number, op] : ops_) {
    if ((op->lanes >> lane.index & 1) != 0) op->lanes |= former_life;
    if (op->begun && op->under_way == 0) idle.push_back(number);
  }
  for (const std::uint64_t number : idle) {
    if (const auto place = ops_.find(number); place != ops_.end()) step(place);
    if (!ready_) return;
  }
  plan_return(lane);
  // What failed ends with the next answer of the peer.
  for (const auto& other : lanes_) {
    if (!condemned_.empty() && other->state == Lane::State::live) other->probe = true;
  }
}

void Link::doubt(const Record& one) {
  const auto place = ops_.find(one.op);
  if (one.kind == Record::Kind::message) {
    const ByteSpan signal(send_slot(one.slot) + head_bytes, one.ordinal != 0 ? one.bytes - head_bytes : 0);
    const bool behind_bytes = one.ordinal != 0 && place != ops_.end();
    if (one.ordinal != 0 && !behind_bytes) return resend_.push_back(one);
    if (behind_bytes) place->second->signal.assign(signal.begin(), signal.end());
    return free_sends_.push_back(one.slot);
  }
  Op& op = *place->second;
  if (one.kind != Record::Kind::settle && op.failure.ok()) {  // still under way, on none
    Record again = one;
    if (std::exchange(again.ordinal, 0) != 0) {  // its signal follows when all has arrived
      const ByteSpan signal = heads_told_.expand(one.immediate);
      op.signal.assign(signal.begin(), signal.end());
    }
    return redo_.push_back(again);
  }
  --op.under_way;
  op.over_again = true;
}

}  // namespace hmc::verbs
