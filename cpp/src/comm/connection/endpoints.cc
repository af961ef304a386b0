// PeerImpl: endpoints.
//
// Endpoints are made symmetrically: whoever needs one first makes it and sends its address; the other side makes its own on seeing
// that; each connects once it has the other's address, and says ready (or failed) when it has. Both may start at once.
#include "comm/context_impl.h"
#include "comm/peer_impl.h"

namespace hmc {

void EndpointSlot::on_signal(ByteSpan signal) { peer_.on_signal(*this, signal); }
void EndpointSlot::on_failed(const Status& reason) { peer_.on_endpoint_failed(*this, reason); }
void EndpointSlot::complete(Status status) noexcept { peer_.on_connected(*this, status); }

bool when_flushed(EndpointSlot& slot, std::function<void(const Status&)> action) {
  class Flush final : public Completion {
   public:
    Flush(std::shared_ptr<PeerState> peer, std::function<void(const Status&)> action)
        : peer_(std::move(peer)), action_(std::move(action)) {}
    void complete(Status status) noexcept override {
      const std::unique_ptr<Flush> self(this);
      action_(status);
    }

   private:
    std::shared_ptr<PeerState> peer_;  // owns what the action is about
    std::function<void(const Status&)> action_;
  };
  if (slot.state != EndpointSlot::State::ready) return false;
  auto made = std::make_unique<Flush>(slot.peer().shared_from_this(), std::move(action));
  if (!slot.endpoint->flush(made.get()).ok()) return false;
  static_cast<void>(made.release());  // deletes itself, perhaps has done so
  return true;
}

EndpointSlot* PeerImpl::find_slot(std::string_view transport_name) noexcept {
  for (const auto& slot : slots_) {
    if (slot->transport().name == transport_name) return slot.get();
  }
  return nullptr;
}

Endpoint* PeerImpl::endpoint(std::string_view transport_name) noexcept {
  EndpointSlot* slot = find_slot(transport_name);
  return slot != nullptr && slot->state == EndpointSlot::State::ready ? slot->endpoint.get() : nullptr;
}

// Makes this side's endpoint and sends its address. Always returns a slot; its state is failed when that did not work.
EndpointSlot* PeerImpl::open_endpoint(TransportSlot& transport, std::uint32_t attempt) {
  EndpointSlot& slot = next_slot(transport, attempt);
  const auto open = [&]() -> Status {
    const auto domain = routes_.domain_of(transport.name);
    if (!domain) return Status(Code::unsupported, "the peer does not offer " + transport.name);
    HMC_ASSIGN(slot.endpoint, transport.transport->create_endpoint(*domain, slot));
    HMC_ASSIGN(Blob address, slot.endpoint->address());
    if (self_) return {};
    wire::Address m{transport.name, attempt, std::move(address.bytes)};
    return send_control(wire::address, encode(m), std::move(address.fds));
  };
  if (const Status opened = open(); !opened.ok()) slot_failed(slot, opened, true);
  return &slot;
}

void PeerImpl::connect_self(EndpointSlot& slot) {
  slot.state = EndpointSlot::State::connecting;
  // Its own address once more: the first may have been consumed.
  auto address = slot.endpoint->address();
  Status status = address.status();
  if (address.ok()) status = slot.endpoint->connect(*address, &slot);
  if (!status.ok()) slot_failed(slot, status, false);
}

void PeerImpl::on_address(const wire::Address& address, std::vector<UniqueFd> fds) {
  if (phase_ == PeerPhase::closed) return;
  EndpointSlot* slot = find_slot(address.transport);
  if (slot != nullptr && address.attempt < slot->attempt()) return;  // it has failed here meanwhile, which the peer knows by now
  const bool anew = slot != nullptr && slot->state == EndpointSlot::State::failed && address.attempt > slot->attempt();
  if (slot == nullptr || anew) {
    TransportSlot* transport = context_.find_transport(address.transport);
    if (transport == nullptr || !transport->transport || !transport->capabilities.available || transport->self_only) {
      const wire::EndpointNote note{address.transport, address.attempt, Code::unsupported, "not in use here"};
      static_cast<void>(send_control(wire::endpoint_failed, encode(note)));
      return;
    }
    slot = open_endpoint(*transport, address.attempt);
    // Until ready, the accepting side's addresses are those of the message transport it tries.
    if (phase_ == PeerPhase::connecting && !accepting_ && slot->state != EndpointSlot::State::failed) message_slot_ = slot;
  }
  if (slot->state == EndpointSlot::State::failed) return choose_messages_if_none();  // it has been told
  if (slot->state != EndpointSlot::State::waiting || slot->attempt() != address.attempt)
    return broken("an unexpected endpoint address");
  slot->state = EndpointSlot::State::connecting;
  const Blob blob{address.bytes, std::move(fds)};
  if (const Status started = slot->endpoint->connect(blob, slot); !started.ok()) slot_failed(*slot, started, true);
  choose_messages_if_none();  // the peer was quicker to make it anew
}

void PeerImpl::on_connected(EndpointSlot& slot, const Status& status) {
  if (slot.state != EndpointSlot::State::connecting) return;  // given up meanwhile
  if (!status.ok()) {
    slot_failed(slot, status, true);
    return;
  }
  slot.connected = true;
  if (self_) {
    slot.peer_ready = true;
  } else {
    send_note(slot, {});
  }
  maybe_ready(slot);
}

void PeerImpl::send_note(const EndpointSlot& slot, const Status& status) {
  const wire::EndpointNote note{slot.transport().name, slot.attempt(), status.code(), std::string(status.message())};
  static_cast<void>(send_control(status.ok() ? wire::endpoint_ready : wire::endpoint_failed, encode(note)));
}

void PeerImpl::on_endpoint_note(const wire::EndpointNote& note, bool ready) {
  EndpointSlot* slot = find_slot(note.transport);
  if (slot == nullptr && !ready) {
    // It could not even make its end. The slot is kept, so that this side does not wait for an answer to an address of its own.
    TransportSlot* transport = context_.find_transport(note.transport);
    if (transport == nullptr) return;
    slot = &next_slot(*transport, note.attempt);
  }
  if (slot != nullptr && note.attempt < slot->attempt()) return;  // of one that has failed here meanwhile
  if (slot != nullptr && !ready && note.attempt > slot->attempt() && slot->state == EndpointSlot::State::failed)
    slot = &next_slot(slot->transport(), note.attempt);  // it has tried again, in vain
  if (slot == nullptr || slot->attempt() != note.attempt) return broken("a note about an endpoint it does not have");
  if (slot->state == EndpointSlot::State::failed) return;
  if (slot->state == EndpointSlot::State::ready) {
    if (ready) return;  // its first signal was faster
    return end(Status(Code::peer_lost, "the " + note.transport + " connection to " + describe() + " failed there: " + note.message),
               PeerPhase::lost);
  }
  if (!ready) {
    slot_failed(*slot, Status(note.code == Code::ok ? Code::transport : note.code, "the peer reports: " + note.message), false);
    choose_messages_if_none();
    return;
  }
  slot->peer_ready = true;
  maybe_ready(*slot);
}

void PeerImpl::maybe_ready(EndpointSlot& slot) {
  if (!slot.connected || !slot.peer_ready || slot.state != EndpointSlot::State::connecting) return;
  slot.state = EndpointSlot::State::ready;
  routes_.changed();
  restored(slot);
  if (phase_ == PeerPhase::connecting && &slot == message_slot_) become_ready();
  if (&slot == next_message_slot_) resume_messages();
  context_.engine()->wake_waiters();
}

void PeerImpl::on_endpoint_failed(EndpointSlot& slot, const Status& reason) {
  if (slot.state == EndpointSlot::State::failed) return;
  const auto keep = shared_from_this();
  slot_failed(slot, reason, true);
  if (phase_ == PeerPhase::ready) context_.needs_pump(*this);
}

}  // namespace hmc
