// PeerImpl: connections that end while the peer lives (docs/explanation/failures.md has the argument).
//
// A connection that ends in use is quarantined: routes do without it, and it is made anew after a while that doubles. Each side
// tells the other over control that it delivers nothing more of it (`stopped`), with the number of ordered signals that it ever
// received. If it carried the messages, the side that accepted the control channel names the connection that carries them from now
// on
// (`messages_by`), and once that is ready and the other side has stopped, each sends again what the other has not received.
#include <algorithm>
#include <cstdio>

#include "base/log.h"
#include "comm/context_impl.h"
#include "comm/peer_impl.h"

namespace hmc {
namespace {

using Clock = Deadline::Clock;

constexpr double first_quarantine_seconds = 1;
constexpr double longest_quarantine_seconds = 60;
// A connection that has lasted so long is as good as new.
constexpr double steady_seconds = 60;
// Where nothing else serves, a connection that failed is made anew at once, then this many times more, each after twice the time.
constexpr unsigned most_vain = 4;
constexpr double first_pause_seconds = 0.02;
// Each attempt leaves a record behind until the peer ends.
constexpr std::uint32_t max_attempts = 256;
// From the end of the connection that carries messages to the next one; longer than any transport takes to connect.
constexpr double messages_seconds = 15;
// Signals, and bytes of them, received between two acknowledgements. The sender keeps far more.
constexpr std::uint64_t acknowledge_signals = 256;
constexpr std::uint64_t acknowledge_bytes = 256 << 10;

double seconds_since(Clock::time_point when) { return std::chrono::duration<double>(Clock::now() - when).count(); }

}  // namespace

std::string EndpointSlot::trouble() const {
  if (state != State::failed) return "its connection is being made again";
  std::string text = "failed (" + std::string(failure.message()) + ")";
  if (retry == 0) return text;
  char when[64];
  std::snprintf(when, sizeof when, "; quarantined, tried again in %.1f s", std::max(0.0, -seconds_since(retry_at)));
  return text + when;
}

// ---- the connection itself ----

// The record of the next attempt takes the place of the last one's, which others may point to until the peer ends.
EndpointSlot& PeerImpl::next_slot(TransportSlot& transport, std::uint32_t attempt) {
  auto made = std::make_unique<EndpointSlot>(*this, transport, attempt);
  const auto last = std::ranges::find_if(slots_, [&](const auto& slot) { return &slot->transport() == &transport; });
  if (last == slots_.end()) return *slots_.emplace_back(std::move(made));
  made->used = (*last)->used;
  made->quarantine = (*last)->quarantine;
  made->vain = (*last)->vain;
  stop_retry(**last);
  old_slots_.push_back(std::exchange(*last, std::move(made)));
  return **last;
}

EndpointSlot* PeerImpl::find_slot(std::string_view transport_name, std::uint32_t attempt) noexcept {
  for (const auto* slots : {&slots_, &old_slots_}) {
    for (const auto& slot : *slots) {
      if (slot->attempt() == attempt && slot->transport().name == transport_name) return slot.get();
    }
  }
  return nullptr;
}

EndpointSlot* PeerImpl::reopen(EndpointSlot& failed) { return open_endpoint(failed.transport(), failed.attempt() + 1); }

void PeerImpl::stop_retry(EndpointSlot& slot) {
  if (slot.retry != 0) context_.engine()->cancel_timer(std::exchange(slot.retry, 0));
}

void PeerImpl::schedule_retry(EndpointSlot& slot, Deadline when) {
  stop_retry(slot);
  slot.retry_at = when.when();
  slot.retry = context_.engine()->at(when, [this, &slot] {
    const auto keep = shared_from_this();
    slot.retry = 0;
    if (phase_ != PeerPhase::ready || find_slot(slot.transport().name) != &slot) return;
    if (slot.closing) return schedule_retry(slot, Deadline::after_seconds(first_pause_seconds));
    reopen(slot);
    choose_messages_if_none();
    if (phase_ == PeerPhase::ready) context_.needs_pump(*this);
  });
}

// Tried again later, if it has ever been of use.
void PeerImpl::quarantine(EndpointSlot& slot) {
  const std::string& name = slot.transport().name;
  if (slot.in_use) {
    if (slot.quarantine == 0 || seconds_since(slot.ready_at) >= steady_seconds) slot.quarantine = first_quarantine_seconds / 2;
    context_.count("routes.quarantined." + name, 1);
  }
  slot.quarantine = std::min(slot.quarantine * 2, longest_quarantine_seconds);
  const bool again = slot.used && !self_ && slot.failure.code() != Code::protocol && slot.attempt() + 1 < max_attempts;
  if (again) schedule_retry(slot, Deadline::after_seconds(slot.quarantine));
  const std::string why = name + (slot.in_use ? " broke down between this Context and " : " cannot be used with ") + describe() +
                          " (" + std::string(slot.failure.message()) + "); another connection takes its place";
  log(slot.in_use || !slot.used ? LogLevel::warning : LogLevel::info,
      again ? why + ", and it is tried again in " + std::to_string(static_cast<int>(slot.quarantine)) + " s" : why);
}

// It is ready, perhaps again: what goes another way meanwhile comes back.
void PeerImpl::restored(EndpointSlot& slot) {
  slot.ready_at = Clock::now();
  if (!std::exchange(slot.used, true) || slot.attempt() == 0) return;
  context_.count("routes.restored." + slot.transport().name, 1);
  log(LogLevel::info, slot.transport().name + " works again between this Context and " + describe());
  routes_.retire(nullptr);
}

// The connection is of no use (any more). Operations on it have been completed by the transport.
void PeerImpl::slot_failed(EndpointSlot& slot, const Status& reason, bool tell_peer) {
  slot.in_use = slot.state == EndpointSlot::State::ready;
  slot.vain = slot.in_use ? 0 : slot.vain + 1;
  slot.state = EndpointSlot::State::failed;
  slot.failure = reason;
  routes_.changed();
  if (slot.endpoint) {
    // Later: we may be inside it. What was imported through it goes after it, for operations under way use that to the last.
    slot.closing = true;
    context_.engine()->defer(
        [this, keep = shared_from_this(), at = &slot, endpoint = std::shared_ptr<Endpoint>(std::move(slot.endpoint))]() mutable {
          endpoint.reset();
          imports_.drop_entries(at);
          slot_closed(*at);
        });
  }
  routes_.retire(&slot);
  if (closing_ != Closing::no) {
    if (&slot == message_slot_) message_slot_ = nullptr;
    if (slot.unflushed || &slot == last_message_slot_) return end(failure_, PeerPhase::lost);
    return context_.needs_pump(*this);
  }
  if (phase_ == PeerPhase::connecting) {
    tried_.push_back(slot.transport().name + ": failed (" + std::string(reason.message()) + ")");
    if (tell_peer && !self_) send_note(slot, reason);
    context_.count("endpoints.failed." + slot.transport().name, 1);
    log(LogLevel::warning, slot.transport().name + " cannot be used with " + describe() + " (" + std::string(reason.message()) +
                               "); the next transport takes its place");
    if (&slot != message_slot_) return;
    message_slot_ = nullptr;
    if (accepting_) choose_message_transport();
    return;
  }
  if (phase_ != PeerPhase::ready) return;
  context_.count("endpoints.failed." + slot.transport().name, 1);
  if (const Status fatal = fatal_for_peer(slot); !fatal.ok()) return end(fatal, PeerPhase::lost);
  if (!slot.connected && tell_peer && !self_) send_note(slot, reason);
  quarantine(slot);
  if (&slot == message_slot_ || &slot == next_message_slot_) stop_messages();
}

// Only now the peer is told, if it may have used the connection: nothing of it lands here any more, so nothing overtakes what the
// peer writes again. And only after that word the connection may be made anew.
void PeerImpl::slot_closed(EndpointSlot& slot) {
  slot.closing = false;
  if (phase_ != PeerPhase::ready || self_) return;
  if (slot.connected) {
    const Status& why = slot.failure;
    const wire::EndpointNote note{slot.transport().name, slot.attempt(), why.code(), std::string(why.message())};
    static_cast<void>(send_control(wire::stopped, encode(wire::Stopped{note, signals_in_, slot.credit_in})));
  }
  choose_messages_if_none();
  if (phase_ == PeerPhase::ready) context_.needs_pump(*this);
}

// What the end of one connection tells of the peer as a whole.
Status PeerImpl::fatal_for_peer(const EndpointSlot& slot) const {
  const Code code = slot.failure.code();
  const bool hostile = code == Code::protocol || code == Code::authentication;
  const bool messages = &slot == message_slot_ && (self_ || hostile || !slot.transport().capabilities.breaks);
  if (!messages && !slot.unflushed) return {};
  std::string text = "the " + slot.transport().name + " connection to " + describe() + " failed: ";
  text += slot.failure.message();
  if (slot.unflushed) text += "; puts that were complete at this end only may be lost with it";
  return Status(Code::peer_lost, std::move(text), slot.failure.native());
}

// ---- messages and notifications ----

Status PeerImpl::signal_kept(ByteSpan head, ByteSpan body) {
  if (message_slot_ == nullptr || !outbox_.at_end()) return Status(Code::would_block, "messages wait for a connection");
  if (outbox_.full()) return Status(Code::would_block, "the peer has not acknowledged what was sent");
  const Status sent = message_slot_->endpoint->signal(head, body);
  if (sent.ok()) {
    outbox_.keep(head, body);
  } else if (sent.code() != Code::would_block && sent.code() != Code::invalid_argument) {
    return Status(Code::would_block, std::string(sent.message()));  // the connection is ending; it will say so
  }
  return sent;
}

void PeerImpl::count_signal(std::size_t bytes) {
  ++signals_in_;
  bytes_in_ += bytes;
  if (signals_in_ - acknowledged_ < acknowledge_signals && bytes_in_ < acknowledge_bytes) return;
  acknowledge_ = true;
  context_.needs_pump(*this);
}

// What goes before everything else: signals that were lost, and the word that others arrived. True if anything moved.
bool PeerImpl::pump_signals() {
  bool moved = false;
  while (message_slot_ != nullptr && !outbox_.at_end()) {
    const Status sent = message_slot_->endpoint->signal(outbox_.current(), {});
    if (sent.code() == Code::invalid_argument) {
      end(Status(Code::peer_lost, "a message under way to " + describe() + " cannot be sent again: " + std::string(sent.message())),
          PeerPhase::lost);
      return true;
    }
    if (!sent.ok()) break;
    outbox_.advance();
    context_.count("signals.resent", 1);
    moved = true;
  }
  if (acknowledge_ && message_slot_ != nullptr &&
      message_slot_->endpoint->signal(number_signal(NotifyKind::received, {}, signals_in_), {}).ok()) {
    acknowledge_ = false;
    acknowledged_ = signals_in_;
    bytes_in_ = 0;
    moved = true;
  }
  return moved;
}

void PeerImpl::stop_messages() {
  const bool first = message_slot_ != nullptr;
  message_slot_ = next_message_slot_ = nullptr;
  if (first) {
    start_timer(messages_seconds, [this] {
      end(Status(Code::peer_lost, "no connection to " + describe() +
                                      " took over from the one that failed: " + std::string(last_message_slot_->failure.message())),
          PeerPhase::lost);
    });
  }
  if (accepting_) choose_messages_anew();
}

void PeerImpl::choose_messages_if_none() {
  const bool none = message_slot_ == nullptr && next_message_slot_ == nullptr;
  if (phase_ == PeerPhase::ready && accepting_ && none && !self_) choose_messages_anew();
}

// The best that works; where nothing else does, the one that failed is made anew.
void PeerImpl::choose_messages_anew() {
  if (last_message_slot_->closing) return;  // the peer hears of its end first
  std::vector<std::string> rejected;
  std::vector<PeerRoutes::Candidate> resting;
  for (const PeerRoutes::Candidate& candidate : routes_.rank(Device::cpu(), Device::cpu(), 0, rejected, &resting)) {
    EndpointSlot* slot = find_slot(candidate.transport->name);
    if (slot == nullptr) slot = open_endpoint(*candidate.transport, 0);
    if (phase_ != PeerPhase::ready || next_message_slot_ != nullptr) return;
    if (slot->state != EndpointSlot::State::failed) return carry_messages(*slot);
  }
  EndpointSlot* slot = wake_resting(resting);
  if (phase_ != PeerPhase::ready || next_message_slot_ != nullptr) return;
  if (slot != nullptr && slot->state == EndpointSlot::State::failed) return;  // once it is closed, or the pause is over
  if (slot != nullptr) return carry_messages(*slot);
  std::string message = "the last connection to " + describe() + " failed:";
  for (const auto& reason : rejected) message += "\n  " + reason;
  end(Status(Code::peer_lost, std::move(message), last_message_slot_->failure.native()), PeerPhase::lost);
}

// One of the quarantined that is being made again, or (its state is failed) soon will be; null if all have failed too often.
EndpointSlot* PeerImpl::wake_resting(const std::vector<PeerRoutes::Candidate>& resting) {
  EndpointSlot* later = nullptr;
  for (const PeerRoutes::Candidate& candidate : resting) {
    EndpointSlot* slot = find_slot(candidate.transport->name);
    const auto waits = [&] { return slot->state == EndpointSlot::State::failed && slot->retry != 0 && slot->vain <= most_vain; };
    if (waits() && slot->vain == 0) {
      if (slot->closing) return slot;
      slot = reopen(*slot);
    }
    if (slot->state != EndpointSlot::State::failed) return slot;
    if (later == nullptr && waits()) later = slot;
  }
  if (later == nullptr) return nullptr;
  const Deadline soon = Deadline::after_seconds(first_pause_seconds * (1U << later->vain));
  if (soon.when() < later->retry_at) schedule_retry(*later, soon);
  return later;
}

void PeerImpl::carry_messages(EndpointSlot& slot) {
  next_message_slot_ = &slot;
  const wire::EndpointNote note{slot.transport().name, slot.attempt(), Code::ok, {}};
  static_cast<void>(send_control(wire::messages_by, encode(note)));
  resume_messages();
}

void PeerImpl::on_messages_by(const wire::EndpointNote& note) {
  if (phase_ != PeerPhase::ready) return;
  if (accepting_ || message_slot_ != nullptr) return broken("a choice that is not its own to make");
  EndpointSlot* slot = find_slot(note.transport);
  if (slot == nullptr || slot->attempt() != note.attempt || slot->state == EndpointSlot::State::failed) return;  // it has been told
  next_message_slot_ = slot;
  resume_messages();
}

void PeerImpl::on_stopped(const wire::Stopped& m) {
  if (phase_ != PeerPhase::ready) {
    if (phase_ == PeerPhase::connecting) on_endpoint_note(m.endpoint, false);
    return;
  }
  EndpointSlot* slot = find_slot(m.endpoint.transport, m.endpoint.attempt);
  if (slot == nullptr || slot->peer_stopped) return broken("the end of a connection that it does not have");
  if (!outbox_.received(m.signals) || m.credit > slot->credit_out) return broken("a count of what was never sent");
  slot->peer_stopped = true;
  // Puts that failed took their notifications with them, or not: only the peer knows.
  notify_slot_->refund(slot->credit_out - m.credit);
  slot->credit_out = 0;
  if (slot->state != EndpointSlot::State::failed) {
    const Code code = m.endpoint.code == Code::ok ? Code::transport : m.endpoint.code;
    slot_failed(*slot, Status(code, "the peer reports: " + m.endpoint.message), true);
  }
  if (phase_ != PeerPhase::ready) return;
  // The peer lives: what failed for want of its answer failed with the connection.
  works_.decide();
  resume_messages();
  if (phase_ == PeerPhase::ready) context_.needs_pump(*this);
}

void PeerImpl::resume_messages() {
  if (next_message_slot_ == nullptr || next_message_slot_->state != EndpointSlot::State::ready) return;
  if (!last_message_slot_->peer_stopped) return;
  message_slot_ = last_message_slot_ = std::exchange(next_message_slot_, nullptr);
  stop_timer();
  outbox_.rewind();
  context_.count("messages.moved", 1);
  log(LogLevel::info, "messages with " + describe() + " go by " + message_slot_->transport().name + " now");
  context_.needs_pump(*this);
  context_.engine()->wake_waiters();
}

}  // namespace hmc
