#include "comm/messages/sends.h"

#include <utility>

#include "comm/messages/messenger_impl.h"
#include "comm/onesided/transfer.h"

namespace hmc::messaging {

Result<std::shared_ptr<WorkState>> Sends::post(const Target& to, std::int64_t tag, const MemoryView& view) {
  HMC_TRY(check_message(to, tag, view, false));
  return post_checked(to, tag, view);
}

void Sends::leave_scope(const std::shared_ptr<PeerState>& peer, std::uint32_t scope) {
  static_cast<void>(post_checked({peer, {scope, 0, 0}}, leaving_tag, {}));  // an ended peer sends and receives nothing more
}

Result<std::shared_ptr<WorkState>> Sends::post_checked(const Target& to, std::int64_t tag, const MemoryView& view) {
  const auto& peer = to.peer;
  Lane& lane = lanes_.of(*peer);
  if (lane.open()) {
    const Status sent = lane.send_eager({to.envelope, tag, to.call}, view);
    if (sent.ok()) return context_.done_work();
    if (sent.code() != Code::would_block && sent.code() != Code::unsupported) return sent;
  }
  HMC_ASSIGN(auto after, mark_stream(view.stream, view.device));
  auto send = std::make_shared<SendOperation>(messenger_, to, tag, view);
  send->after = std::move(after);
  send->accepted();
  if (peer->fenced()) {
    send->wait_behind_fence();
    context_.engine()->kick();
  } else {
    enqueue(send);
  }
  return std::shared_ptr<WorkState>(std::move(send));
}

bool Sends::send_now(const Target& to, std::int64_t tag, const MemoryView& view) {
  Lane& lane = lanes_.of(*to.peer);
  return lane.open() && lane.send_eager({to.envelope, tag, to.call}, view).ok();
}

void Sends::enqueue(const std::shared_ptr<SendOperation>& send) {
  Lane& lane = lanes_.of(*send->peer);
  send->stage = Stage::queued;
  lane.sends.push_back(send);
  if (lane.carries()) {
    pump(lane);
    if (!lane.idle()) lanes_.want_poll();
    return;
  }
  if (lane.waiting_for_ready) return;
  lane.waiting_for_ready = true;
  // The peer outlives the action; the Messenger outlives every peer's last action (the Context ends them all first).
  PeerState* peer = lane.peer.get();
  peer->when_ready([this, peer](const Status& status) {
    Lane* const waiting = lanes_.find(peer);
    if (waiting == nullptr) return;
    waiting->waiting_for_ready = false;
    if (!status.ok()) return messenger_.end_operations(peer, status);
    pump(*waiting);
    if (!waiting->idle()) lanes_.want_poll();
  });
}

bool Sends::pump(Lane& lane) {
  if (lane.departure != 0) rendezvous_.route_waiting(lane);  // what arrived whole, for memory that a stream still used
  if (!lane.carries()) return false;
  bool moved = false;
  while (!lane.signals.empty()) {
    if (lane.peer->signal(lane.signals.front(), {}).code() == Code::would_block) return moved;
    lane.signals.pop_front();
    moved = true;
  }
  moved = rendezvous_.pump(lane) || moved;
  while (!lane.sends.empty()) {
    const std::shared_ptr<SendOperation> send = lane.sends.front();
    Status sent = lane.send_eager({send->envelope, send->tag, send->call}, send->view);
    if (sent.ok()) send->complete({});
    if (sent.code() == Code::unsupported) sent = rendezvous_.announce(lane, *send);
    if (sent.code() == Code::would_block) break;
    lane.sends.pop_front();
    moved = true;
    if (!sent.ok()) send->complete(sent.with_context(send->describe()));
  }
  if (moved && lane.idle()) lane.peer->operation_over();
  return moved;
}

Status Sends::cancel(SendOperation& send) {
  if (send.behind_fence()) {
    static_cast<void>(send.peer->posts().remove(&send));
    send.leave_fence();
    send.complete(Status(Code::cancelled, send.describe() + " was cancelled behind its fence; nothing was sent"));
    return {};
  }
  Lane& lane = lanes_.of(*send.peer);
  if (send.stage == Stage::queued) {
    std::erase_if(lane.sends, [&](const auto& other) { return other.get() == &send; });
    send.complete(Status(Code::cancelled, send.describe() + " was cancelled before anything was sent"));
    return {};
  }
  if (send.stage == Stage::announced && send.ask_back()) lanes_.emit(lane, encode(Withdraw{send.id, false}));
  return Status(Code::unsupported, send.describe() + " is announced to the peer: it ends when the peer has received or refused it");
}

void Sends::end_queued(const PeerState* peer, const Status& reason) {
  for (auto& [key, lane] : lanes_.all()) {
    if (peer != nullptr && key != peer) continue;
    for (const auto& send : std::exchange(lane.sends, {})) {
      send->complete(reason.with_context(send->describe() + ", not sent"));
    }
  }
}

}  // namespace hmc::messaging
