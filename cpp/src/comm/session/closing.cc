// Closing, by either side or both at once (docs/explanation/closing.md has the argument).
//
// A side drains first: what it has posted ends and is flushed; what the peer has posted is served. Then it says bye, its last
// signal. A peer that receives bye acknowledges it at once, closes in the same way, and says bye in turn. A side that has said bye
// and received one ends: two that close at once need nothing else. Bye follows everything, over whichever connection it went.
#include "comm/session/closing.h"

#include "comm/connection/signals.h"
#include "comm/context_impl.h"
#include "comm/onesided/transfer.h"
#include "comm/peer_impl.h"

namespace hmc {
namespace {

// For a peer to acknowledge a bye. One that does not is stopped, and is waited for only where it may access memory here.
constexpr double acknowledge_seconds = 1;

}  // namespace

void Closing::leave() {
  if (state_ != State::open) return;
  const auto keep = peer_.shared_from_this();
  const Status reason(Code::closed, peer_.describe() + " was closed by this process");
  if (peer_.phase() != PeerPhase::ready || peer_.is_self()) return peer_.end(reason, PeerPhase::closed);
  // Without a goodbye where messages are still to be sent again: the other side must not take it for all that there was.
  if (!peer_.messages().current()) return peer_.end(reason, PeerPhase::lost);
  begin(reason);
  // What this side was fetching is of no use any more, and each get says how it ended.
  peer_.works().stop(reason, [](const TransferWork& work) { return !work.is_put(); });
  advance();
}

void Closing::begin(const Status& reason) {
  state_ = State::draining;
  peer_.stop_posting(reason);
  advance();
  peer_.impl().engine()->wake_waiters();
}

void Closing::on_bye() {
  if (bye_received_) return peer_.broken("bye twice");
  bye_received_ = true;
  static_cast<void>(peer_.send_control(wire::bye_ack, {}));
  const Status reason(Code::closed, peer_.describe() + " said goodbye");
  peer_.posts().abandon(reason);
  if (in_progress()) return advance();
  if (peer_.phase() != PeerPhase::ready) return peer_.end(reason, PeerPhase::closed);
  begin(reason);
}

void Closing::on_bye_ack() {
  if (state_ == State::said) timer_.stop();  // it lives, and ends what it has in flight
}

void Closing::advance_soon() { peer_.impl().needs_pump(peer_); }

void Closing::advance() {
  if (state_ == State::draining) {
    if (!quiet()) return;
    if (!peer_.messages().current()) return peer_.end(peer_.failure(), PeerPhase::lost);
    const Status said = peer_.signal(signal_head(NotifyKind::bye, {}), {});
    if (said.code() == Code::would_block) return advance_soon();
    if (!said.ok()) return peer_.end(peer_.failure(), PeerPhase::closed);
    state_ = State::said;
    if (!bye_received_ && !peer_.holds()) {
      timer_.start(Deadline::after_seconds(acknowledge_seconds), [this] { peer_.end(peer_.failure(), PeerPhase::closed); });
    }
  }
  if (state_ == State::said && bye_received_) peer_.end(peer_.failure(), PeerPhase::closed);
}

// Nothing of this side is in flight: no operation, no message that has begun, no put that is complete at this end only.
bool Closing::quiet() {
  if (!peer_.posts().empty() || !peer_.works().empty()) return false;
  return !peer_.imports().flushing() && peer_.impl().messenger().quiet(peer_, bye_received_) && peer_.posts().flushed();
}

bool Closing::complete_with_channel(bool goodbye) const noexcept {
  return state_ == State::said || (state_ == State::draining && goodbye);
}

bool Closing::end() {
  if (ended()) return false;
  cut_short_ = state_ == State::draining;
  state_ = State::ended;
  timer_.stop();
  return true;
}

bool Closing::tear_down() noexcept {
  if (torn_down()) return false;
  state_ = State::torn_down;
  return true;
}

}  // namespace hmc
