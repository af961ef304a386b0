// Link: how a lane that has failed comes back.
//
// Only when both sides have left it and what was in doubt is decided (link_lanes.cc): nothing of its former life can arrive then.
// The new one has queue pairs of its own, and a number (`life`) that its messages carry, so that none of the former is taken for
// one of it. One side leads: when its port is active it makes its end and offers it on the lanes that live; the other makes its end
// and answers likewise; the leader connects and sends a message over the new lane. Whoever gets something back over it (the leader
// the acknowledgement, the other that message) uses it from then on. One that does not carry is left again as any that fails, and
// is tried again later, ever more rarely. It stands behind the others (`rank`): signals go on by the lane that they took.
#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "transport/verbs/link.h"

namespace hmc::verbs {
namespace {

constexpr double first_pause_seconds = 1;
constexpr unsigned doublings = 5;

}  // namespace

void Link::plan_return(const Lane& lane) {
  if (!leads_ || return_timer_ != 0) return;
  const double pause = first_pause_seconds * (1U << std::min(lane.attempts, doublings));
  return_timer_ = shared_->engine->at(Deadline::after_seconds(pause), [this] {
    return_timer_ = 0;
    offer_lanes();
  });
}

void Link::offer_lanes() {
  const auto keep = shared_from_this();
  for (std::size_t i = 0; i < lanes_.size() && ready_; ++i) {
    Lane& gone = *lanes_[i];
    if (gone.state != Lane::State::gone) continue;
    ++gone.attempts;
    if (!gone.nic.active() || !renew(i, static_cast<std::uint16_t>(gone.life + 1), ++last_rank_).ok()) {
      plan_return(gone);
      continue;
    }
    announce(*lanes_[i]);
  }
  if (ready_) advance();
}

// This end of the lane's next life.
Status Link::renew(std::size_t index, std::uint16_t life, std::uint32_t rank) {
  const Lane& gone = *lanes_[index];
  if (free_receives_.size() < notes_) return Status(Code::out_of_memory, "no room for the messages of another lane");
  HMC_ASSIGN(auto lane, Lane::create(gone.nic, index, gone.id, slots + notes_));
  lane->state = Lane::State::joining;
  lane->has_lived = false;
  lane->peer = gone.peer;
  lane->memory_key = gone.memory_key;
  lane->sink_key = gone.sink_key;
  lane->own.sink = gone.own.sink;
  lane->oldest = lane->next = (gone.next + Lane::depth) & Lane::sequence_mask;
  lane->attempts = gone.attempts;
  lane->rank = rank;
  lane->life = life;
  lane->introduced = false;
  HMC_TRY(post_receives(*lane, notes_));
  lanes_[index] = std::move(lane);
  return {};
}

// To be told on every lane that lives, for any of them may fail.
void Link::announce(const Lane& lane) {
  for (const auto& other : lanes_) {
    if (other->state == Lane::State::live) other->to_announce.push_back(static_cast<std::uint8_t>(lane.index));
  }
}

void Link::add_announcements(Lane& lane, Batch& batch) {
  const Lane& told = *lanes_[lane.to_announce.back()];
  lane.to_announce.pop_back();
  const auto index = static_cast<std::uint8_t>(told.index);
  if (told.state == Lane::State::joining) {
    add_message(lane, batch, {MessageKind::lane_up, index, told.life, consumed_}, 0, encode_offer({told.rank, told.own}), {});
  } else if (told.state == Lane::State::left || told.state == Lane::State::gone) {
    add_message(lane, batch, {MessageKind::lane_down, index, told.life, consumed_}, 0, {}, {});
  }
}

// False: the link is over.
bool Link::on_offer(const MessageHead& head, ByteSpan body) {
  const auto offer = decode_offer(body);
  Lane* lane = lanes_[head.lane].get();
  const bool answer = leads_ && head.life == lane->life;
  const bool next = !leads_ && head.life == static_cast<std::uint16_t>(lane->life + 1);
  if (offer.ok() && !answer && !next) return true;  // told before
  if (!offer.ok() || offer->address.port.nic != lane->peer.port.nic || (next && lane->state != Lane::State::gone)) {
    fail(Status(Code::protocol, "the peer offered a verbs connection that cannot be"));
    return false;
  }
  if (answer) {
    if (lane->state != Lane::State::joining || lane->introduced) return true;
    const Status status = introduce(*lane, offer->address);
    lane->probe = status.ok();
    if (!status.ok()) lose(*lane, status);
    return ready_;
  }
  last_rank_ = offer->rank;
  Status status = renew(head.lane, head.life, offer->rank);
  if (!status.ok()) {
    lane->life = head.life;  // the leader is told that it has been left at once
    announce(*lane);
    return true;
  }
  lane = lanes_[head.lane].get();
  status = introduce(*lane, offer->address);
  if (!status.ok()) {
    lose(*lane, status);
  } else {
    announce(*lane);
  }
  return ready_;
}

Status Link::introduce(Lane& lane, const LaneAddress& peer) {
  lane.introduced = true;
  lane.peer = peer;
  HMC_TRY(lane.connect_inbound(shared_->patience));
  return lane.connect_outbound(shared_->patience);
}

void Link::join(Lane& lane) {
  lane.state = Lane::State::live;
  lane.has_lived = true;
  lane.joined_at = std::chrono::steady_clock::now();
  log(LogLevel::warning, "a verbs connection to a peer that was given up carries again (" + lane.nic.name() + ")");
}

}  // namespace hmc::verbs
