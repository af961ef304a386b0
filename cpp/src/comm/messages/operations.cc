#include "comm/messages/operations.h"

#include "comm/messages/messenger_impl.h"
#include "comm/routing/peer_routes.h"
#include "comm/session/liveness.h"

namespace hmc::messaging {

Operation::Operation(MessengerImpl& messenger, const Target& target, std::int64_t t, const MemoryView& v, bool is_send)
    : WorkState(messenger.engine()),
      owner(messenger),
      peer(target.peer),
      envelope(target.envelope),
      tag(t),
      view(v),
      sending(is_send),
      call(target.call) {}

Status Operation::cancel_locked() { return owner.withdrawals().cancel(*this); }

void SendOperation::wait_behind_fence() {
  behind_fence_ = true;
  peer->add_fence();
  peer->posts().add(std::static_pointer_cast<SendOperation>(shared_from_this()));
}

void SendOperation::leave_fence() noexcept {
  behind_fence_ = false;
  peer->remove_fence();
}

PendingOp::Outcome SendOperation::post() {
  leave_fence();
  owner.sends().enqueue(std::static_pointer_cast<SendOperation>(shared_from_this()));
  return Outcome::posted;
}

void SendOperation::abandon(const Status& reason) {
  leave_fence();
  complete(reason.with_context(describe() + ", not sent"));
}

std::string Operation::describe() const { return describe(sending, {peer, envelope}, tag, view.bytes); }

std::string Operation::describe(bool sending, const Target& target, std::int64_t tag, std::size_t bytes) {
  std::string text = (sending ? "send of " : "receive of up to ") + std::to_string(bytes) + " bytes, tag " +
                     (tag == any_tag ? std::string("any") : std::to_string(tag));
  if (target.peer == nullptr) return text;
  const std::string& name = target.peer->identity().name;
  const std::uint32_t rank = sending ? target.envelope.dst : target.envelope.src;
  const bool ranked = target.envelope.scope != 0 && rank != any_rank;
  return text + (sending ? ", to " : ", from ") + (ranked ? "rank " + std::to_string(rank) + " (" + name + ")" : name);
}

void Share::complete(Status status) noexcept { operation_.part_done(std::move(status)); }

void Operation::part_done(Status status) noexcept {
  if (status.code() == Code::device && peer != nullptr && ends.doubt()) {
    const auto answered = [this, keep = shared_from_this(), status] {
      if (!done()) part_done(status);
    };
    if (peer->liveness().ask(answered)) return;
  }
  ends.own_over();
  if (sending && std::exchange(halting, false)) {
    if (status.ok()) peer->routes().signalled_by(share().transport);
    if (owner.withdrawals().keep(static_cast<SendOperation&>(*this), status)) return;
    ends.peer_over = true;  // the receiver has stopped
  }
  if (!sending && static_cast<ReceiveOperation&>(*this).gives_back) {
    // Whatever ended it, the message is still its sender's. Another receive may get it, which posts: not from inside a completion.
    ends.fail(status.code() == Code::cancelled ? std::move(status) : Status(Code::cancelled, "cancelled"));
    return engine()->defer([keep = std::static_pointer_cast<Operation>(shared_from_this())] { keep->settle(); });
  }
  if (!status.ok() && owner.rendezvous().fetch_again(*this, status)) return;
  // A message's region ends with its send.
  if (!sending && status.code() == Code::stale) status = Status(Code::closed, "the sender gave up its send before all was here");
  bool lost = status.code() == Code::peer_lost;
  if (!status.ok() && peer != nullptr) status = peer->meaning_of(std::move(status), share().may_break);
  lost = lost || status.code() == Code::peer_lost;
  if (lost)
    status = status.with_context(describe() + (sending ? ", of which part was sent" : ", of which part may have been written"));
  ends.fail(std::move(status));
  owner.rendezvous().report_part(*this);
  settle();
}

void Operation::peer_done(Status status) {
  ends.peer_over = true;
  // The sender has given it up: nothing is left for another receive.
  if (!status.ok() && !sending && static_cast<ReceiveOperation&>(*this).gives_back) ends.outcome = {};
  if (!status.ok() && !sending) halting = false;
  ends.fail(std::move(status));
  settle();
}

void Operation::fail(Status status) {
  ends.peer_hopeless = true;
  halting = false;
  ends.fail(std::move(status));
  settle();
}

void Operation::settle() {
  if (done() || !ends.over() || (!sending && halting)) return;
  if (sending) return complete(ends.outcome);
  owner.withdrawals().end(static_cast<ReceiveOperation&>(*this));
}

void Operation::released() noexcept {
  owner.rendezvous().forget(*this);
  if (share_) {
    share_->remote.reset();
    share_->region.reset();
    share_->announced_region.reset();
  }
  if (view.owner) engine()->retire(std::move(view.owner));
}

}  // namespace hmc::messaging
