// Connections (docs/explanation/failures.md has the argument).
//
// Endpoints are made symmetrically: whoever needs one first makes it and sends its address; the other side makes its own on seeing
// that; each connects once it has the other's address, and says ready (or failed) when it has. Both may start at once.
//
// A connection that ends in use is quarantined: routes do without it, and it is retried after a while that doubles. Each side tells
// the other over control that it delivers nothing more of it (`stopped`), with the number of ordered signals that it ever received.
#include "comm/connection/connections.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/log.h"
#include "comm/context_impl.h"
#include "comm/peer_impl.h"

namespace hmc {
namespace {

// Each attempt leaves a record behind until the peer ends. Holds for both sides: a peer that counts further is refused.
constexpr std::uint32_t max_attempts = 256;
// For an endpoint that is still closing when its retry is due.
constexpr double closing_pause_seconds = 0.02;

}  // namespace

EndpointSlot* Connections::find(std::string_view transport_name) noexcept {
  for (const auto& slot : slots_) {
    if (slot->transport().name == transport_name) return slot.get();
  }
  return nullptr;
}

EndpointSlot* Connections::find(std::string_view transport_name, std::uint32_t attempt) noexcept {
  for (const auto* slots : {&slots_, &old_slots_}) {
    for (const auto& slot : *slots) {
      if (slot->attempt() == attempt && slot->transport().name == transport_name) return slot.get();
    }
  }
  return nullptr;
}

Endpoint* Connections::endpoint(std::string_view transport_name) noexcept {
  EndpointSlot* slot = find(transport_name);
  return slot != nullptr && slot->state == EndpointSlot::State::ready ? slot->endpoint.get() : nullptr;
}

// ---- making them ----

// The record of the next attempt takes the place of the last one's, which others may point to until the peer ends.
EndpointSlot& Connections::next_slot(TransportSlot& transport, std::uint32_t attempt) {
  auto made = std::make_unique<EndpointSlot>(peer_, transport, attempt);
  const auto last = std::ranges::find_if(slots_, [&](const auto& slot) { return &slot->transport() == &transport; });
  if (last == slots_.end()) return *slots_.emplace_back(std::move(made));
  made->backoff = (*last)->backoff;
  (*last)->retry.stop();
  old_slots_.push_back(std::exchange(*last, std::move(made)));
  return **last;
}

EndpointSlot* Connections::open(TransportSlot& transport, std::uint32_t attempt) {
  EndpointSlot& slot = next_slot(transport, attempt);
  const auto make = [&]() -> Status {
    const auto domain = peer_.routes().domain_of(transport.name);
    if (!domain) return Status(Code::unsupported, "the peer does not offer " + transport.name);
    HMC_ASSIGN(slot.endpoint, transport.transport->create_endpoint(*domain, slot));
    HMC_ASSIGN(Blob address, slot.endpoint->address());
    if (peer_.is_self()) return {};
    wire::Address m{transport.name, attempt, std::move(address.bytes)};
    return peer_.send_control(wire::address, encode(m), std::move(address.fds));
  };
  if (const Status made = make(); !made.ok()) failed(slot, made, true);
  return &slot;
}

void Connections::connect_self(EndpointSlot& slot) {
  slot.state = EndpointSlot::State::connecting;
  // Its own address once more: the first may have been consumed.
  auto address = slot.endpoint->address();
  Status status = address.status();
  if (address.ok()) status = slot.endpoint->connect(*address, &slot);
  if (!status.ok()) failed(slot, status, false);
}

void Connections::on_address(const wire::Address& address, std::vector<UniqueFd> fds) {
  if (address.attempt >= max_attempts) return peer_.broken("the address of an attempt beyond the last");
  MessageConnection& messages = peer_.messages();
  EndpointSlot* slot = find(address.transport);
  // A side that closes makes only those connections that its own operations wait for: also a message that it has announced, for
  // which the receiver chooses the way.
  const bool awaited =
      slot == nullptr ? !peer_.impl().messenger().quiet(peer_, false) : slot->state == EndpointSlot::State::waiting;
  if (peer_.phase() == PeerPhase::closed && !awaited) return;
  if (slot != nullptr && address.attempt < slot->attempt()) return;  // it has failed here meanwhile, which the peer knows by now
  const bool anew = slot != nullptr && slot->state == EndpointSlot::State::failed && address.attempt > slot->attempt();
  if (slot == nullptr || anew) {
    TransportSlot* transport = peer_.impl().transports().find(address.transport);
    if (transport == nullptr || !transport->transport || !transport->capabilities.available || transport->self_only) {
      const wire::EndpointNote note{address.transport, address.attempt, Code::unsupported, "not in use here"};
      static_cast<void>(peer_.send_control(wire::endpoint_failed, encode(note)));
      return;
    }
    slot = open(*transport, address.attempt);
    // Until ready, the accepting side's addresses are those of the message transport it tries.
    if (peer_.phase() == PeerPhase::connecting && !peer_.handshake().accepting() && slot->state != EndpointSlot::State::failed)
      messages.attach(*slot);
  }
  if (slot->state == EndpointSlot::State::failed) return messages.choose_if_none();  // it has been told
  if (slot->state != EndpointSlot::State::waiting || slot->attempt() != address.attempt)
    return peer_.broken("an unexpected endpoint address");
  slot->state = EndpointSlot::State::connecting;
  const Blob blob{address.bytes, std::move(fds)};
  if (const Status started = slot->endpoint->connect(blob, slot); !started.ok()) failed(*slot, started, true);
  messages.choose_if_none();  // the peer was quicker to make it anew
}

void Connections::on_connected(EndpointSlot& slot, const Status& status) {
  if (slot.state != EndpointSlot::State::connecting) return;  // given up meanwhile
  if (!status.ok()) {
    failed(slot, status, true);
    return;
  }
  slot.connected.here = true;
  if (peer_.is_self()) {
    slot.connected.there = true;
  } else {
    send_note(slot, {});
  }
  ready_if_connected(slot);
}

void Connections::on_connected_there(EndpointSlot& slot) {
  slot.connected.there = true;
  ready_if_connected(slot);
}

void Connections::send_note(const EndpointSlot& slot, const Status& status) {
  const wire::EndpointNote note{slot.transport().name, slot.attempt(), status.code(), std::string(status.message())};
  static_cast<void>(peer_.send_control(status.ok() ? wire::endpoint_ready : wire::endpoint_failed, encode(note)));
}

void Connections::on_note(const wire::EndpointNote& note, bool ready) {
  if (note.attempt >= max_attempts) return peer_.broken("a note about an attempt beyond the last");
  EndpointSlot* slot = find(note.transport);
  if (slot == nullptr && !ready) {
    // It could not even make its end. The slot is kept, so that this side does not wait for an answer to an address of its own.
    TransportSlot* transport = peer_.impl().transports().find(note.transport);
    if (transport == nullptr) return;
    slot = &next_slot(*transport, note.attempt);
  }
  if (slot != nullptr && note.attempt < slot->attempt()) return;  // of one that has failed here meanwhile
  if (slot != nullptr && !ready && note.attempt > slot->attempt() && slot->state == EndpointSlot::State::failed)
    slot = &next_slot(slot->transport(), note.attempt);  // it has tried again, in vain
  if (slot == nullptr || slot->attempt() != note.attempt) return peer_.broken("a note about an endpoint it does not have");
  if (slot->state == EndpointSlot::State::failed) return;
  if (slot->state == EndpointSlot::State::ready) {
    if (ready) return;  // its first signal was faster
    return peer_.fail(
        Status(Code::peer_lost, "the " + note.transport + " connection to " + peer_.describe() + " failed there: " + note.message));
  }
  if (ready) return on_connected_there(*slot);
  failed(*slot, Status(note.code == Code::ok ? Code::transport : note.code, "the peer reports: " + note.message), false);
  peer_.messages().choose_if_none();
}

void Connections::ready_if_connected(EndpointSlot& slot) {
  if (!slot.connected.here || !slot.connected.there || slot.state != EndpointSlot::State::connecting) return;
  slot.state = EndpointSlot::State::ready;
  peer_.routes().changed();
  const bool again = slot.backoff.used() && slot.attempt() != 0;
  slot.backoff.ready(Backoff::Clock::now());
  if (again) {
    peer_.impl().counters().add("routes.restored." + slot.transport().name, 1);
    log(LogLevel::info, slot.transport().name + " works again between this Context and " + peer_.describe());
    peer_.routes().retire(nullptr);  // what goes another way meanwhile comes back
  }
  if (peer_.phase() == PeerPhase::connecting && peer_.messages().carried_by(slot)) peer_.handshake().complete();
  peer_.messages().resume();
  peer_.impl().engine()->wake_waiters();
}

// ---- failure and retry ----

void Connections::on_failed(EndpointSlot& slot, const Status& reason) {
  if (slot.state == EndpointSlot::State::failed) return;
  const auto keep = peer_.shared_from_this();
  failed(slot, reason, true);
  if (peer_.phase() == PeerPhase::ready) peer_.impl().peers().pump_soon(peer_);
}

// The connection is of no use (any more). Operations on it have been completed by the transport.
void Connections::failed(EndpointSlot& slot, const Status& reason, bool tell_peer) {
  const bool in_use = slot.state == EndpointSlot::State::ready;
  slot.backoff.failed(in_use, Backoff::Clock::now());
  slot.state = EndpointSlot::State::failed;
  slot.failure = reason;
  peer_.routes().changed();
  if (slot.endpoint) {
    // Later: we may be inside it. What was imported through it goes after it, for operations in flight use that to the last.
    slot.closing = true;
    peer_.impl().engine()->defer([this, keep = peer_.shared_from_this(), at = &slot,
                                  endpoint = std::shared_ptr<Endpoint>(std::move(slot.endpoint))]() mutable {
      endpoint.reset();
      peer_.imports().drop_entries(at);
      closed(*at);
    });
  }
  peer_.routes().retire(&slot);
  peer_.posts().receipts().on_slot_failed(slot);
  if (peer_.link().over()) return;  // the peer is about to end for its own reason
  if (peer_.closing().in_progress()) {
    peer_.messages().detach(slot);
    if (slot.unflushed || slot.notified || peer_.messages().last_carried_by(slot)) return peer_.fail(peer_.failure());
    return peer_.impl().peers().pump_soon(peer_);
  }
  if (peer_.phase() == PeerPhase::connecting) {
    if (tell_peer && !peer_.is_self()) send_note(slot, reason);
    peer_.impl().counters().add("endpoints.failed." + slot.transport().name, 1);
    return peer_.handshake().on_slot_failed(slot);
  }
  if (peer_.phase() != PeerPhase::ready) return;
  peer_.impl().counters().add("endpoints.failed." + slot.transport().name, 1);
  if (const Status fatal = fatal_for_peer(slot); !fatal.ok()) return peer_.fail(fatal);
  if (!slot.connected.here && tell_peer && !peer_.is_self()) send_note(slot, reason);
  quarantine(slot, in_use);
  peer_.messages().on_slot_failed(slot);
}

// What the end of one connection tells of the peer as a whole.
Status Connections::fatal_for_peer(const EndpointSlot& slot) const {
  const Code code = slot.failure.code();
  const bool hostile = code == Code::protocol || code == Code::authentication;
  const bool messages = peer_.messages().carried_by(slot) && (peer_.is_self() || hostile || !slot.transport().capabilities.breaks);
  if (!messages && !slot.unflushed) return {};
  std::string text = "the " + slot.transport().name + " connection to " + peer_.describe() + " failed: ";
  text += slot.failure.message();
  if (slot.unflushed) text += "; puts that were complete at this end only may be lost with it";
  return Status(Code::peer_lost, std::move(text), slot.failure.native());
}

// Retried later, if it has ever been of use.
void Connections::quarantine(EndpointSlot& slot, bool in_use) {
  const std::string& name = slot.transport().name;
  if (in_use) peer_.impl().counters().add("routes.quarantined." + name, 1);
  const double seconds = slot.backoff.next_pause();
  const bool used = slot.backoff.used();
  const bool again = used && !peer_.is_self() && slot.failure.code() != Code::protocol && slot.attempt() + 1 < max_attempts;
  if (again) retry_at(slot, Deadline::after_seconds(seconds));
  const std::string why = name + (in_use ? " broke down between this Context and " : " cannot be used with ") + peer_.describe() +
                          " (" + std::string(slot.failure.message()) + "); another connection takes its place";
  log(in_use || !used ? LogLevel::warning : LogLevel::info,
      again ? why + ", and it is tried again in " + std::to_string(static_cast<int>(seconds)) + " s" : why);
}

void Connections::retry_at(EndpointSlot& slot, Deadline when) {
  slot.retry.start(when, [this, &slot] {
    const auto keep = peer_.shared_from_this();
    if (find(slot.transport().name) != &slot) return;
    // Of a side that closes: what waits for the connection asks again, and ends.
    if (peer_.phase() != PeerPhase::ready) return peer_.routes().changed();
    if (slot.closing) return retry_at(slot, Deadline::after_seconds(closing_pause_seconds));
    reopen(slot);
    peer_.messages().choose_if_none();
    if (peer_.phase() == PeerPhase::ready) peer_.impl().peers().pump_soon(peer_);
  });
}

EndpointSlot* Connections::wake_resting(const std::vector<PeerRoutes::Candidate>& resting) {
  EndpointSlot* later = nullptr;
  for (const PeerRoutes::Candidate& candidate : resting) {
    EndpointSlot* slot = find(candidate.transport->name);
    const auto waits = [&] {
      return slot->state == EndpointSlot::State::failed && slot->retry.pending() && !slot->backoff.exhausted();
    };
    if (waits() && slot->backoff.fresh()) {
      if (slot->closing) return slot;
      slot = reopen(*slot);
    }
    if (slot->state != EndpointSlot::State::failed) return slot;
    if (later == nullptr && waits()) later = slot;
  }
  if (later == nullptr) return nullptr;
  const Deadline soon = Deadline::after_seconds(later->backoff.short_pause());
  if (soon.when() < later->retry.due().when()) retry_at(*later, soon);
  return later;
}

// Only now the peer is told, if it may have used the connection: nothing of it lands here any more, so nothing overtakes what the
// peer writes again. And only after that word the connection may be retried.
void Connections::closed(EndpointSlot& slot) {
  slot.closing = false;
  if (peer_.phase() != PeerPhase::ready || peer_.is_self()) return;
  if (slot.connected.here) {
    const Status& why = slot.failure;
    const wire::EndpointNote note{slot.transport().name, slot.attempt(), why.code(), std::string(why.message())};
    const wire::Stopped stopped{note, peer_.messages().received(), slot.credit.in};
    static_cast<void>(peer_.send_control(wire::stopped, encode(stopped)));
  }
  peer_.messages().choose_if_none();
  if (peer_.phase() == PeerPhase::ready) peer_.impl().peers().pump_soon(peer_);
}

void Connections::on_stopped(const wire::Stopped& m) {
  if (peer_.phase() != PeerPhase::ready) {
    if (peer_.phase() == PeerPhase::connecting) return on_note(m.endpoint, false);
    if (!peer_.closing().in_progress()) return;
    peer_.works().decide();  // what failed with the connection that has stopped
    return peer_.closing().advance_soon();
  }
  EndpointSlot* slot = find(m.endpoint.transport, m.endpoint.attempt);
  if (slot == nullptr || slot->peer_stopped) return peer_.broken("the end of a connection that it does not have");
  if (!peer_.messages().on_acknowledged(m.signals) || m.credit > slot->credit.out)
    return peer_.broken("a count of what was never sent");
  slot->peer_stopped = true;
  // Puts that failed took their notifications with them, or not: only the peer knows.
  peer_.notify_slot()->refund(slot->credit.out - m.credit);
  slot->credit.out = 0;
  if (slot->state != EndpointSlot::State::failed) {
    const Code code = m.endpoint.code == Code::ok ? Code::transport : m.endpoint.code;
    failed(*slot, Status(code, "the peer reports: " + m.endpoint.message), true);
  }
  if (peer_.phase() != PeerPhase::ready) return;
  // The peer lives: what failed for want of its answer failed with the connection.
  peer_.works().decide();
  peer_.messages().resume();
  if (peer_.phase() == PeerPhase::ready) peer_.impl().peers().pump_soon(peer_);
}

// ---- the end ----

void Connections::stop_retries() {
  for (const auto& slot : slots_) slot->retry.stop();
}

void Connections::tear_down(const Status& reason) {
  for (const auto& slot : slots_) {
    slot->retry.stop();
    slot->state = EndpointSlot::State::failed;
    if (slot->failure.ok()) slot->failure = reason;
    slot->endpoint.reset();
  }
}

void Connections::operation_done(EndpointSlot& slot) {
  --slot.operations;
  if (peer_.imports().withdrawing()) [[unlikely]]
    peer_.imports().settle_withdrawn();
  const bool waited = !peer_.posts().passable() && peer_.phase() == PeerPhase::ready;
  if (slot.operations == 0 && (waited || peer_.closing().in_progress())) peer_.impl().peers().pump_soon(peer_);
}

}  // namespace hmc
