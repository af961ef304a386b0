// What waits: for a peer, for credit, for room; and how operations end.
#include <algorithm>

#include "comm/messenger_impl.h"

namespace hmc::messaging {

Lane& MessengerImpl::lane_of(PeerState& peer) {
  if (peer.lane != nullptr) return *peer.lane;
  // A new peer is the occasion to forget those that are gone and left nothing to receive.
  std::erase_if(lanes_, [](const auto& entry) {
    const Lane& lane = entry.second;
    const bool gone = lane.peer->phase() == PeerPhase::lost || lane.peer->phase() == PeerPhase::closed;
    const bool forget = gone && lane.idle() && lane.heads_held == 0;
    if (forget) lane.peer->lane = nullptr;
    return forget;
  });
  Lane& lane = lanes_[&peer];
  lane.peer = peer.shared_from_this();
  peer.lane = &lane;
  return lane;
}

void MessengerImpl::enqueue(Lane& lane, const std::shared_ptr<SendOperation>& send) {
  send->queued = true;
  lane.sends.push_back(send);
  if (lane.peer->phase() == PeerPhase::ready) {
    pump(lane);
    if (!lane.idle()) want_poll();
    return;
  }
  if (lane.waiting_for_ready) return;
  lane.waiting_for_ready = true;
  // The peer outlives the action; the Messenger outlives every peer's last action (the Context ends them all first).
  PeerState* peer = lane.peer.get();
  peer->when_ready([this, peer](const Status& status) {
    const auto found = lanes_.find(peer);
    if (found == lanes_.end()) return;
    found->second.waiting_for_ready = false;
    if (!status.ok()) return end_operations(peer, status);
    pump(found->second);
    if (!found->second.idle()) want_poll();
  });
}

void MessengerImpl::emit(Lane& lane, Bytes signal) {
  if (lane.peer->phase() != PeerPhase::ready) return;
  if (lane.signals.empty()) {
    const Status sent = lane.peer->signal(signal, {});
    if (sent.code() != Code::would_block) return;  // sent, or the peer is about to be lost
  }
  lane.signals.push_back(std::move(signal));
  want_poll();
}

bool MessengerImpl::pump(Lane& lane) {
  if (lane.peer->phase() != PeerPhase::ready) return false;
  bool moved = false;
  while (!lane.signals.empty()) {
    if (lane.peer->signal(lane.signals.front(), {}).code() == Code::would_block) return moved;
    lane.signals.pop_front();
    moved = true;
  }
  for (auto& unrouted : std::exchange(lane.unrouted, {})) {
    if (!unrouted.operation->done()) start_routed(lane, std::move(unrouted));
  }
  while (!lane.transfers.empty()) {
    const std::shared_ptr<Operation> operation = lane.transfers.front();
    const Status posted = post_transfer(*operation);
    if (posted.code() == Code::would_block) break;
    lane.transfers.pop_front();
    moved = true;
    if (!posted.ok()) operation->part_done(posted);
  }
  while (!lane.sends.empty()) {
    const std::shared_ptr<SendOperation> send = lane.sends.front();
    const Status sent = pump_send(lane, *send);
    if (sent.code() == Code::would_block) break;
    lane.sends.pop_front();
    send->queued = false;
    moved = true;
    if (!sent.ok()) send->complete(sent.with_context(send->describe()));
  }
  return moved;
}

Status MessengerImpl::pump_send(Lane& lane, SendOperation& send) {
  const Status sent = try_eager(lane, send.envelope, send.tag, send.view);
  if (sent.ok()) {
    send.complete({});
    return {};
  }
  return sent.code() == Code::unsupported ? announce(lane, send) : sent;
}

void MessengerImpl::want_poll() {
  if (!polled_) {
    polled_ = true;
    engine()->add(*this);
  }
  engine()->kick();
}

bool MessengerImpl::poll() {
  bool moved = false;
  bool idle = true;
  for (auto& [peer, lane] : lanes_) {
    if (lane.idle()) continue;
    moved = pump(lane) || moved;
    // A lane that waits for credit alone needs no polling: the credit signal will ask for it.
    idle = idle && (lane.idle() || lane.peer->phase() != PeerPhase::ready ||
                    (lane.signals.empty() && lane.transfers.empty() && lane.unrouted.empty() && lane.heads_out >= head_credit));
  }
  if (idle && polled_) {
    polled_ = false;
    engine()->remove(*this);
  }
  return moved;
}

// Nobody rings when a stream has got somewhere.
bool MessengerImpl::arm() {
  return std::ranges::all_of(lanes_, [](const auto& entry) { return entry.second.unrouted.empty(); });
}

std::shared_ptr<Operation> MessengerImpl::moving(std::uint64_t id, PeerState& peer) {
  const auto found = operations_.find(id);
  if (found == operations_.end() || found->second->peer.get() != &peer) return nullptr;
  return found->second;
}

void MessengerImpl::end_operations(const PeerState* peer, const Status& reason) {
  const auto concerns = [peer](const Operation& operation) { return peer == nullptr || operation.peer.get() == peer; };
  for (auto& [key, lane] : lanes_) {
    if (peer != nullptr && key != peer) continue;
    auto sends = std::move(lane.sends);
    lane.sends.clear();
    lane.signals.clear();
    auto transfers = std::move(lane.transfers);
    lane.transfers.clear();
    for (const auto& send : sends) send->complete(reason.with_context(send->describe() + ", not sent"));
    for (const auto& operation : transfers) operation->part_done(reason);
    for (const auto& unrouted : std::exchange(lane.unrouted, {})) {
      if (!unrouted.operation->sending) unrouted.operation->complete(reason.with_context(unrouted.operation->describe()));
    }
  }
  if (direct_ != nullptr && (peer == nullptr || direct_->wanted.peer == peer)) {
    end_direct(reason.with_context("receive of up to " + std::to_string(direct_->view.bytes) + " bytes, nothing was written"));
  }
  for (const auto& receive : matcher_.posted().take_if([&](const Address&, const auto& r) { return concerns(*r); })) {
    receive->complete(reason.with_context(receive->describe() + ", nothing was written"));
  }
  std::vector<std::shared_ptr<Operation>> live;
  for (const auto& [id, operation] : operations_) {
    if (concerns(*operation)) live.push_back(operation);
  }
  for (const auto& operation : live) operation->fail(reason.with_context(operation->describe()));
}

void MessengerImpl::on_peer_gone(PeerState& peer, const Status& reason) {
  end_operations(&peer, reason);
  // Announcements of a dead sender lead nowhere; what arrived whole stays receivable.
  const auto dropped = matcher_.unexpected().take_if(
      [&](const Address& from, const auto& message) { return from.peer == &peer && message->announce != nullptr; });
  if (!dropped.empty()) lane_of(peer).heads_held -= dropped.size();
}

void MessengerImpl::on_context_closing(const Status& reason) {
  end_operations(nullptr, reason);
  static_cast<void>(matcher_.unexpected().take_if([](const Address&, const auto&) { return true; }));
  if (polled_) engine()->remove(*this);
  polled_ = false;
  for (const auto& [peer, lane] : lanes_) lane.peer->lane = nullptr;
  lanes_.clear();
}

void MessengerImpl::forget(Operation& operation) {
  if (operation.id != 0) operations_.erase(operation.id);
}

Status MessengerImpl::cancel(Operation& operation) {
  if (operation.sending) {
    if (operation.queued) {
      Lane& lane = lane_of(*operation.peer);
      std::erase_if(lane.sends, [&](const auto& send) { return send.get() == &operation; });
      operation.queued = false;
      operation.complete(Status(Code::cancelled, operation.describe() + " was cancelled before anything was sent"));
      return {};
    }
    if (operation.announced && !operation.matched) emit(lane_of(*operation.peer), encode_withdraw(operation.id));
    return Status(Code::unsupported,
                  operation.describe() + " is announced to the peer: it ends when the peer has received or refused it");
  }
  if (!operation.matched) {
    static_cast<void>(matcher_.posted().take_if([&](const Address&, const auto& receive) { return receive.get() == &operation; }));
    operation.complete(Status(Code::cancelled, operation.describe() + " was cancelled; nothing was written"));
    return {};
  }
  return cancel_transfer(operation);
}

// A matched receive: what this side fetches can be stopped, what the peer puts cannot.
Status MessengerImpl::cancel_transfer(Operation& receive) {
  const std::string what = receive.describe();
  if (receive.peer_over && receive.moving && receive.peer->phase() == PeerPhase::ready) {
    auto& waiting = lane_of(*receive.peer).transfers;
    const auto place = std::find_if(waiting.begin(), waiting.end(), [&](const auto& other) { return other.get() == &receive; });
    if (place != waiting.end()) {
      waiting.erase(place);
      receive.part_done(Status(Code::cancelled, "cancelled before anything was written"));
      return {};
    }
    // Ends the receive from within, and gives the sender its buffer back.
    Endpoint* endpoint = receive.peer->endpoint(receive.transport);
    if (endpoint != nullptr && endpoint->cancel(&receive.part).ok()) return {};
  }
  return Status(Code::unsupported, what + " is being written: it ends when the bytes are there or the peer is lost");
}

// ---- operations ----

Operation::Operation(MessengerImpl& messenger, std::shared_ptr<PeerState> other, const Envelope& e, std::int64_t t,
                     const MemoryView& v, bool is_send)
    : WorkState(messenger.engine()), owner(messenger), peer(std::move(other)), envelope(e), tag(t), view(v), sending(is_send) {}

Status Operation::cancel_locked() { return owner.cancel(*this); }

std::string Operation::describe() const {
  std::string text = (sending ? "send of " : "receive of up to ") + std::to_string(view.bytes) + " bytes, tag " +
                     (tag == any_tag ? std::string("any") : std::to_string(tag));
  if (peer != nullptr) text += (sending ? ", to " : ", from ") + peer->identity().name;
  return text;
}

void Operation::part_done(Status status) noexcept {
  moving = false;
  if (status.code() == Code::device && peer != nullptr && !hopeless && !doubted) {
    doubted = true;
    const auto answered = [this, keep = shared_from_this(), status] {
      if (!done()) part_done(status);
    };
    part_over = false;
    if (peer->when_alive(answered)) return;
  }
  part_over = true;
  if (!status.ok() && owner.fetch_again(*this, status)) return;
  // A message's region ends with its send.
  if (!sending && status.code() == Code::stale) status = Status(Code::closed, "the sender gave up its send before all was here");
  if (status.code() == Code::peer_lost)
    status = status.with_context(describe() + (sending ? ", of which part was sent" : ", of which part may have been written"));
  if (!status.ok() && outcome.ok()) outcome = peer != nullptr ? peer->meaning_of(std::move(status), may_break) : std::move(status);
  owner.report_part(*this);
  settle();
}

void Operation::peer_done(Status status) {
  peer_over = true;
  if (!status.ok() && outcome.ok()) outcome = std::move(status);
  settle();
}

void Operation::fail(Status status) {
  hopeless = true;
  if (outcome.ok()) outcome = std::move(status);
  settle();
}

void Operation::settle() {
  // While this side's transfer moves, its memory is in use whatever happened.
  if (moving || done()) return;
  if (hopeless || (part_over && peer_over)) complete(outcome);
}

void Operation::released() noexcept {
  owner.forget(*this);
  remote.reset();
  region.reset();
  if (view.owner) engine()->retire(std::move(view.owner));
}

}  // namespace hmc::messaging
