// Large messages: announce, fetch or share, finish.
#include "comm/messages/rendezvous.h"

#include <algorithm>

#include "comm/buffers/regions.h"
#include "comm/context_state.h"
#include "comm/counters.h"
#include "comm/routing/peer_routes.h"

namespace hmc::messaging {
namespace {

// Of one message, before its connections' failures become its own.
constexpr unsigned max_fetches_again = 16;

// The peer writes into the receiver's memory, and cannot wait for a stream here.
Status after_stream(const Operation& receive) {
  if (!receive.after) return {};
  HMC_ASSIGN(const bool reached, receive.after->reached());
  return reached ? Status() : Status(Code::would_block, "what is queued on the stream still uses the memory");
}

}  // namespace

Status Rendezvous::announce(Lane& lane, SendOperation& send) {
  if (!lane.sent.has_head()) return Status(Code::would_block, "no header credit");
  // What a device holds is put where the receiver says: only it knows both devices, and so the way between them.
  std::string transport;
  Bytes region;
  if (send.view.device.is_cpu()) {
    HMC_ASSIGN(Route * route, lane.peer->routes().find(Device::cpu(), Device::cpu(),
                                                       lane.peer->routes().buffers_only(Device::cpu(), Device::cpu())));
    if (send.share().region == nullptr ||
        send.share().transport != route->path.transport) {  // the first try found no room, and another route then
      HMC_ASSIGN(send.share().region, transient_region(*route, send.view));
      send.share().transport = route->path.transport;
    }
    HMC_ASSIGN(Blob exported, send.share().region->exported());
    if (!exported.fds.empty() || exported.bytes.size() > max_region_bytes) {
      return Status(Code::unsupported, "transport " + route->path.transport + " cannot describe a message's memory in a signal");
    }
    transport = route->path.transport;
    region = std::move(exported.bytes);
  }
  operations_.number(send);
  const Bytes signal = encode(Announce{{send.envelope, send.tag, send.call},
                                       send.view.bytes,
                                       send.id,
                                       std::move(transport),
                                       send.view.device.str(),
                                       std::move(region)});
  HMC_TRY(lane.peer->signal(signal, {}));
  lane.sent.spend(0);
  send.stage = Stage::announced;
  expose(send);
  operations_.add(send);
  context_.counters().add("messages.rendezvous", 1);
  return {};
}

void Rendezvous::start(Lane& lane, Lane::Unrouted unrouted) {
  Operation& operation = *unrouted.operation;
  const auto* announce = std::get_if<Announce>(&unrouted.said);
  const auto* eager = std::get_if<std::unique_ptr<Unexpected>>(&unrouted.said);
  Status started;
  if (announce != nullptr) {
    started = start_receive(static_cast<ReceiveOperation&>(operation), *announce);
  } else if (eager != nullptr) {
    started = after_stream(operation);
    if (started.ok()) return operation.complete(copy_in(operation.view, (*eager)->payload));
  } else {
    started = start_send(operation, std::get<Answer>(unrouted.said));
  }
  if (started.code() == Code::would_block) {
    lane.unrouted.push_back(std::move(unrouted));
    lanes_.want_poll();
  } else if (!started.ok() && announce != nullptr) {
    finish(*lane.peer, announce->sender_op, started);
    operation.complete(started.with_context(operation.describe()));
  } else if (!started.ok() && eager != nullptr) {
    operation.complete(started.with_context(operation.describe()));
  } else if (!started.ok()) {
    operation.part_done(started);
  }
}

Result<Bytes> Rendezvous::own_region(ReceiveOperation& receive, Route& route, std::uint64_t bytes) {
  MemoryView exact = receive.view;
  exact.bytes = bytes;
  HMC_ASSIGN(receive.share().region, transient_region(route, exact));
  HMC_ASSIGN(Blob exported, route.endpoint->describe(*receive.share().region));
  if (exported.fds.empty() && exported.bytes.size() <= max_region_bytes) return std::move(exported.bytes);
  return Status(Code::unsupported, "transport " + route.path.transport + " cannot describe a message's memory in a signal");
}

Status Rendezvous::ask_for_put(ReceiveOperation& receive, const Announce& announce, Route* route) {
  auto region = own_region(receive, *route, announce.bytes);
  while (!region.ok()) {
    if (!gives_way(region.status())) return region.status();
    receive.refused |= route->bit;
    HMC_ASSIGN(route, receive.peer->routes().next(*route, receive.refused, region.status()));
    region = own_region(receive, *route, announce.bytes);
  }
  receive.share().route = route;
  receive.asked = true;
  lanes_.emit(lanes_.of(*receive.peer), encode(Answer{announce.sender_op, receive.id, announce.bytes, route->path.transport,
                                                      receive.view.device.str(), std::move(*region)}));
  expose(receive);
  return {};
}

// Transfers run under the receiver's direction. Where the announced region is on the way between both memories it gets the whole
// message, or, where both ends copying is faster, the upper half while the sender puts the lower. Else the sender puts all of it.
Status Rendezvous::start_receive(ReceiveOperation& receive, const Announce& announce) {
  PeerState& peer = *receive.peer;
  HMC_TRY(after_stream(receive));
  HMC_ASSIGN(const Device remote_device, Device::parse(announce.device));
  receive.refused |= peer.routes().buffers_only(receive.view.device, remote_device);
  HMC_ASSIGN(Route * route, peer.routes().find(receive.view.device, remote_device, receive.refused));
  if (!receive.announce) receive.announce = std::make_unique<const Announce>(announce);
  if (receive.id == 0) {
    operations_.number(receive);
    operations_.add(receive);
  }
  if (announce.transport != route->path.transport) {
    if (announce.bytes == 0) return Status(Code::protocol, "an announcement of nothing");
    receive.ends.peer_over = false;
    return ask_for_put(receive, *receive.announce, route);
  }
  std::uint64_t lower = 0;
  Bytes region;
  if (announce.bytes >= both_ends_from && route->transport->capabilities().foreign_both_ends) {
    if (auto mine = own_region(receive, *route, announce.bytes); mine.ok()) {
      lower = (announce.bytes / 2) & ~std::uint64_t{4095};
      region = std::move(*mine);
    }
  }
  if (receive.share().region == nullptr) {
    MemoryView exact = receive.view;
    exact.bytes = announce.bytes;
    HMC_ASSIGN(receive.share().region, transient_region(*route, exact));
  }
  Blob blob;
  blob.bytes = announce.region;
  HMC_ASSIGN(receive.share().remote, route->endpoint->import_region(blob));
  if (receive.share().remote->bytes() < announce.bytes)
    return Status(Code::protocol, "the sender announced more bytes than its region holds");
  HMC_TRY(receive.share().remote->prepare(receive.view.device));  // a message's region maps nothing
  receive.ends.peer_over = lower == 0;
  Lane& lane = lanes_.of(peer);
  // Asked for first, so that the sender's half starts while this side copies.
  if (lower > 0) {
    receive.asked = true;
    lanes_.emit(lane,
                encode(Answer{announce.sender_op, receive.id, lower, std::string(), receive.view.device.str(), std::move(region)}));
    expose(receive);
  }
  receive.share().may_break = route->transport->capabilities().breaks;
  receive.share().transport = route->path.transport;
  receive.share().set_run(lower, announce.bytes - lower);
  start_transfer(lane, receive);
  return {};
}

void Rendezvous::start_transfer(Lane& lane, Operation& operation) {
  operation.ends.move();
  if (!lane.transfers.empty()) {
    lane.transfers.push_back(std::static_pointer_cast<Operation>(operation.shared_from_this()));
    return lanes_.want_poll();
  }
  const Status posted = post_transfer(operation);
  if (posted.code() == Code::would_block) {
    lane.transfers.push_back(std::static_pointer_cast<Operation>(operation.shared_from_this()));
    lanes_.want_poll();
  } else if (!posted.ok()) {
    operation.part_done(posted);
  }
}

Status Rendezvous::post_transfer(Operation& operation) {
  Endpoint* endpoint = operation.peer->endpoint(operation.share().transport);
  if (endpoint == nullptr) return Status(Code::transport, "its connection failed before anything was moved");
  TransferOp& op = operation.share().op(operation.sending ? operation.after.get() : nullptr);
  return operation.sending ? endpoint->put(op, &operation.share()) : endpoint->get(op, &operation.share());
}

// What this side fetches it may fetch again: the sender keeps its memory until it hears of the end, and nobody has been told.
bool Rendezvous::fetch_again(Operation& operation, const Status& status) {
  const Code code = status.code();
  if (operation.sending || (code != Code::transport && code != Code::peer_lost && code != Code::closed)) return false;
  auto& receive = static_cast<ReceiveOperation&>(operation);
  if (!receive.share().may_break || receive.share().route != nullptr || receive.peer->phase() != PeerPhase::ready) return false;
  if (++receive.fetched_again > max_fetches_again) return false;
  Lane& lane = lanes_.of(*receive.peer);
  // Later: its connection is about to say that it has failed.
  lane.unrouted.push_back({std::static_pointer_cast<Operation>(receive.shared_from_this()), *receive.announce});
  receive.share().remote.reset();
  receive.share().region.reset();
  receive.ends.peer_over = false;
  context_.counters().add("messages.refetched", 1);
  lanes_.want_poll();
  return true;
}

void Rendezvous::report_part(Operation& operation) {
  if (operation.peer == nullptr || !operation.peer->carries()) return;
  // A sender's success travels with its put; a receiver says that it has fetched its part.
  // A collective's receive that was cancelled is the receiver's affair, as one that is too short: the sender has its buffer back.
  const bool dropped = !operation.sending && operation.ends.outcome.code() == Code::cancelled;
  if (operation.sending && operation.ends.outcome.ok()) operation.peer->routes().signalled_by(operation.share().transport);
  if (!operation.sending || !operation.ends.outcome.ok())
    finish(*operation.peer, operation.peer_op, dropped ? Status() : operation.ends.outcome);
}

void Rendezvous::forget(Operation& operation) {
  if (operations_.remove(operation)) operation.peer->operation_over();
}

void Rendezvous::on_answer(PeerState& peer, ByteSpan signal) {
  const auto answer = decode_answer(signal);
  const auto operation = answer ? operations_.find(answer->sender_op, peer) : nullptr;
  const bool expected =
      operation && operation->sending && (operation->stage == Stage::announced || operation->stage == Stage::refused);
  if (!expected || answer->lower > operation->view.bytes) {
    return peer.fail(Status(Code::protocol, "an answer to a message that was not announced"));
  }
  operation->stage = Stage::matched;
  operation->peer_op = answer->receiver_op;
  start(lanes_.of(peer), {operation, *answer});
}

Status Rendezvous::start_send(Operation& send, const Answer& answer) {
  PeerState& peer = *send.peer;
  Share& share = send.share();
  Route* route = nullptr;
  if (!answer.transport.empty()) {
    HMC_ASSIGN(const Device remote_device, Device::parse(answer.device));
    auto found = peer.routes().find_by(send.view.device, remote_device, answer.transport);
    if (!found.ok() && gives_way(found.status())) {  // it failed since the receiver named it
      refuse_answer(send, answer.receiver_op, found.status());
      return {};
    }
    HMC_ASSIGN(route, found);
  }
  Endpoint* endpoint = peer.endpoint(route != nullptr ? answer.transport : share.transport);
  if (endpoint == nullptr) return Status(Code::transport, "the connection failed before anything was moved");
  Blob blob;
  blob.bytes = answer.region;
  HMC_ASSIGN(auto remote, endpoint->import_region(blob));
  if (remote->bytes() < answer.lower) return Status(Code::protocol, "the receiver's region is too small");
  if (const Status prepared = remote->prepare(send.view.device); !prepared.ok()) {
    if (route == nullptr || !gives_way(prepared)) return prepared;
    refuse_answer(send, answer.receiver_op, prepared);
    return {};
  }
  if (route != nullptr) {
    // Only now: after a refusal the receiver may fetch from the region that was announced.
    share.announced_region = std::move(share.region);
    share.announced_transport = std::move(share.transport);
    HMC_ASSIGN(share.region, transient_region(*route, send.view));
    share.route = route;
    share.transport = answer.transport;
    share.may_break = route->transport->capabilities().breaks;
    send.ends.peer_over = true;  // the receiver has nothing to move
    route->count(true, send.view.bytes);
  }
  share.remote = std::move(remote);
  share.finish_signal = encode(Finish{answer.receiver_op, Code::ok, {}});
  share.finish_signal[0] |= std::byte{attached_bit};
  share.set_run(0, answer.lower);
  start_transfer(lanes_.of(peer), send);
  return {};
}

// The receiver answers anew.
void Rendezvous::refuse_answer(Operation& send, std::uint64_t receiver_op, const Status& why) {
  send.stage = Stage::refused;
  lanes_.emit(lanes_.of(*send.peer), encode(Finish{receiver_op, why.code(), std::string(why.message())}, Kind::refuse));
}

void Rendezvous::on_refuse(PeerState& peer, ByteSpan signal) {
  const auto refusal = decode_finish(signal);
  const auto operation = refusal ? operations_.find(refusal->op, peer) : nullptr;
  if (refusal && !operation) return;  // it ended here already
  if (!operation || operation->sending || operation->share().route == nullptr || refusal->code == Code::ok) {
    return peer.fail(Status(Code::protocol, "a refusal of an answer that was not given"));
  }
  auto& receive = static_cast<ReceiveOperation&>(*operation);
  receive.ends.exposed = false;
  if (receive.halting) return;  // the reply follows
  receive.asked = false;
  const Route& failed = *std::exchange(receive.share().route, nullptr);
  receive.refused |= failed.bit;
  const Status reason(refusal->code, "at the peer: " + refusal->message);
  if (const Status next = peer.routes().next(failed, receive.refused, reason).status();
      !next.ok() && next.code() != Code::would_block) {
    finish(peer, receive.announce->sender_op, next);
    return receive.complete(next.with_context(receive.describe()));
  }
  start(lanes_.of(peer), {operation, *receive.announce});
}

void Rendezvous::on_finish(PeerState& peer, ByteSpan signal) {
  const auto finish = decode_finish(signal);
  if (!finish) return peer.fail(Status(Code::protocol, "malformed end of a message"));
  const auto operation = operations_.find(finish->op, peer);
  if (!operation) return;  // it ended here already (an error, a cancel)
  operation->stage = Stage::matched;
  if (finish->code == Code::ok && !operation->sending && operation->share().route != nullptr) {
    operation->share().route->count(false, static_cast<ReceiveOperation&>(*operation).announce->bytes);
  }
  if (finish->code == Code::cancelled && operation->sending && peer.phase() != PeerPhase::ready)
    return operation->peer_done(peer.failure().with_context(operation->describe() + ", not received"));
  if (finish->code == Code::ok) return operation->peer_done({});
  operation->peer_done(Status(finish->code, operation->describe() + ", at the peer: " + finish->message));
}

void Rendezvous::finish(PeerState& peer, std::uint64_t op, const Status& status) {
  lanes_.emit(lanes_.of(peer), encode(Finish{op, status.code(), std::string(status.message())}));
}

void Rendezvous::route_waiting(Lane& lane) {
  for (auto& unrouted : std::exchange(lane.unrouted, {})) {
    if (!unrouted.operation->done()) start(lane, std::move(unrouted));
  }
}

void Rendezvous::expose(Operation& operation) {
  const PeerState& peer = *operation.peer;
  operation.ends.exposed =
      operation.share().region != nullptr && operation.share().region->peer_moves() && peer.identity().same_host && !peer.is_self();
}

bool Rendezvous::pump(Lane& lane) {
  route_waiting(lane);
  bool moved = false;
  while (!lane.transfers.empty()) {
    const std::shared_ptr<Operation> operation = lane.transfers.front();
    const Status posted = post_transfer(*operation);
    if (posted.code() == Code::would_block) break;
    lane.transfers.pop_front();
    moved = true;
    if (!posted.ok()) operation->part_done(posted);
  }
  return moved;
}

void Rendezvous::withdraw_announced(PeerState& peer) {
  for (const auto& operation : operations_.of(&peer)) {
    if (operation->stage == Stage::announced) lanes_.emit(lanes_.of(peer), encode(Withdraw{operation->id, true}));
  }
}

void Rendezvous::end(const PeerState* peer, const Status& reason) {
  for (auto& [key, lane] : lanes_.all()) {
    if (peer != nullptr && key != peer) continue;
    lane.signals.clear();
    auto transfers = std::move(lane.transfers);
    lane.transfers.clear();
    for (const auto& operation : transfers) operation->part_done(reason);
    for (auto& unrouted : std::exchange(lane.unrouted, {})) {
      if (peer != nullptr && std::holds_alternative<std::unique_ptr<Unexpected>>(unrouted.said)) {  // it waits for a stream alone
        lane.unrouted.push_back(std::move(unrouted));
      } else if (!unrouted.operation->sending) {
        unrouted.operation->complete(reason.with_context(unrouted.operation->describe()));
      }
    }
  }
  for (const auto& operation : operations_.of(peer)) operation->fail(reason.with_context(operation->describe()));
}

}  // namespace hmc::messaging
