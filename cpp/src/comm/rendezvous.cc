// Large messages: announce, fetch or share, finish.
#include <algorithm>

#include "comm/messenger_impl.h"

namespace hmc::messaging {
namespace {

// Of one message, before its connections' failures become its own.
constexpr unsigned max_fetches_again = 16;

}  // namespace

Status MessengerImpl::announce(Lane& lane, SendOperation& send) {
  if (lane.heads_out >= head_credit) return Status(Code::would_block, "no header credit");
  // What a device holds is put where the receiver says: only it knows both devices, and so the way between them.
  std::string transport;
  Bytes region;
  if (send.view.device.is_cpu()) {
    HMC_ASSIGN(Route * route,
               lane.peer->route(Device::cpu(), Device::cpu(), lane.peer->buffers_only(Device::cpu(), Device::cpu())));
    if (send.region == nullptr || send.transport != route->path.transport) {  // the first try found no room, and another route then
      HMC_ASSIGN(send.region, context_.transient_region(*route, send.view));
      send.run.local = send.region.get();
      send.transport = route->path.transport;
    }
    HMC_ASSIGN(Blob exported, send.region->exported());
    if (!exported.fds.empty() || exported.bytes.size() > max_region_bytes) {
      return Status(Code::unsupported, "transport " + route->path.transport + " cannot describe a message's memory in a signal");
    }
    transport = route->path.transport;
    region = std::move(exported.bytes);
  }
  if (send.id == 0) send.id = next_id_++;
  const Bytes signal = encode(Announce{
      {send.envelope, send.tag}, send.view.bytes, send.id, std::move(transport), send.view.device.str(), std::move(region)});
  HMC_TRY(lane.peer->signal(signal, {}));
  ++lane.heads_out;
  send.announced = true;
  operations_.emplace(send.id, std::static_pointer_cast<Operation>(send.shared_from_this()));
  context_.count("messages.rendezvous", 1);
  return {};
}

void MessengerImpl::on_announce(PeerState& peer, ByteSpan signal) {
  auto announce = decode_announce(signal);
  if (!announce) return peer.fail(Status(Code::protocol, "malformed announcement of a message"));
  Lane& lane = lane_of(peer);
  const Address from{&peer, announce->head.envelope};
  Unexpected message;
  message.peer = lane.peer;
  message.head = announce->head;
  message.announce = std::make_unique<Announce>(std::move(*announce));
  if (direct_ != nullptr && direct_->fits(from, message.head.tag)) {
    const auto receive =
        std::make_shared<ReceiveOperation>(*this, lane.peer, direct_->wanted.envelope, direct_->tag, direct_->view);
    receive->accepted();
    direct_->operation = receive;
    end_direct({});
    consumed(lane, 0);
    return accept(receive, message);
  }
  if (const auto receive = matcher_.match_message(from, message.head.tag)) {
    consumed(lane, 0);
    return accept(receive, message);
  }
  if (++lane.heads_held > head_credit) {
    return peer.fail(Status(Code::protocol, "the peer announced more messages than it had credit for"));
  }
  const std::int64_t tag = message.head.tag;
  matcher_.stash(from, tag, std::make_unique<Unexpected>(std::move(message)));
  give_credit(lane);
}

void MessengerImpl::accept(const std::shared_ptr<ReceiveOperation>& receive, Unexpected& message) {
  const Announce& announce = *message.announce;
  receive->peer = message.peer;
  receive->matched = true;
  receive->peer_op = announce.sender_op;
  receive->deliver(message.head, announce.bytes);
  if (announce.bytes > receive->view.bytes) {
    finish(*message.peer, announce.sender_op, {});  // the sender did nothing wrong
    receive->complete(Status(Code::invalid_argument, "a message of " + std::to_string(announce.bytes) +
                                                         " bytes does not fit a receive of " + std::to_string(receive->view.bytes) +
                                                         " bytes; nothing was written"));
    return;
  }
  start_routed(lane_of(*message.peer), {receive, announce});
}

void MessengerImpl::start_routed(Lane& lane, Lane::Unrouted unrouted) {
  Operation& operation = *unrouted.operation;
  const auto* announce = std::get_if<Announce>(&unrouted.said);
  const auto* payload = std::get_if<Bytes>(&unrouted.said);
  Status started;
  if (announce != nullptr) {
    started = start_receive(static_cast<ReceiveOperation&>(operation), *announce);
  } else if (payload != nullptr) {
    started = after_stream(operation);
    if (started.ok()) return operation.complete(copy_in(operation.view, *payload));
  } else {
    started = start_send(operation, std::get<Answer>(unrouted.said));
  }
  if (started.code() == Code::would_block) {
    lane.unrouted.push_back(std::move(unrouted));
    want_poll();
  } else if (!started.ok() && announce != nullptr) {
    finish(*lane.peer, announce->sender_op, started);
    operation.complete(started.with_context(operation.describe()));
  } else if (!started.ok() && payload != nullptr) {
    operation.complete(started.with_context(operation.describe()));
  } else if (!started.ok()) {
    operation.part_done(started);
  }
}

// The peer writes into the receiver's memory, and cannot wait for a stream here.
Status MessengerImpl::after_stream(const Operation& receive) {
  if (!receive.after) return {};
  HMC_ASSIGN(const bool reached, receive.after->reached());
  return reached ? Status() : Status(Code::would_block, "what is queued on the stream still uses the memory");
}

Result<Bytes> MessengerImpl::own_region(ReceiveOperation& receive, Route& route, std::uint64_t bytes) {
  MemoryView exact = receive.view;
  exact.bytes = bytes;
  HMC_ASSIGN(receive.region, context_.transient_region(route, exact));
  HMC_ASSIGN(Blob exported, route.endpoint->describe(*receive.region));
  if (exported.fds.empty() && exported.bytes.size() <= max_region_bytes) return std::move(exported.bytes);
  return Status(Code::unsupported, "transport " + route.path.transport + " cannot describe a message's memory in a signal");
}

Status MessengerImpl::ask_for_put(ReceiveOperation& receive, const Announce& announce, Route* route) {
  auto region = own_region(receive, *route, announce.bytes);
  while (!region.ok()) {
    if (!gives_way(region.status())) return region.status();
    receive.refused |= route->bit;
    HMC_ASSIGN(route, receive.peer->next_route(*route, receive.refused, region.status()));
    region = own_region(receive, *route, announce.bytes);
  }
  receive.route = route;
  emit(lane_of(*receive.peer), encode(Answer{announce.sender_op, receive.id, announce.bytes, route->path.transport,
                                             receive.view.device.str(), std::move(*region)}));
  return {};
}

// Transfers run under the receiver's direction. Where the announced region is on the way between both memories it gets the whole
// message, or, where both ends copying is faster, the upper half while the sender puts the lower. Else the sender puts all of it.
Status MessengerImpl::start_receive(ReceiveOperation& receive, const Announce& announce) {
  PeerState& peer = *receive.peer;
  HMC_TRY(after_stream(receive));
  HMC_ASSIGN(const Device remote_device, Device::parse(announce.device));
  receive.refused |= peer.buffers_only(receive.view.device, remote_device);
  HMC_ASSIGN(Route * route, peer.route(receive.view.device, remote_device, receive.refused));
  if (receive.id == 0) {
    receive.id = next_id_++;
    operations_.emplace(receive.id, std::static_pointer_cast<Operation>(receive.shared_from_this()));
  }
  if (announce.transport != route->path.transport) {
    if (announce.bytes == 0) return Status(Code::protocol, "an announcement of nothing");
    receive.peer_over = false;
    if (!receive.announce) receive.announce = std::make_unique<const Announce>(announce);
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
  if (receive.region == nullptr) {
    MemoryView exact = receive.view;
    exact.bytes = announce.bytes;
    HMC_ASSIGN(receive.region, context_.transient_region(*route, exact));
  }
  Blob blob;
  blob.bytes = announce.region;
  HMC_ASSIGN(receive.remote, route->endpoint->import_region(blob));
  if (receive.remote->bytes() < announce.bytes)
    return Status(Code::protocol, "the sender announced more bytes than its region holds");
  HMC_TRY(receive.remote->prepare(receive.view.device));  // a message's region maps nothing
  receive.peer_over = lower == 0;
  Lane& lane = lane_of(peer);
  // Asked for first, so that the sender's half starts while this side copies.
  if (lower > 0) {
    emit(lane, encode(Answer{announce.sender_op, receive.id, lower, std::string(), receive.view.device.str(), std::move(region)}));
  }
  receive.may_break = route->transport->capabilities().breaks;
  if (receive.may_break && !receive.announce) receive.announce = std::make_unique<const Announce>(announce);
  receive.transport = route->path.transport;
  receive.local_offset = receive.remote_offset = lower;
  receive.run = {receive.region.get(),  receive.remote.get(), &receive.local_offset, &receive.remote_offset, 1,
                 announce.bytes - lower};
  start_transfer(lane, receive);
  return {};
}

void MessengerImpl::start_transfer(Lane& lane, Operation& operation) {
  operation.transfer.runs = {&operation.run, 1};
  operation.transfer.bytes = operation.run.block;
  operation.transfer.level = Complete::remote;
  if (operation.sending) operation.transfer.after = operation.after.get();
  operation.part_over = false;
  operation.moving = true;
  if (!lane.transfers.empty()) {
    lane.transfers.push_back(std::static_pointer_cast<Operation>(operation.shared_from_this()));
    return want_poll();
  }
  const Status posted = post_transfer(operation);
  if (posted.code() == Code::would_block) {
    lane.transfers.push_back(std::static_pointer_cast<Operation>(operation.shared_from_this()));
    want_poll();
  } else if (!posted.ok()) {
    operation.part_done(posted);
  }
}

Status MessengerImpl::post_transfer(Operation& operation) {
  Endpoint* endpoint = operation.peer->endpoint(operation.transport);
  if (endpoint == nullptr) return Status(Code::transport, "its connection failed before anything was moved");
  operation.transfer.signal = operation.finish_signal;
  return operation.sending ? endpoint->put(operation.transfer, &operation.part)
                           : endpoint->get(operation.transfer, &operation.part);
}

// What this side fetches it may fetch again: the sender keeps its memory until it hears of the end, and nobody has been told.
bool MessengerImpl::fetch_again(Operation& operation, const Status& status) {
  const Code code = status.code();
  if (operation.sending || (code != Code::transport && code != Code::peer_lost && code != Code::closed)) return false;
  auto& receive = static_cast<ReceiveOperation&>(operation);
  if (!receive.announce || receive.route != nullptr || receive.peer->phase() != PeerPhase::ready) return false;
  if (++receive.fetched_again > max_fetches_again) return false;
  Lane& lane = lane_of(*receive.peer);
  // Later: its connection is about to say that it has failed.
  lane.unrouted.push_back({std::static_pointer_cast<Operation>(receive.shared_from_this()), *receive.announce});
  receive.remote.reset();
  receive.region.reset();
  receive.peer_over = false;
  context_.count("messages.refetched", 1);
  want_poll();
  return true;
}

void MessengerImpl::report_part(Operation& operation) {
  if (operation.peer == nullptr || operation.peer->phase() != PeerPhase::ready) return;
  // A sender's success travels with its put; a receiver says that it has fetched its part.
  // A receive that was cancelled is the receiver's affair, as one that is too short: the sender has its buffer back.
  const bool dropped = !operation.sending && operation.outcome.code() == Code::cancelled;
  if (!operation.sending || !operation.outcome.ok())
    finish(*operation.peer, operation.peer_op, dropped ? Status() : operation.outcome);
}

void MessengerImpl::on_answer(PeerState& peer, ByteSpan signal) {
  const auto answer = decode_answer(signal);
  const auto operation = answer ? moving(answer->sender_op, peer) : nullptr;
  const bool expected = operation && operation->sending && (!operation->matched || operation->refused_answer);
  if (!expected || answer->lower > operation->view.bytes) {
    return peer.fail(Status(Code::protocol, "an answer to a message that was not announced"));
  }
  operation->matched = true;
  operation->refused_answer = false;
  operation->peer_op = answer->receiver_op;
  start_routed(lane_of(peer), {operation, *answer});
}

Status MessengerImpl::start_send(Operation& send, const Answer& answer) {
  PeerState& peer = *send.peer;
  if (!answer.transport.empty()) {
    HMC_ASSIGN(const Device remote_device, Device::parse(answer.device));
    auto route = peer.route_by(send.view.device, remote_device, answer.transport);
    if (!route.ok() && gives_way(route.status())) {  // it failed since the receiver named it
      refuse_answer(send, answer.receiver_op, route.status());
      return {};
    }
    HMC_TRY(route.status());
    send.route = *route;
    HMC_ASSIGN(send.region, context_.transient_region(*send.route, send.view));
    send.transport = answer.transport;
    send.may_break = send.route->transport->capabilities().breaks;
    send.peer_over = true;  // the receiver has nothing to move
  }
  Endpoint* endpoint = peer.endpoint(send.transport);
  if (endpoint == nullptr) return Status(Code::transport, "the connection failed before anything was moved");
  Blob blob;
  blob.bytes = answer.region;
  HMC_ASSIGN(send.remote, endpoint->import_region(blob));
  if (send.remote->bytes() < answer.lower) return Status(Code::protocol, "the receiver's region is too small");
  if (const Status prepared = send.remote->prepare(send.view.device); !prepared.ok()) {
    if (send.route == nullptr || !gives_way(prepared)) return prepared;
    refuse_answer(send, answer.receiver_op, prepared);
    return {};
  }
  if (send.route != nullptr) peer.count_message(*send.route, true, send.view.bytes);
  send.finish_signal = encode(Finish{answer.receiver_op, Code::ok, {}});
  send.finish_signal[0] |= std::byte{attached_bit};
  send.run = {send.region.get(), send.remote.get(), &send.local_offset, &send.remote_offset, 1, answer.lower};
  start_transfer(lane_of(peer), send);
  return {};
}

// The receiver answers anew.
void MessengerImpl::refuse_answer(Operation& send, std::uint64_t receiver_op, const Status& why) {
  send.remote.reset();
  send.region.reset();
  send.refused_answer = true;
  emit(lane_of(*send.peer), encode(Finish{receiver_op, why.code(), std::string(why.message())}, Kind::refuse));
}

void MessengerImpl::on_refuse(PeerState& peer, ByteSpan signal) {
  const auto refusal = decode_finish(signal);
  const auto operation = refusal ? moving(refusal->op, peer) : nullptr;
  if (refusal && !operation) return;  // it ended here already
  if (!operation || operation->sending || operation->route == nullptr || refusal->code == Code::ok) {
    return peer.fail(Status(Code::protocol, "a refusal of an answer that was not given"));
  }
  auto& receive = static_cast<ReceiveOperation&>(*operation);
  const Route& failed = *std::exchange(receive.route, nullptr);
  receive.refused |= failed.bit;
  const Status reason(refusal->code, "at the peer: " + refusal->message);
  if (const Status next = peer.next_route(failed, receive.refused, reason).status();
      !next.ok() && next.code() != Code::would_block) {
    finish(peer, receive.announce->sender_op, next);
    return receive.complete(next.with_context(receive.describe()));
  }
  start_routed(lane_of(peer), {operation, *receive.announce});
}

void MessengerImpl::on_finish(PeerState& peer, ByteSpan signal) {
  const auto finish = decode_finish(signal);
  if (!finish) return peer.fail(Status(Code::protocol, "malformed end of a message"));
  const auto operation = moving(finish->op, peer);
  if (!operation) return;  // it ended here already (an error, a cancel)
  operation->matched = true;
  if (finish->code == Code::ok && !operation->sending && operation->route != nullptr) {
    peer.count_message(*operation->route, false, static_cast<ReceiveOperation&>(*operation).announce->bytes);
  }
  operation->peer_done(finish->code == Code::ok ? Status() : Status(finish->code, "at the peer: " + finish->message));
}

void MessengerImpl::on_withdraw(PeerState& peer, ByteSpan signal) {
  const auto op = decode_withdraw(signal);
  if (!op) return peer.fail(Status(Code::protocol, "malformed withdrawal"));
  auto taken = matcher_.unexpected().take_if([&](const Address& from, const auto& message) {
    return from.peer == &peer && message->announce != nullptr && message->announce->sender_op == *op;
  });
  if (taken.empty()) return;  // matched meanwhile: it completes
  Lane& lane = lane_of(peer);
  --lane.heads_held;
  consumed(lane, 0);
  finish(peer, *op, Status(Code::cancelled, "withdrawn before it was matched; nothing was read"));
}

void MessengerImpl::finish(PeerState& peer, std::uint64_t op, const Status& status) {
  emit(lane_of(peer), encode(Finish{op, status.code(), std::string(status.message())}));
}

}  // namespace hmc::messaging
