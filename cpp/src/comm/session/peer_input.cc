#include "comm/session/peer_input.h"

#include <string>

#include "comm/connection/signals.h"
#include "comm/context_impl.h"
#include "comm/peer_impl.h"

namespace hmc {

// ---- control messages ----

void PeerInput::on_message(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) {
  const auto keep = peer_.shared_from_this();
  take(type, payload, std::move(fds));
  if (type >= wire::first_group_message) peer_.closing().on_group_message();
}

void PeerInput::take(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) {
  if (peer_.phase() != PeerPhase::connecting && !peer_.carries()) return;
  if (type == wire::duplicate) return peer_.handshake().on_refused();
  if (type == wire::hello) {
    const auto hello = wire::decode_hello(payload);
    if (!hello) return peer_.broken("a malformed hello");
    return peer_.handshake().on_reply(*hello);
  }
  if (!peer_.handshake().greeted()) return peer_.broken("a message before its hello");
  if (type >= wire::first_group_message) {
    peer_.impl().group_events().deliver(peer_, type, payload, std::move(fds));
  } else {
    dispatch(type, payload, std::move(fds));
  }
  peer_.impl().engine()->wake_waiters();
}

void PeerInput::dispatch(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) {
  switch (type) {
    case wire::address:
      if (const auto m = wire::decode_address(payload)) return peer_.connections().on_address(*m, std::move(fds));
      break;
    case wire::endpoint_ready:
    case wire::endpoint_failed:
      if (const auto m = wire::decode_endpoint_note(payload)) return peer_.connections().on_note(*m, type == wire::endpoint_ready);
      break;
    case wire::stopped:
      if (const auto m = wire::decode_stopped(payload)) return peer_.connections().on_stopped(*m);
      break;
    case wire::messages_by:
      if (const auto m = wire::decode_endpoint_note(payload)) return peer_.messages().on_named(*m);
      break;
    case wire::are_you_alive:
      if (const auto number = wire::decode_request(payload))
        return static_cast<void>(peer_.send_control(wire::alive, wire::encode_request(*number)));
      break;
    case wire::alive:
      if (const auto number = wire::decode_request(payload)) {
        if (!peer_.liveness().answer(*number)) peer_.broken("an answer to what was not asked");
        return;
      }
      break;
    case wire::marked:
      if (const auto number = wire::decode_request(payload)) {
        if (!peer_.posts().receipts().on_marked(*number)) peer_.broken("a receipt for what was not sent");
        return;
      }
      break;
    case wire::import:
      if (const auto m = wire::decode_import(payload)) return peer_.grants().on_import(*m);
      break;
    case wire::imported:
      if (const auto m = wire::decode_answer(payload)) return peer_.imports().on_imported(*m, std::move(fds));
      break;
    case wire::release:
      if (const auto m = wire::decode_request(payload)) return peer_.grants().on_release(*m);
      break;
    case wire::withdraw:
      if (const auto m = wire::decode_request(payload)) return peer_.imports().on_withdraw(*m);
      break;
    case wire::revoke:
      if (const auto m = wire::decode_buffer_name(payload)) return peer_.imports().on_revoke(*m);
      break;
    case wire::revoked:
      if (const auto m = wire::decode_buffer_name(payload)) return peer_.grants().on_revoked(*m);
      break;
    case wire::lookup:
      if (const auto m = wire::decode_lookup(payload)) return peer_.grants().on_lookup(*m);
      break;
    case wire::found:
      if (const auto m = wire::decode_answer(payload)) return peer_.imports().on_found(*m);
      break;
    case wire::lookup_cancel:
      if (const auto m = wire::decode_request(payload)) return peer_.grants().on_lookup_cancel(*m);
      break;
    case wire::bye_ack:
      return peer_.closing().on_bye_ack();
    default:
      break;
  }
  peer_.broken("a malformed control message of type " + std::to_string(type));
}

void PeerInput::on_closed(const Status& reason) {
  const auto keep = peer_.shared_from_this();
  peer_.link().on_closed(reason);
  peer_.closing().on_channel_closed(reason);
}

// ---- signals ----

void PeerInput::on_signal(EndpointSlot& slot, ByteSpan signal) {
  if (slot.state == EndpointSlot::State::failed || (peer_.phase() != PeerPhase::connecting && !peer_.carries())) return;
  // The other side may know that we are ready before we have read its word.
  if (peer_.phase() == PeerPhase::connecting && peer_.messages().carried_by(slot) && slot.connected.here) {
    const auto keep = peer_.shared_from_this();
    peer_.connections().on_connected_there(slot);
    if (peer_.phase() != PeerPhase::ready) return;
  }
  const std::uint8_t kind = signal.empty() ? 0 : signal_kind(signal[0]);
  const bool attached = !signal.empty() && (static_cast<std::uint8_t>(signal[0]) & attached_bit) != 0;
  const auto is = [kind](NotifyKind other) { return kind == static_cast<std::uint8_t>(other); };
  if (slot.transport().capabilities.breaks && !attached && !is(NotifyKind::received) && !is(NotifyKind::mark))
    peer_.messages().count_received(signal.size());
  if (kind >= messaging_kinds_first && kind <= messaging_kinds_last) {
    static_cast<void>(peer_.impl().messenger().on_signal(peer_, signal, true));
    return;
  }
  const auto keep = peer_.shared_from_this();
  const auto m = decode_notify_signal(signal);
  if (!m) return peer_.broken("a malformed signal of kind " + std::to_string(kind));
  on_notification(slot, *m, attached);
  peer_.impl().engine()->wake_waiters();
}

// Eager messages alone: their payload goes to its receiver in one copy. Every other case is on_signal()'s.
bool PeerInput::on_signal_in_place(EndpointSlot& slot, ByteSpan signal) {
  if (signal.empty() || peer_.phase() != PeerPhase::ready || slot.state == EndpointSlot::State::failed ||
      slot.transport().capabilities.breaks)
    return false;
  const std::uint8_t kind = signal_kind(signal[0]);
  return kind >= messaging_kinds_first && kind <= messaging_kinds_last && peer_.impl().messenger().on_signal(peer_, signal, false);
}

void PeerInput::on_notification(EndpointSlot& slot, const NotifySignal& m, bool attached) {
  NotifySlot& notifications = *peer_.notify_slot();
  NotifyTable& table = peer_.impl().notifier().table();
  const bool late = peer_.impl().scopes().is_over(m.envelope.scope);  // of a Communicator that is closed here
  switch (m.kind) {
    case NotifyKind::counted:
      if (late) return table.discard_late(notifications, 0);
      if (!notifications.raise(m.envelope, m.number)) {
        peer_.broken("more than " + std::to_string(max_counted_ids) + " different notification ids that nobody has waited for");
      }
      return;
    case NotifyKind::payload:
      if (attached) slot.credit.in += notify_cost(m.payload.size());
      if (late) return table.discard_late(notifications, m.payload.size());
      if (!table.queue(notifications, m.envelope, m.payload)) peer_.broken("more payload notifications than its credit");
      return;
    case NotifyKind::credit:
      if (!notifications.acknowledge(m.number)) return peer_.broken("an impossible notification credit");
      break;
    case NotifyKind::received:
      if (!peer_.messages().on_acknowledged(m.number)) return peer_.broken("an acknowledgement of what was never sent");
      break;
    case NotifyKind::mark:
      return on_mark(m.number);
    case NotifyKind::bye:
      return peer_.closing().on_bye(m.number);
  }
  // What waits for credit, or for room to keep a signal, may be sent now.
  if (!peer_.posts().empty()) peer_.impl().peers().pump_soon(peer_);
}

void PeerInput::on_mark(std::uint64_t number) {
  if (!peer_.is_self()) return static_cast<void>(peer_.send_control(wire::marked, wire::encode_request(number)));
  if (!peer_.posts().receipts().on_marked(number)) peer_.broken("a mark of its own that it did not send");
}

}  // namespace hmc
