// MessageConnection (docs/explanation/failures.md has the argument).
//
// When the connection that carries the messages fails, the side that accepted the control channel names the one that takes over
// (`messages_by`). Once that one is ready and the other side has stopped the last, each side sends again the signals that the other
// has not received.
#include "comm/connection/message_connection.h"

#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "comm/connection/signals.h"
#include "comm/context_impl.h"
#include "comm/peer_impl.h"

namespace hmc {
namespace {

// From the end of the connection that carries messages to the next one; longer than any transport takes to connect.
constexpr double takeover_seconds = 15;
// Signals, and bytes of them, received between two acknowledgements. The sender keeps far more.
constexpr std::uint64_t acknowledge_signals = 256;
constexpr std::uint64_t acknowledge_bytes = 256 << 10;

}  // namespace

Status MessageConnection::signal_kept(ByteSpan head, ByteSpan body) {
  if (!current()) return Status(Code::would_block, "messages wait for a connection");
  if (outbox_.full()) return Status(Code::would_block, "the peer has not acknowledged what was sent");
  const Status sent = slot_->endpoint->signal(head, body);
  if (sent.ok()) {
    outbox_.keep(head, body);
  } else if (sent.code() != Code::would_block && sent.code() != Code::invalid_argument) {
    return Status(Code::would_block, std::string(sent.message()));  // the connection is ending; it will say so
  }
  return sent;
}

void MessageConnection::count_received(std::size_t bytes) {
  ++received_;
  bytes_ += bytes;
  if (received_ - acknowledged_ < acknowledge_signals && bytes_ < acknowledge_bytes) return;
  acknowledge_ = true;
  peer_.impl().peers().pump_soon(peer_);
}

bool MessageConnection::pump() {
  bool moved = false;
  while (slot_ != nullptr && !outbox_.at_end()) {
    const Status sent = slot_->endpoint->signal(outbox_.current(), {});
    if (sent.code() == Code::invalid_argument) {
      peer_.fail(Status(Code::peer_lost,
                        "a message under way to " + peer_.describe() + " cannot be sent again: " + std::string(sent.message())));
      return true;
    }
    if (!sent.ok()) break;
    outbox_.advance();
    peer_.impl().counters().add("signals.resent", 1);
    moved = true;
  }
  if (acknowledge_ && slot_ != nullptr && slot_->endpoint->signal(number_signal(NotifyKind::received, {}, received_), {}).ok()) {
    acknowledge_ = false;
    acknowledged_ = received_;
    bytes_ = 0;
    moved = true;
  }
  return moved;
}

bool MessageConnection::detach(const EndpointSlot& slot) noexcept {
  if (slot_ != &slot) return false;
  slot_ = nullptr;
  return true;
}

void MessageConnection::on_slot_failed(const EndpointSlot& slot) {
  if (&slot != slot_ && &slot != next_) return;
  const bool first = slot_ != nullptr;
  slot_ = next_ = nullptr;
  if (first) {
    timer_.start(Deadline::after_seconds(takeover_seconds), [this] {
      peer_.fail(Status(Code::peer_lost, "no connection to " + peer_.describe() +
                                             " took over from the one that failed: " + std::string(last_->failure.message())));
    });
  }
  if (peer_.handshake().accepting()) choose();
}

void MessageConnection::choose_if_none() {
  const bool none = slot_ == nullptr && next_ == nullptr;
  if (peer_.phase() == PeerPhase::ready && peer_.handshake().accepting() && none && !peer_.is_self()) choose();
}

// The best that works; where no other does, the one that failed is retried.
void MessageConnection::choose() {
  if (last_->closing) return;  // the peer hears of its end first
  const auto chosen = [this] { return peer_.phase() != PeerPhase::ready || next_ != nullptr; };
  std::vector<std::string> rejected;
  std::vector<PeerRoutes::Candidate> resting;
  for (const PeerRoutes::Candidate& candidate : peer_.routes().rank(Device::cpu(), Device::cpu(), 0, rejected, &resting)) {
    EndpointSlot* slot = peer_.connections().find(candidate.transport->name);
    if (slot == nullptr) slot = peer_.connections().open(*candidate.transport, 0);
    if (chosen()) return;
    if (slot->state != EndpointSlot::State::failed) return carry_by(*slot);
  }
  EndpointSlot* slot = peer_.connections().wake_resting(resting);
  if (chosen()) return;
  if (slot != nullptr && slot->state == EndpointSlot::State::failed) return;  // once it is closed, or the pause is over
  if (slot != nullptr) return carry_by(*slot);
  std::string message = "the last connection to " + peer_.describe() + " failed:";
  for (const auto& reason : rejected) message += "\n  " + reason;
  peer_.fail(Status(Code::peer_lost, std::move(message), last_->failure.native()));
}

void MessageConnection::carry_by(EndpointSlot& slot) {
  next_ = &slot;
  const wire::EndpointNote note{slot.transport().name, slot.attempt(), Code::ok, {}};
  static_cast<void>(peer_.send_control(wire::messages_by, encode(note)));
  resume();
}

void MessageConnection::on_named(const wire::EndpointNote& note) {
  if (peer_.phase() != PeerPhase::ready) return;
  if (peer_.handshake().accepting() || slot_ != nullptr) return peer_.broken("a choice that is not its own to make");
  EndpointSlot* slot = peer_.connections().find(note.transport);
  if (slot == nullptr || slot->attempt() != note.attempt || slot->state == EndpointSlot::State::failed) return;  // it has been told
  next_ = slot;
  resume();
}

void MessageConnection::resume() {
  if (next_ == nullptr || next_->state != EndpointSlot::State::ready || !last_->peer_stopped) return;
  slot_ = last_ = std::exchange(next_, nullptr);
  timer_.stop();
  slot_->notified = true;  // as far as is known here
  outbox_.rewind();
  peer_.impl().counters().add("messages.moved", 1);
  log(LogLevel::info, "messages with " + peer_.describe() + " go by " + slot_->transport().name + " now");
  peer_.impl().peers().pump_soon(peer_);
  peer_.impl().engine()->wake_waiters();
}

}  // namespace hmc
