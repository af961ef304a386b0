// Messages without a receive: what one that was cancelled gives back, and what peers and groups that have ended leave behind; and
// receives that nobody will send to.
#include "comm/context_state.h"
#include "comm/counters.h"
#include "comm/messages/receives.h"
#include "comm/session/rank_scopes.h"

namespace hmc::messaging {
namespace {

// Scopes that one peer has closed and this process has not, most of them unknown here: a peer may name any number.
constexpr std::size_t max_left_scopes = 65536;

}  // namespace

void Receives::put_back(ReceiveOperation& receive) {
  PeerState& peer = *receive.peer;
  Lane* const known = lanes_.find(&peer);
  if (known == nullptr || known->peer == nullptr || receive.announce == nullptr) return;  // the peer has ended
  Lane& lane = *known;
  const std::uint64_t sender_op = receive.announce->sender_op;
  Unexpected message;
  message.lane = &lane;
  message.head = receive.announce->head;
  message.arrival = receive.arrival;
  message.put_back = true;
  const bool over = context_.scopes().is_over(message.head.envelope.scope);
  if (receive.status().ok()) {
    if (over) return;
    const Status lost(Code::cancelled, "the message was written to the memory of an earlier receive after its deadline");
    const Address from{&peer, message.head.envelope};
    if (direct_ != nullptr && direct_->fits(from, message.head.tag)) return end_direct(lost);
    if (const auto next = matcher_.match_message(from, message.head.tag)) return end_taken({next}, lost);
    message.missing = lost;
    ++lane.put_back;
    return stash(peer, std::make_unique<Unexpected>(std::move(message)));
  }
  if (peer.phase() != PeerPhase::ready) {
    rendezvous_.finish(peer, sender_op, Status(Code::closed, "the receiver has closed; nothing was read"));
    message.missing = peer.failure();
  } else if (receive.withdrawn) {
    rendezvous_.finish(peer, sender_op, Status(Code::cancelled, "withdrawn after its receive was cancelled"));
    if (!receive.withdrawn->leaving) return;
    message.missing = sender_left(peer);
  } else if (over) {
    rendezvous_.finish(peer, sender_op, receiver_left());
  } else {
    context_.counters().add("messages.put_back", 1);
    message.announce = std::move(receive.announce);
    if (meet(peer, message)) return;
  }
  if (over) return;
  ++lane.put_back;
  stash(peer, std::make_unique<Unexpected>(std::move(message)));
  drop_last_missing(matcher_, lanes_, peer);
}

void Receives::put_back(PeerState& peer, std::unique_ptr<Unexpected> eager) {
  Lane& lane = *eager->lane;
  if (context_.scopes().is_over(eager->head.envelope.scope)) return context_.counters().add("messages.discarded", 1);
  context_.counters().add("messages.put_back", 1);
  if (meet_eager(peer, lane, eager->head, eager->payload)) return;
  eager->put_back = true;
  ++lane.put_back;
  stash(peer, std::move(eager));
}

Status sender_left(const PeerState& peer) {
  return {Code::closed, peer.describe() + " closed before this message was received; it was not sent"};
}

Status receiver_left() { return {Code::closed, "the receiver left the group"}; }

// An announced message is lost with its sender. Eager messages stay receivable, in order.
void Receives::drop_announcements(PeerState& peer, const Status& to_sender, const Status& to_receiver) {
  std::vector<std::uint64_t> announced;
  matcher_.unexpected().for_each([&](const Address& from, const auto& message) {
    if (from.peer != &peer || message->announce == nullptr) return;
    announced.push_back(message->announce->sender_op);
    message->announce.reset();
    message->missing = to_receiver;
  });
  drop_last_missing(matcher_, lanes_, peer);
  for (const std::uint64_t op : announced) rendezvous_.finish(peer, op, to_sender);
}

void drop_last_missing(Messages& messages, Lanes& lanes, const PeerState& peer) {
  for (const auto& message : messages.unexpected().take_last_if(
           [&](const Address& from, const auto& last) { return from.peer == &peer && !last->missing.ok(); })) {
    lanes.unstashed(*message);
  }
}

void Receives::on_peer_gone(PeerState& peer, const Status& reason) {
  drop_announcements(peer, reason, reason);
  ++departures_;
  if (peer.lane != nullptr && peer.lane->departure == 0) {
    peer.lane->departure = departures_;
    peer.lane->departed = peer.lane->peer;
    peer.lane->peer = nullptr;
    bound_unread();
  }
  end_receives_from_nobody();
}

// Of a scope that is not known yet: its group may be made later.
void Receives::on_left(PeerState& peer, Lane& lane, std::uint32_t scope) {
  lanes_.consumed(lane, 0);
  const RankScopes& scopes = context_.scopes();
  if (scopes.is_over(scope) || lane.left.contains(scope)) return;
  if (lane.left.size() >= max_left_scopes) return context_.counters().add("messages.discarded", 1);
  lane.left.insert(scope);
  ++departures_;
  const auto owner = peer.shared_from_this();
  const std::vector<std::uint32_t> ranks = scopes.ranks_of(scope, peer);
  if (ranks.empty()) return;
  for (const std::uint32_t rank : ranks) {
    end_posted(
        [&](const Address& wanted) {
          return wanted.peer == &peer && wanted.envelope.scope == scope && wanted.envelope.src == rank;
        },
        left_status(peer, rank));
  }
  end_receives_from_nobody();
}

void Receives::end_receives_from_nobody() {
  std::vector<Status> reasons;  // of each receive that is taken
  const auto ended = matcher_.posted().take_if([&](const Address& wanted, const auto&) {
    if (!wanted.any()) return false;
    Status left = context_.scopes().message_senders_left(wanted.envelope.scope, wanted.envelope.dst);
    if (left.ok()) return false;
    reasons.push_back(std::move(left));
    return true;
  });
  for (std::size_t i = 0; i < ended.size(); ++i) end_taken({ended[i]}, reasons[i]);
}

void Receives::discard_all() {
  static_cast<void>(matcher_.unexpected().take_if([](const Address&, const auto&) { return true; }));
}

void Receives::discard_unread(const PeerState* peer, Lane& lane) {
  const auto dropped = matcher_.unexpected().take_if([&](const Address& from, const auto&) { return from.peer == peer; });
  lane.held.release_all();
  lane.put_back = 0;
  if (!dropped.empty()) context_.counters().add("messages.discarded", dropped.size());
}

void Receives::bound_unread() {
  while (true) {
    std::uint64_t together = 0;
    auto& all = lanes_.all();
    auto first = all.end();
    for (auto each = all.begin(); each != all.end(); ++each) {
      const Lane& lane = each->second;
      if (lane.departure == 0 || lane.held.held().heads == 0) continue;
      together += lane.held.memory();
      if (first == all.end() || lane.departure < first->second.departure) first = each;
    }
    if (together <= max_left_unread) return;
    discard_unread(first->first, first->second);
  }
}

void Receives::drop_departed(const PeerState* peer) {
  Lane* const lane = lanes_.find(peer);
  if (lane == nullptr || lane->owner() != nullptr) return;
  discard_unread(peer, *lane);
  lanes_.all().erase(peer);
}

void Receives::drop_scope(std::uint32_t scope) {
  end_posted([scope](const Address& wanted) { return wanted.envelope.scope == scope; }, communicator_closed());
  for (auto& [peer, lane] : lanes_.all()) lane.left.erase(scope);
  for (const auto& message :
       matcher_.unexpected().take_if([&](const Address& from, const auto&) { return from.envelope.scope == scope; })) {
    const Lane& lane = *message->lane;
    if (message->announce != nullptr && lane.peer != nullptr)
      rendezvous_.finish(*lane.peer, message->announce->sender_op, receiver_left());
    lanes_.unstashed(*message);
  }
}

}  // namespace hmc::messaging
