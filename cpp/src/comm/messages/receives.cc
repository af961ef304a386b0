#include "comm/messages/receives.h"
#include "base/recycled.h"

#include <cstring>
#include <utility>

#include "comm/context_state.h"
#include "comm/counters.h"
#include "comm/messages/messenger_impl.h"
#include "comm/onesided/transfer.h"
#include "comm/session/rank_scopes.h"
#include "device/runtime.h"

namespace hmc::messaging {

Status copy_in(const MemoryView& view, ByteSpan payload) {
  if (payload.size() > view.bytes) {
    return Status(Code::invalid_argument, "a message of " + std::to_string(payload.size()) + " bytes does not fit a receive of " +
                                              std::to_string(view.bytes) + " bytes; nothing was written");
  }
  if (payload.empty()) return {};
  if (view.device.is_cpu()) {
    std::memcpy(view.data, payload.data(), payload.size());
    return {};
  }
  return copy_blocking({view.data, payload.size(), view.device},
                       {const_cast<std::byte*>(payload.data()), payload.size(), Device::cpu()});
}

namespace {

// True: the message is of another call than its receive, which ends so. The sender did nothing that is to end its send.
bool of_another_call(const CallWatchers& watchers, Lane& lane, ReceiveOperation& receive, const Head& head) {
  if (!different_calls(receive.call, head.call)) return false;
  receive.stage = Stage::matched;  // cancelling it has nothing left to withdraw
  watchers.tell(*lane.owner(), head);
  receive.complete(Status(Code::invalid_argument, "the message is of another call than its receive; nothing was written"));
  return true;
}

// An eager message for `receive`; later if a stream still uses the memory.
void take_eager(Rendezvous& rendezvous, Lane& lane, const std::shared_ptr<ReceiveOperation>& receive, const Head& head,
                ByteSpan payload) {
  if (!receive->after) return receive->complete(copy_in(receive->view, payload));
  receive->accepted();
  receive->peer = lane.owner();
  receive->stage = Stage::matched;
  auto message = std::make_unique<Unexpected>();
  message->lane = &lane;
  message->head = head;
  message->payload.assign(payload.begin(), payload.end());
  message->arrival = receive->arrival;
  rendezvous.start(lane, {receive, std::move(message)});
}

}  // namespace

Receives::Receives(MessengerImpl& messenger, ContextState& context, Lanes& lanes, Rendezvous& rendezvous)
    : messenger_(messenger), context_(context), lanes_(lanes), rendezvous_(rendezvous), matcher_([this](const Address& from) {
        return from.envelope.scope == 0 || context_.scopes().has(from.envelope.scope, from.envelope.src, *from.peer);
      }) {}

Result<std::shared_ptr<WorkState>> Receives::post(const Target& from, std::int64_t tag, const MemoryView& view) {
  const auto& peer = from.peer;
  const Envelope& envelope = from.envelope;
  HMC_TRY(check_message(from, tag, view, true));
  HMC_ASSIGN(auto after, mark_stream(view.stream, view.device));
  auto receive = std::allocate_shared<ReceiveOperation>(Recycled<ReceiveOperation>(), messenger_, from, tag, view);
  receive->after = std::move(after);
  const Address wanted{peer.get(), envelope};
  auto message = matcher_.match_receive(wanted, tag);
  if (message != nullptr && !message->missing.ok()) {  // it was announced, and its sender has left
    lanes_.unstashed(*message);
    const Target sender{message->lane->owner(), message->head.envelope};
    return message->missing.with_context(Operation::describe(false, sender, tag, view.bytes));
  }
  if (message == nullptr && peer_ended(from))
    return peer->failure().with_context(Operation::describe(false, from, tag, view.bytes));
  // Closed by another thread since the caller looked.
  if (message == nullptr && context_.scopes().is_over(envelope.scope))
    return communicator_closed().with_context(Operation::describe(false, from, tag, view.bytes));
  if (message == nullptr && peer != nullptr && has_left(*peer, envelope.scope))
    return left_status(*peer, envelope.src).with_context(Operation::describe(false, from, tag, view.bytes));
  if (message == nullptr) {
    if (peer == nullptr && departures_ != 0) {
      const Status nobody = context_.scopes().message_senders_left(envelope.scope, envelope.dst);
      if (!nobody.ok()) return nobody.with_context(Operation::describe(false, from, tag, view.bytes));
    }
    receive->posted = matcher_.post(wanted, tag, receive);
    // A named source may have to be connected before it can send; any source cannot be told.
    if (peer != nullptr && peer->phase() == PeerPhase::idle) peer->when_ready([](const Status&) {});
  } else {
    lanes_.unstashed(*message);
    if (message->announce != nullptr) {
      accept(receive, *message);
    } else if (!of_another_call(watchers_, *message->lane, *receive, message->head)) {
      receive->deliver(message->head, message->payload.size());
      receive->arrival = message->arrival;
      take_eager(rendezvous_, *message->lane, receive, message->head, message->payload);
    }
  }
  return std::shared_ptr<WorkState>(std::move(receive));
}

void Receives::on_eager(PeerState& peer, ByteSpan signal) {
  const auto head = decode_head(signal);
  const bool leaving = head && head->tag == leaving_tag;
  if (!head || (leaving && (signal.size() != head_bytes || head->envelope.scope == 0)))
    return peer.fail(Status(Code::protocol, "malformed eager message"));
  const ByteSpan payload = signal.subspan(head_bytes);
  Lane& lane = lanes_.of(peer);
  if (leaving) [[unlikely]]
    return on_left(peer, lane, head->envelope.scope);
  if (meet_eager(peer, lane, *head, payload)) return lanes_.consumed(lane, payload.size());
  if (context_.scopes().is_over(head->envelope.scope)) {
    context_.counters().add("messages.discarded", 1);
    return lanes_.consumed(lane, payload.size());
  }
  if (!lane.held.hold(payload.size())) {
    return peer.fail(Status(Code::protocol, "the peer sent more unexpected messages than it had credit for"));
  }
  auto message = std::make_unique<Unexpected>();
  message->lane = &lane;
  message->head = *head;
  message->arrival = matcher_.unexpected().arrival();
  message->payload.assign(payload.begin(), payload.end());
  stash(peer, std::move(message));
}

void Receives::on_announce(PeerState& peer, ByteSpan signal) {
  auto announce = decode_announce(signal);
  if (!announce || announce->head.tag == leaving_tag)
    return peer.fail(Status(Code::protocol, "malformed announcement of a message"));
  if (peer.phase() != PeerPhase::ready) {
    return rendezvous_.finish(peer, announce->sender_op, Status(Code::closed, "the receiver has closed; nothing was read"));
  }
  Lane& lane = lanes_.of(peer);
  Unexpected message;
  message.lane = &lane;
  message.head = announce->head;
  message.announce = std::make_unique<const Announce>(std::move(*announce));
  message.arrival = matcher_.unexpected().arrival();
  if (meet(peer, message)) return lanes_.consumed(lane, 0);
  if (context_.scopes().is_over(message.head.envelope.scope)) {
    rendezvous_.finish(peer, message.announce->sender_op, receiver_left());
    return lanes_.consumed(lane, 0);
  }
  if (!lane.held.hold(0)) {
    return peer.fail(Status(Code::protocol, "the peer announced more messages than it had credit for"));
  }
  stash(peer, std::make_unique<Unexpected>(std::move(message)));
}

void Receives::on_withdraw(PeerState& peer, ByteSpan signal) {
  const auto withdraw = decode_withdraw(signal);
  if (!withdraw) return peer.fail(Status(Code::protocol, "malformed withdrawal"));
  const std::uint64_t op = withdraw->sender_op;
  const auto is_it = [&](const Address& from, const auto& message) {
    return from.peer == &peer && message->announce != nullptr && message->announce->sender_op == op;
  };
  const Status withdrawn(Code::cancelled, "withdrawn before it was matched; nothing was read");
  if (withdraw->leaving) {
    Unexpected* found = nullptr;
    matcher_.unexpected().for_each([&](const Address& from, const auto& message) {
      if (is_it(from, message)) found = message.get();
    });
    if (found != nullptr) {
      found->announce.reset();
      found->missing = sender_left(peer);
      drop_last_missing(matcher_, lanes_, peer);
      return rendezvous_.finish(peer, op, withdrawn);
    }
  } else if (const auto taken = matcher_.unexpected().take_if(is_it); !taken.empty()) {
    lanes_.unstashed(*taken.front());
    return rendezvous_.finish(peer, op, withdrawn);
  }
  // Matched meanwhile: it completes, unless that receive is cancelled.
  const auto tell = [&](Operation& operation) {
    if (!operation.sending && operation.peer_op == op) static_cast<ReceiveOperation&>(operation).withdrawn = *withdraw;
  };
  for (const auto& operation : rendezvous_.operations().of(&peer)) tell(*operation);
  for (const auto& waiting : lanes_.of(peer).unrouted) tell(*waiting.operation);  // it may have no number yet
}

void Receives::stash(const PeerState& peer, std::unique_ptr<Unexpected> message) {
  const Head head = message->head;
  const std::uint64_t arrival = message->arrival;
  Lane& lane = *message->lane;
  matcher_.stash({&peer, head.envelope}, head.tag, arrival, std::move(message));
  lanes_.give_credit(lane);
  if (head.call != 0) watchers_.tell(peer, head);
}

void Receives::watch_calls(std::uint32_t scope, CallWatcher* watcher) {
  watchers_.set(scope, watcher);
  if (watcher == nullptr) return;
  matcher_.unexpected().for_each([&](const Address& from, const auto& message) {
    const auto owner = from.envelope.scope == scope && message->head.call != 0 ? message->lane->owner() : nullptr;
    if (owner != nullptr) watchers_.tell(*owner, message->head);
  });
}

bool Receives::meet_eager(PeerState& peer, Lane& lane, const Head& head, ByteSpan payload) {
  const Address from{&peer, head.envelope};
  if (direct_ != nullptr && direct_->fits(from, head.tag)) {
    direct_->info = info_of(head, payload.size());
    end_direct(copy_in(direct_->view, payload));
    return true;
  }
  const auto receive = matcher_.match_message(from, head.tag);
  if (receive == nullptr) return false;
  if (of_another_call(watchers_, lane, *receive, head)) return true;
  receive->deliver(head, payload.size());
  receive->arrival = matcher_.unexpected().arrival();
  take_eager(rendezvous_, lane, receive, head, payload);
  return true;
}

bool Receives::meet(PeerState& peer, Unexpected& message) {
  const Address from{&peer, message.head.envelope};
  if (direct_ != nullptr && direct_->fits(from, message.head.tag)) {
    const auto receive = std::make_shared<ReceiveOperation>(messenger_, Target{message.lane->peer, direct_->wanted.envelope},
                                                            direct_->tag, direct_->view);
    direct_->operation = receive;
    end_direct({});
    accept(receive, message);
    return true;
  }
  const auto receive = matcher_.match_message(from, message.head.tag);
  if (receive == nullptr) return false;
  accept(receive, message);
  return true;
}

void Receives::accept(const std::shared_ptr<ReceiveOperation>& receive, Unexpected& message) {
  const Announce& announce = *message.announce;
  receive->accepted();
  receive->peer = message.lane->peer;
  receive->stage = Stage::matched;
  receive->peer_op = announce.sender_op;
  receive->arrival = message.arrival;
  if (of_another_call(watchers_, *message.lane, *receive, message.head))
    return rendezvous_.finish(*receive->peer, announce.sender_op, {});
  receive->deliver(message.head, announce.bytes);
  if (announce.bytes > receive->view.bytes) {
    rendezvous_.finish(*receive->peer, announce.sender_op, {});  // the sender did nothing wrong
    receive->complete(Status(Code::invalid_argument, "a message of " + std::to_string(announce.bytes) +
                                                         " bytes does not fit a receive of " + std::to_string(receive->view.bytes) +
                                                         " bytes; nothing was written"));
    return;
  }
  rendezvous_.start(*message.lane, {receive, announce});
}

bool Receives::install(DirectReceive& receive) noexcept {
  const bool open = direct_ == nullptr && receive.wanted.peer->phase() == PeerPhase::ready && matcher_.posted().size() == 0 &&
                    matcher_.unexpected().size() == 0 && !has_left(*receive.wanted.peer, receive.wanted.envelope.scope) &&
                    !context_.scopes().is_over(receive.wanted.envelope.scope) && !context_.engine()->forked();
  if (open) direct_ = &receive;
  return open;
}

void Receives::end_direct(Status status) {
  DirectReceive& receive = *std::exchange(direct_, nullptr);
  receive.status = std::move(status);
  receive.done.store(1, std::memory_order_release);
  context_.engine()->wake_waiters();
}

bool Receives::withdraw(DirectReceive& receive) noexcept {
  if (receive.done.load(std::memory_order_relaxed) != 0) return false;
  direct_ = nullptr;
  return true;
}

void Receives::cancel(ReceiveOperation& receive) {
  const auto keep = matcher_.posted().take(receive.posted);
  receive.complete(Status(Code::cancelled, receive.describe() + " was cancelled; nothing was written"));
}

void Receives::end_posted(const Concerns& concerns, const Status& reason) {
  if (direct_ != nullptr && concerns(direct_->wanted)) {
    const Lane* const lane = lanes_.find(direct_->wanted.peer);
    const Target from{lane != nullptr ? lane->owner() : nullptr, direct_->wanted.envelope};
    const std::string what = Operation::describe(false, from, direct_->tag, direct_->view.bytes);
    end_direct(reason.with_context(what + ", nothing was written"));
  }
  end_taken(matcher_.posted().take_if([&](const Address& wanted, const auto&) { return concerns(wanted); }), reason);
}

void end_taken(const std::vector<std::shared_ptr<ReceiveOperation>>& taken, const Status& reason) {
  // A collective that learns of the first may cancel the others, which have no place in the table any more.
  for (const auto& receive : taken) receive->stage = Stage::matched;
  for (const auto& receive : taken) receive->complete(reason.with_context(receive->describe() + ", nothing was written"));
}

}  // namespace hmc::messaging
