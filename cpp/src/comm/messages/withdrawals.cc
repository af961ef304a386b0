// Stopping what is being moved: a receive that is withdrawn, and the put of its sender.
#include <algorithm>

#include "comm/context_state.h"
#include "comm/messages/withdrawals.h"
#include "comm/routing/peer_routes.h"

namespace hmc::messaging {

Status Withdrawals::cancel(Operation& operation) {
  if (operation.sending) return sends_.cancel(static_cast<SendOperation&>(operation));
  auto& receive = static_cast<ReceiveOperation&>(operation);
  if (receive.stage != Stage::posted) return stop(receive);
  receives_.cancel(receive);
  return {};
}

void Withdrawals::abandon(ReceiveOperation& receive) {
  receive.abandoned = true;
  const bool fetches = receive.stage == Stage::matched && receive.announce != nullptr && receive.ends.moving();
  if (fetches && !receive.asked) receive.gives_back = true;
}

void Withdrawals::end(ReceiveOperation& receive) {
  const auto keep = receive.shared_from_this();
  const Status outcome = std::move(receive.ends.outcome);
  const bool gives_back = receive.gives_back && (outcome.ok() || outcome.code() == Code::cancelled);
  receive.complete(gives_back && outcome.ok() ? Status(Code::cancelled, receive.describe() + " was cancelled") : outcome);
  if (gives_back || (outcome.ok() && receive.abandoned)) receives_.put_back(receive);
}

bool Withdrawals::stop_own(Operation& operation) {
  auto& waiting = lanes_.of(*operation.peer).transfers;
  const auto place = std::find_if(waiting.begin(), waiting.end(), [&](const auto& other) { return other.get() == &operation; });
  if (place != waiting.end()) {
    const auto keep = *place;
    waiting.erase(place);
    operation.part_done(Status(Code::cancelled, "cancelled before anything was written"));
    return true;
  }
  Endpoint* const endpoint = operation.peer->endpoint(operation.share().transport);
  return endpoint != nullptr && endpoint->cancel(&operation.share()).ok();  // ends this side's part from within
}

bool Withdrawals::give_back_eager(ReceiveOperation& receive) {
  Lane* const lane = lanes_.find(receive.peer.get());
  if (lane == nullptr) return false;
  const auto place = std::ranges::find_if(lane->unrouted, [&](const auto& other) { return other.operation.get() == &receive; });
  if (place == lane->unrouted.end()) return false;
  auto* const eager = std::get_if<std::unique_ptr<Unexpected>>(&place->said);
  if (eager == nullptr) return false;
  const auto keep = place->operation;
  auto message = std::move(*eager);
  lane->unrouted.erase(place);
  receive.complete(Status(Code::cancelled, receive.describe() + " was cancelled; nothing was written"));
  if (receive.call == 0) receives_.put_back(*receive.peer, std::move(message));
  return true;
}

// The message stays for the next receive; of a collective it ends with its receive, for nobody else will ask for it.
Status Withdrawals::stop(ReceiveOperation& receive) {
  if (give_back_eager(receive)) return {};
  const std::string what = receive.describe();
  const Status goes_on(Code::unsupported, what + " is being written: it ends when the bytes are there or the peer is lost");
  const Status stopping(Code::would_block, what + " is being written: it ends, and leaves its message, when the peer has stopped");
  if (receive.gives_back) return stopping;
  if (receive.peer == nullptr || !receive.peer->carries()) return goes_on;
  if (receive.call != 0) {
    const bool alone = receive.ends.peer_over && receive.ends.moving();
    return alone && stop_own(receive) ? Status() : goes_on;
  }
  const auto keep = receive.shared_from_this();
  auto& unrouted = lanes_.of(*receive.peer).unrouted;
  const auto place = std::ranges::find_if(unrouted, [&](const auto& other) { return other.operation.get() == &receive; });
  if (place == unrouted.end() && !receive.announce) return goes_on;  // it is about to end
  receive.gives_back = true;
  if (place != unrouted.end()) {
    if (!receive.announce) receive.announce = std::make_unique<const Announce>(std::get<Announce>(place->said));
    unrouted.erase(place);
    receive.ends.peer_over = true;
  } else if (receive.ends.moving() && !stop_own(receive) && !receive.asked) {
    receive.gives_back = false;
    return goes_on;
  }
  if (receive.asked) {
    receive.halting = true;
    lanes_.emit(lanes_.of(*receive.peer), encode(Halt{receive.peer_op, receive.id, Halt::What::request}));
  }
  receive.settle();
  return receive.done() ? Status() : stopping;
}

void Withdrawals::on_halt(PeerState& peer, ByteSpan signal) {
  const auto halt = decode_halt(signal);
  if (!halt) return peer.fail(Status(Code::protocol, "malformed withdrawal of an answer"));
  if (halt->what == Halt::What::request) return on_halt_request(peer, *halt);
  const auto operation = rendezvous_.operations().find(halt->op, peer);
  if (!operation || !operation->halting) return;  // it ended here already, or is about to
  if (operation->sending) return peer.fail(Status(Code::protocol, "a reply to a withdrawal that was not made"));
  auto& receive = static_cast<ReceiveOperation&>(*operation);
  receive.halting = false;
  if (halt->what == Halt::What::kept) {
    receive.ends.exposed = false;
    receive.ends.peer_over = true;
  } else {
    receive.gives_back = false;
  }
  receive.settle();
}

void Withdrawals::on_halt_request(PeerState& peer, const Halt& halt) {
  Lane& lane = lanes_.of(peer);
  const auto operation = rendezvous_.operations().find(halt.op, peer);
  if (!operation) return lanes_.emit(lane, encode(Halt{halt.from_op, halt.op, Halt::What::ended}));
  const bool answered = operation->stage == Stage::matched || operation->stage == Stage::refused;
  if (!operation->sending || !answered || operation->peer_op != halt.from_op || operation->halting)
    return peer.fail(Status(Code::protocol, "a withdrawal of an answer that was not given"));
  auto& send = static_cast<SendOperation&>(*operation);
  if (std::erase_if(lane.unrouted, [&](const auto& other) { return other.operation == operation; }) != 0) {
    static_cast<void>(keep(send, {}));
  } else if (send.ends.moving() || send.ends.in_doubt()) {
    send.halting = true;
    if (send.ends.moving()) static_cast<void>(stop_own(send));  // else it ends by itself
  } else if (!keep(send, send.ends.outcome)) {
    send.ends.peer_over = true;
    send.settle();
  }
}

bool Withdrawals::keep(SendOperation& send, const Status& status) {
  const bool kept = status.ok() || status.code() == Code::cancelled;
  Lane& lane = lanes_.of(*send.peer);
  lanes_.emit(lane, encode(Halt{send.peer_op, send.id, kept ? Halt::What::kept : Halt::What::ended}));
  if (!kept) return false;
  Share& share = send.share();
  share.remote.reset();
  if (share.route != nullptr) {
    share.route = nullptr;
    share.region = std::move(share.announced_region);
    share.transport = std::move(share.announced_transport);
  }
  send.ends.peer_over = false;
  send.stage = Stage::announced;
  // Those that were announced when this side began to close have been withdrawn.
  if (send.peer->phase() != PeerPhase::ready) lanes_.emit(lane, encode(Withdraw{send.id, true}));
  return true;
}

}  // namespace hmc::messaging
