// PeerImpl: closing in order, by either side or both at once (docs/explanation/closing.md has the argument).
//
// draining: nothing new is posted. What this side has posted ends and is flushed; what the peer has posted is served.
// said:     nothing of this side is in flight any more, and its last signal, bye, has told the peer so.
// A peer that receives bye acknowledges it at once, closes in the same way, and says bye in turn. A side that has said bye and
// received one ends: two that close at once need nothing else. Bye follows everything, over whichever connection it went.
#include "comm/connection/signals.h"
#include "comm/context_impl.h"
#include "comm/onesided/transfer.h"
#include "comm/peer_impl.h"

namespace hmc {
namespace {

// For a peer to acknowledge a bye. One that does not is stopped, and is waited for only where it may access memory here.
constexpr double acknowledge_seconds = 1;

}  // namespace

void PeerImpl::leave() {
  if (ended_ || closing_ != Closing::no) return;
  const auto keep = shared_from_this();
  const Status reason(Code::closed, describe() + " was closed by this process");
  if (phase_ != PeerPhase::ready || self_) return end(reason, PeerPhase::closed);
  // Without a goodbye where messages are still to be sent again: the other side must not take it for all that there was.
  if (!messages_.current()) return end(reason, PeerPhase::lost);
  begin_closing(reason);
  // What this side was fetching is of no use any more, and each get says how it ended.
  works_.stop(reason, [](const TransferWork& work) { return !work.is_put(); });
  if (closing_ != Closing::no) advance_closing();
}

void PeerImpl::begin_closing(const Status& reason) {
  closing_ = Closing::draining;
  phase_ = PeerPhase::closed;
  failure_ = reason;
  routes_.changed();
  context_.peer_ended(*this);
  imports_.end_requests(reason);
  notify_slot_->end(reason);
  context_.notify_table().wake_waiters();
  posts_.abandon_unsent(reason);
  context_.messenger().on_peer_closing(*this, reason);
  advance_closing();
  context_.engine()->wake_waiters();
}

void PeerImpl::on_bye() {
  if (bye_heard_) return broken("bye twice");
  bye_heard_ = true;
  static_cast<void>(send_control(wire::bye_ack, {}));
  const Status reason(Code::closed, describe() + " said goodbye");
  posts_.abandon(reason);
  if (closing_ != Closing::no) return advance_closing();
  if (phase_ != PeerPhase::ready) return end(reason, PeerPhase::closed);
  begin_closing(reason);
}

void PeerImpl::on_bye_ack() {
  if (closing_ == Closing::said) timer_.stop();  // it lives, and ends what it has in flight
}

void PeerImpl::advance_closing_soon() { context_.needs_pump(*this); }

void PeerImpl::advance_closing() {
  if (closing_ == Closing::draining) {
    if (!quiet()) return;
    if (!messages_.current()) return end(failure_, PeerPhase::lost);
    const Status said = signal(signal_head(NotifyKind::bye, {}), {});
    if (said.code() == Code::would_block) return advance_closing_soon();
    if (!said.ok()) return end(failure_, PeerPhase::closed);
    closing_ = Closing::said;
    if (!bye_heard_ && !holds())
      timer_.start(Deadline::after_seconds(acknowledge_seconds), [this] { end(failure_, PeerPhase::closed); });
  }
  if (closing_ == Closing::said && bye_heard_) end(failure_, PeerPhase::closed);
}

// Nothing of this side is in flight: no operation, no message that has begun, no put that is complete at this end only.
bool PeerImpl::quiet() {
  if (!posts_.empty() || !works_.empty()) return false;
  return !imports_.flushing() && context_.messenger().quiet(*this, bye_heard_) && posts_.flushed();
}

bool PeerImpl::holds() const {
  if (self_ || !identity_.same_host) return false;
  return grants_.accessible() || context_.messenger().holds(*this);
}

std::string PeerImpl::unfinished() const {
  if (holds()) return describe() + " has not let go of memory of this process, which it may still read and write";
  if (cut_short_ || closing_ == Closing::draining) {
    return "what was posted to " + describe() + " has not all arrived, and what has not is lost";
  }
  return {};
}

}  // namespace hmc
