// Closing, by either side or both at once (docs/explanation/closing.md has the argument).
//
// A side drains first: what it has posted ends and is flushed; what the peer has posted is served. Then it says bye, its last
// signal. A peer that receives bye acknowledges it at once, closes in the same way, and says bye in turn. A side that has said bye
// and received one ends: two that close at once need nothing else. Bye follows everything, over whichever connection it went
// (Receipts).
#include "comm/session/closing.h"

#include <algorithm>
#include <utility>

#include "comm/connection/signals.h"
#include "comm/context_impl.h"
#include "comm/onesided/transfer.h"
#include "comm/peer_impl.h"

namespace hmc {
namespace {

// For a peer to acknowledge a bye. One that does not is stopped, and is waited for only where it may access memory here, or has
// left no room for what was sent.
constexpr double acknowledge_seconds = 1;

}  // namespace

void Closing::leave() {
  if (state_ != State::open) return;
  const auto keep = peer_.shared_from_this();
  const bool again = std::exchange(leaves_, true);
  if (peer_.phase() == PeerPhase::connecting && peer_.posts().has_unreported()) {
    if (!peer_.impl().closing().begun()) {  // only a Context that closes takes no new calls meanwhile
      lose();
    } else if (again) {
      return;
    } else {  // after the handshake leave() sends the queue, then the goodbye
      return peer_.handshake().when_over([this](const Status& ready) {
        if (!ready.ok()) return;
        leave();
        advance_soon();
      });
    }
  }
  const Status reason(Code::closed, peer_.describe() + " was closed by this process");
  if (peer_.phase() != PeerPhase::ready || peer_.is_self()) return end(reason, PeerPhase::closed);
  // Without a goodbye where messages are still to be sent again: the other side must not take it for all that there was.
  if (!peer_.messages().current()) return peer_.fail(reason);
  begin(reason);
  // What this side was fetching is of no use any more, and each get says how it ended.
  peer_.works().stop(reason, [](const TransferWork& work) { return !work.is_put(); });
  advance();
}

void Closing::give_up() {
  if (state_ != State::open) return;
  lose();
  end(Status(Code::closed, peer_.describe() + " was closed by this process before it was connected"), PeerPhase::closed);
}

// Nothing new is posted or asked for; what was posted goes on.
void Closing::begin(const Status& reason) {
  state_ = State::draining;
  ContextImpl& context = peer_.impl();
  peer_.enter(PeerPhase::closed, reason);
  peer_.routes().changed();
  context.peers().on_ended(peer_);
  peer_.imports().end_requests(reason, true);
  peer_.notify_slot()->end(reason);
  context.notifier().table().wake_waiters();
  peer_.posts().abandon_unsent(reason);
  context.messenger().on_peer_closing(peer_, reason);
  advance();
  context.engine()->wake_waiters();
}

void Closing::on_bye(std::uint64_t group_messages) {
  if (bye_after_) return peer_.broken("bye twice");
  bye_after_ = group_messages;
  static_cast<void>(peer_.send_control(wire::bye_ack, {}));
  take_bye();
}

void Closing::on_group_message() {
  ++group_messages_received_;
  take_bye();
}

// Signals overtake the control channel, which is another connection. What a group was told last, such as the table of a job or why
// a collective failed, comes first.
void Closing::take_bye() {
  if (!bye_after_ || bye_received_ || ended() || group_messages_received_ < *bye_after_) return;
  bye_received_ = true;
  const Status reason(Code::closed, peer_.describe() + " said goodbye");
  peer_.posts().abandon(reason);
  if (in_progress()) return advance();
  if (peer_.phase() != PeerPhase::ready) return end(reason, PeerPhase::closed);
  peer_.works().decide();  // it lives: what failed for want of its answer failed with the connection
  if (state_ == State::open) begin(reason);
}

void Closing::on_bye_ack() {
  if (state_ == State::said) timer_.stop();  // it lives, and ends what it has in flight
}

void Closing::advance_soon() { peer_.impl().peers().pump_soon(peer_); }

void Closing::advance() {
  if (state_ == State::draining) {
    if (!quiet()) return;
    if (!peer_.messages().current()) return peer_.fail(peer_.failure());
    const Status said = peer_.signal(number_signal(NotifyKind::bye, {}, group_messages_sent_), {});
    if (said.code() == Code::would_block) return peer_.impl().peers().pump_with_room(peer_);
    if (!said.ok()) return end(peer_.failure(), PeerPhase::closed);
    state_ = State::said;
    if (!bye_received_ && !peer_.link().holds()) await_acknowledgement();
  }
  if (state_ == State::said && bye_received_) end(peer_.failure(), PeerPhase::closed);
}

void Closing::await_acknowledgement() {
  timer_.start(Deadline::after_seconds(acknowledge_seconds), [this] {
    if (unsent()) return await_acknowledgement();
    end(peer_.failure(), PeerPhase::closed);
  });
}

bool Closing::unsent() const {
  const auto has_unsent = [](const auto& slot) { return slot->endpoint && slot->endpoint->has_unsent(); };
  if (state_ == State::draining) return true;
  return state_ == State::said && !bye_received_ && std::ranges::any_of(peer_.connections().all(), has_unsent);
}

void Closing::receive_rest() {
  const auto& slots = peer_.connections().all();
  for (std::size_t i = 0; i < slots.size(); ++i) {  // what is delivered may make more
    if (Endpoint* endpoint = slots[i]->endpoint.get()) endpoint->receive_rest();
  }
}

// Nothing of this side is in flight: no operation, no message that has begun, no put that is complete at this end only.
bool Closing::quiet() {
  if (!peer_.posts().empty() || !peer_.works().empty()) return false;
  return !peer_.imports().flushing() && peer_.imports().holds() == 0 && peer_.impl().messenger().quiet(peer_, bye_received_) &&
         peer_.posts().receipts().complete();
}

// What was posted, is not known to have arrived, and has no Work that says so; as text for people, empty if nothing. `reason`: why
// the peer was not reached.
std::string Closing::loss(std::string_view reason) const {
  const bool queued = peer_.posts().has_unreported();
  const std::uint64_t byes = state_ == State::said ? 1 : 0;
  bool sent = peer_.messages().unacknowledged() > byes;
  std::string why = reason.empty() ? "" : " (" + std::string(reason) + ")";
  for (const auto& slot : peer_.connections().all()) {
    if (slot->state != EndpointSlot::State::ready && !slot->closing) continue;
    sent = sent || slot->unflushed || slot->flushes != 0 || slot->notified;
    if (slot->closing) why += " (" + slot->transport().name + ": " + std::string(slot->failure.message()) + ")";
  }
  if (!queued && !sent) return {};
  return "what was posted to " + peer_.describe() + (queued ? " has not all arrived" : " may not all have arrived") +
         ", and what has not is lost" + why;
}

void Closing::lose(std::string_view reason) { peer_.impl().closing().add_lost(peer_, loss(reason)); }

void Closing::on_replaced() {
  const auto keep = peer_.shared_from_this();
  receive_rest();
  if (state_ != State::open) return;  // the bye was in what was received
  const Status reason(Code::closed, peer_.describe() + " came back by a new connection");
  if (peer_.phase() == PeerPhase::connecting) lose(reason.message());
  if (peer_.phase() != PeerPhase::ready || !peer_.messages().current()) return end(reason, PeerPhase::closed);
  begin(reason);
}

void Closing::on_channel_closed(const Status& reason) {
  const auto keep = peer_.shared_from_this();
  const bool goodbye = reason.code() == Code::closed;
  // A process that did not run for a while finds the end together with all that came before it.
  if (!ended() && (goodbye || reason.code() == Code::peer_lost)) receive_rest();
  if (state_ == State::torn_down) {
    peer_.link().drop();  // the peer has ended its side, or our goodbye is out
  } else if (state_ == State::said || (state_ == State::draining && goodbye)) {
    end(peer_.failure(), PeerPhase::closed);
  } else if (goodbye && peer_.phase() == PeerPhase::connecting && peer_.handshake().has_tried()) {
    peer_.fail(peer_.handshake().no_transport());  // it gave up for the same reason
  } else if (goodbye) {
    if (peer_.phase() == PeerPhase::connecting) lose("it closed before it was connected");
    end(Status(Code::closed, peer_.describe() + " said goodbye"), PeerPhase::closed);
  } else {
    peer_.fail(Status(reason.code(), peer_.describe() + ": " + std::string(reason.message()), reason.native()));
  }
}

void Closing::end(const Status& why, PeerPhase phase) {
  if (ended()) return;
  const auto keep = peer_.shared_from_this();
  const Status reason = why;
  ContextImpl& context = peer_.impl();
  // This side could not deliver the rest, to a peer that lives and does not close. Or it never got to the peer: whether that is
  // dead is learned too late, or never.
  const bool unreached = phase == PeerPhase::lost && peer_.phase() == PeerPhase::connecting;
  const bool failed = leaves_ && !bye_after_ && phase == PeerPhase::lost && reason.code() != Code::peer_lost;
  cut_short_ = !failed && !unreached && unsent();
  if (failed || unreached) lose(unreached ? reason.message() : std::string_view());
  state_ = State::ended;
  timer_.stop();
  peer_.enter(phase, reason);
  peer_.routes().changed();
  peer_.messages().end();
  peer_.connections().stop_retries();
  context.peers().on_ended(peer_);
  peer_.posts().abandon(reason);
  peer_.imports().end_requests(reason, false);
  peer_.liveness().end();
  peer_.notify_slot()->end(reason);
  context.notifier().table().wake_waiters();
  peer_.handshake().end(reason);
  // We may be inside a callback of the channel or of an endpoint: they go once it has returned.
  context.engine()->defer([this, keep] { tear_down(); });
  context.engine()->wake_waiters();
}

// The second half of the end, outside the call chain of the first.
void Closing::tear_down() {
  if (state_ == State::torn_down) return;
  state_ = State::torn_down;
  const auto keep = peer_.shared_from_this();
  const Status& reason = peer_.failure();
  ContextImpl& context = peer_.impl();
  peer_.liveness().end();
  // Endpoints first: their end completes what is under way, after which nothing touches regions or buffers.
  peer_.connections().tear_down(reason);
  peer_.works().abandon(reason);
  peer_.imports().tear_down(reason);
  context.messenger().on_peer_gone(peer_, reason);
  context.notifier().table().remove_peer(peer_.notify_slot(), reason);
  peer_.grants().drop(false);
  peer_.routes().clear();
  // Only now, after the endpoints: the end of this side of the channel tells the peer that nothing here touches its memory. It
  // waits for the end of holds.
  peer_.link().end(peer_.phase() == PeerPhase::closed);
  context.peers().on_torn_down(peer_, reason);
  context.engine()->wake_waiters();
}

void Closing::tear_down_now(std::vector<std::shared_ptr<const void>>& kept) {
  if (!ended()) {
    end(peer_.phase() == PeerPhase::closed ? peer_.failure() : Status(Code::closed, "the Context is closed"), PeerPhase::closed);
  }
  tear_down();
  if (peer_.link().holds()) {
    peer_.grants().keep(kept);
    peer_.impl().messenger().abandon(peer_, kept);
  }
  peer_.link().drop_now(kept);
}

bool Closing::gone() const noexcept { return state_ == State::torn_down && peer_.link().gone(); }

std::string Closing::unfinished() const {
  if (peer_.link().holds()) {
    return peer_.describe() + " has not let go of memory of this process, which it may still read and write";
  }
  if (cut_short_ || unsent()) {
    return "what was posted to " + peer_.describe() + " has not all arrived, and what has not is lost";
  }
  return {};
}

}  // namespace hmc
