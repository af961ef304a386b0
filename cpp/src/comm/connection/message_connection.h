// MessageConnection: which connection carries the ordered signals of messages and notifications, and what keeps them complete and
// in order when another one takes over. Owned by PeerImpl. Engine lock held throughout.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/connection/endpoint_slot.h"
#include "comm/connection/outbox.h"
#include "comm/wire/codec.h"
#include "progress/one_shot_timer.h"

namespace hmc {

class MessageConnection {
 public:
  MessageConnection(PeerImpl& peer, Engine& engine) noexcept : peer_(peer), timer_(engine) {}

  // As PeerState::signal. On the path of every message.
  Status signal(ByteSpan head, ByteSpan body) {
    const bool plain = slot_ != nullptr && !slot_->transport().capabilities.breaks && outbox_.at_end();
    if (!plain) return signal_kept(head, body);
    return slot_->endpoint->signal(head, body);
  }
  // A notification of its own has gone: Receipts.
  void notified() noexcept {
    if (slot_ != nullptr) slot_->notified = true;
  }
  // Ready only.
  [[nodiscard]] const Capabilities& capabilities() const noexcept { return last_->transport().capabilities; }

  [[nodiscard]] bool carried_by(const EndpointSlot& slot) const noexcept { return slot_ == &slot; }
  // By this one, also after it has failed, until another takes over.
  [[nodiscard]] bool last_carried_by(const EndpointSlot& slot) const noexcept { return last_ == &slot; }
  // All signals so far went out, over a connection that works.
  [[nodiscard]] bool current() const noexcept { return slot_ != nullptr && outbox_.at_end(); }

  // ---- until the peer is ready ----
  // The connection to try. It carries messages from begin() on.
  void attach(EndpointSlot& slot) noexcept { slot_ = &slot; }
  void begin() noexcept { last_ = slot_; }
  // True: it was this one. Until ready, and while closing; nothing takes over.
  bool detach(const EndpointSlot& slot) noexcept;

  // ---- ready: failover ----
  void on_slot_failed(const EndpointSlot& slot);
  // The slot has become ready, or the peer has stopped one: the next one takes over where both sides are ready for it.
  void resume();
  void choose_if_none();
  // The peer names the connection that takes over.
  void on_named(const wire::EndpointNote& note);
  void end() { timer_.stop(); }

  // ---- acknowledgements, where a connection may break ----
  void count_received(std::size_t bytes);
  [[nodiscard]] std::uint64_t received() const noexcept { return received_; }
  // The peer has received `total`. False: it cannot have.
  [[nodiscard]] bool on_acknowledged(std::uint64_t total) { return outbox_.received(total); }

  // Signals that the peer may not have received.
  [[nodiscard]] std::uint64_t unacknowledged() const noexcept { return outbox_.unacknowledged(); }

  // Sends what goes before everything else: signals that were lost, and the acknowledgement. True if anything moved.
  bool pump();
  // There is something to pump, and a connection for it.
  [[nodiscard]] bool owes() const noexcept { return slot_ != nullptr && (acknowledge_ || !outbox_.at_end()); }
  [[nodiscard]] bool has_connection() const noexcept { return slot_ != nullptr; }

 private:
  Status signal_kept(ByteSpan head, ByteSpan body);
  void choose();
  void carry_by(EndpointSlot& slot);

  PeerImpl& peer_;                // its phase, connections, control channel and end
  EndpointSlot* slot_ = nullptr;  // null while none carries messages
  EndpointSlot* next_ = nullptr;  // takes over once it is ready and the peer has stopped the last
  EndpointSlot* last_ = nullptr;
  OneShotTimer timer_;                             // until another takes over
  Outbox outbox_;                                  // of signals, where the connection may break
  std::uint64_t received_ = 0, acknowledged_ = 0;  // over such
  std::uint64_t bytes_ = 0;                        // since the last acknowledgement
  bool acknowledge_ = false;
};

}  // namespace hmc
