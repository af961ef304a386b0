// PeerImpl: signals as they arrive, and what waits to be posted.
#include "comm/connection/signals.h"
#include "comm/context_impl.h"
#include "comm/peer_impl.h"

namespace hmc {

void PeerImpl::on_signal(EndpointSlot& slot, ByteSpan signal) {
  if (slot.state == EndpointSlot::State::failed || (phase_ != PeerPhase::connecting && !carries())) return;
  // The other side may know that we are ready before we have read its word.
  if (phase_ == PeerPhase::connecting && messages_.carried_by(slot) && slot.connected.here) {
    const auto keep = shared_from_this();
    connections_.on_connected_there(slot);
    if (phase_ != PeerPhase::ready) return;
  }
  const std::uint8_t kind = signal.empty() ? 0 : signal_kind(signal[0]);
  const bool attached = !signal.empty() && (static_cast<std::uint8_t>(signal[0]) & attached_bit) != 0;
  if (slot.transport().capabilities.breaks && !attached && kind != static_cast<std::uint8_t>(NotifyKind::received))
    messages_.count_received(signal.size());
  if (kind >= messaging_kinds_first && kind <= messaging_kinds_last) {
    context_.messenger().on_signal(*this, signal);
    return;
  }
  const auto keep = shared_from_this();
  const auto m = decode_notify_signal(signal);
  if (!m) return broken("a malformed signal of kind " + std::to_string(kind));
  switch (m->kind) {
    case NotifyKind::counted:
      if (!notify_slot_->raise(m->envelope, m->number)) {
        return broken("more than " + std::to_string(max_counted_ids) + " different notification ids that nobody has waited for");
      }
      break;
    case NotifyKind::payload:
      if (attached) slot.credit_in += notify_cost(m->payload.size());
      if (!context_.notify_table().queue(*notify_slot_, m->envelope, m->payload))
        return broken("more payload notifications than its credit");
      break;
    case NotifyKind::credit:
      if (!notify_slot_->acknowledge(m->number)) return broken("an impossible notification credit");
      if (!posts_.empty()) context_.needs_pump(*this);
      break;
    case NotifyKind::received:
      if (!messages_.on_acknowledged(m->number)) return broken("an acknowledgement of what was never sent");
      if (!posts_.empty()) context_.needs_pump(*this);
      break;
    case NotifyKind::bye:
      on_bye();
      break;
  }
  context_.engine()->wake_waiters();
}

bool PeerImpl::pump() {
  if (pumping_ || !carries()) return false;
  const auto keep = shared_from_this();
  pumping_ = true;
  bool moved = messages_.pump();
  bool blocked = false;
  if (posts_.post(blocked)) moved = true;
  pumping_ = false;
  const bool owes = messages_.owes() || (posts_.owes_credit() && messages_.has_connection());
  if (carries() && (owes || blocked)) context_.needs_pump(*this);
  if (closing_ != Closing::no) advance_closing();
  return moved;
}

void PeerImpl::operation_done(EndpointSlot& slot) {
  --slot.operations;
  if (imports_.withdrawing()) [[unlikely]]
    imports_.settle_withdrawn();
  const bool waited = !posts_.passable() && phase_ == PeerPhase::ready;
  if (slot.operations == 0 && (waited || closing_ != Closing::no)) context_.needs_pump(*this);
}

}  // namespace hmc
