// PeerImpl: signals as they arrive, and what waits to be posted.
#include <algorithm>

#include "comm/context_impl.h"
#include "comm/peer_impl.h"
#include "comm/transfer.h"

namespace hmc {
namespace {

class FenceOp final : public PendingOp {
 public:
  Outcome post() override { return Outcome::blocked; }
  void abandon(const Status&) override {}
  [[nodiscard]] bool is_fence() const noexcept override { return true; }
};

}  // namespace

// Flushes of a fence: one per endpoint that has locally completed puts under way. Shared with the endpoints until all have
// answered.
class FlushCount final : public Completion, public std::enable_shared_from_this<FlushCount> {
 public:
  explicit FlushCount(PeerImpl& peer) noexcept : peer_(&peer) {}
  Status start(EndpointSlot& slot) {
    ++open_;
    self_ = shared_from_this();
    slot.unflushed = false;
    slot_ = &slot;
    const Status status = slot.endpoint->flush(this);
    if (!status.ok()) {
      slot.unflushed = true;
      end_one();
    }
    return status;
  }
  void complete(Status status) noexcept override {
    PeerImpl* peer = peer_;
    if (!status.ok() && peer != nullptr) slot_->unflushed = true;  // its connection is ending
    end_one();
    if (peer != nullptr && peer->phase() == PeerPhase::ready) peer->impl().needs_pump(*peer);
  }
  [[nodiscard]] bool done() const noexcept { return open_ == 0; }
  void detach() noexcept { peer_ = nullptr; }

 private:
  void end_one() noexcept {
    if (--open_ != 0) return;
    const auto self = std::move(self_);
  }
  PeerImpl* peer_;
  EndpointSlot* slot_ = nullptr;
  int open_ = 0;
  std::shared_ptr<FlushCount> self_;
};

void PeerImpl::on_signal(EndpointSlot& slot, ByteSpan signal) {
  if (slot.state == EndpointSlot::State::failed || phase_ == PeerPhase::lost || phase_ == PeerPhase::closed) return;
  // The other side may know that we are ready before we have read its word.
  if (phase_ == PeerPhase::connecting && &slot == message_slot_ && slot.connected) {
    const auto keep = shared_from_this();
    slot.peer_ready = true;
    maybe_ready(slot);
    if (phase_ != PeerPhase::ready) return;
  }
  const std::uint8_t kind = signal.empty() ? 0 : signal_kind(signal[0]);
  const bool attached = !signal.empty() && (static_cast<std::uint8_t>(signal[0]) & attached_bit) != 0;
  if (slot.transport().capabilities.breaks && !attached && kind != static_cast<std::uint8_t>(NotifyKind::received))
    count_signal(signal.size());
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
      if (!credit_wait_.empty()) context_.needs_pump(*this);
      break;
    case NotifyKind::received:
      if (!outbox_.received(m->number)) return broken("an acknowledgement of what was never sent");
      if (!pending_.empty()) context_.needs_pump(*this);
      break;
    case NotifyKind::bye:
      static_cast<void>(send_control(wire::bye_ack, {}));
      end(Status(Code::closed, describe() + " said goodbye"), PeerPhase::closed);
      break;
  }
  context_.engine()->wake_waiters();
}

void PeerImpl::grant_credit(std::uint64_t total) {
  credit_to_send_ = total;
  context_.needs_pump(*this);
}

void PeerImpl::enqueue(std::shared_ptr<PendingOp> op) {
  pending_.push_back(std::move(op));
  if (phase_ == PeerPhase::ready) context_.needs_pump(*this);
}

void PeerImpl::enqueue_first(std::shared_ptr<PendingOp> op) {
  pending_.push_front(std::move(op));
  context_.needs_pump(*this);
}

bool PeerImpl::remove_pending(const PendingOp* op) {
  const auto is_it = [op](const auto& p) { return p.get() == op; };
  return pending_.remove_if(is_it) != 0 || credit_wait_.remove_if(is_it) != 0;
}

bool PeerImpl::pump() {
  if (pumping_ || phase_ != PeerPhase::ready) return false;
  const auto keep = shared_from_this();
  pumping_ = true;
  bool moved = pump_signals();
  if (credit_to_send_ != 0 && phase_ == PeerPhase::ready) {
    const auto word = number_signal(NotifyKind::credit, {}, credit_to_send_);
    if (signal(word, {}).code() != Code::would_block) {
      credit_to_send_ = 0;
      moved = true;
    }
  }
  // A blocked endpoint blocks all behind it; an operation out of credit lets those behind it pass (a fence does not).
  bool blocked = false;
  while (phase_ == PeerPhase::ready && !credit_wait_.empty()) {
    const auto op = credit_wait_.front();
    credit_wait_.pop_front();
    const auto outcome = op->post();
    if (outcome == PendingOp::Outcome::posted) {
      moved = true;
    } else {
      if (phase_ == PeerPhase::ready) {
        credit_wait_.push_front(op);
      } else {
        op->abandon(failure_);
      }
      blocked = outcome == PendingOp::Outcome::blocked;
      break;
    }
  }
  while (!blocked && phase_ == PeerPhase::ready && !pending_.empty()) {
    const auto op = pending_.front();
    if (op->is_fence()) {
      if (!release_fence()) break;
      pending_.pop_front();
      remove_fence();
      moved = true;
      continue;
    }
    pending_.pop_front();
    const auto outcome = op->post();
    if (outcome == PendingOp::Outcome::posted) {
      moved = true;
    } else if (phase_ != PeerPhase::ready) {
      op->abandon(failure_);
    } else if (outcome == PendingOp::Outcome::no_credit) {
      credit_wait_.push_back(op);
    } else {
      pending_.push_front(op);
      blocked = true;
    }
  }
  pumping_ = false;
  const bool owes = message_slot_ != nullptr && (credit_to_send_ != 0 || acknowledge_ || !outbox_.at_end());
  if (phase_ == PeerPhase::ready && (owes || blocked)) context_.needs_pump(*this);
  return moved;
}

// Everything posted before the fence at the head of pending_: is it remotely complete? Starts the flushes that are needed to know.
bool PeerImpl::release_fence() {
  if (!credit_wait_.empty()) return false;
  if (flush_ && !flush_->done()) return false;
  bool quiet = true;
  for (const auto& slot : slots_) {
    if (slot->state != EndpointSlot::State::ready) continue;
    if (slot->operations != 0) quiet = false;
    if (!slot->unflushed) continue;
    flush_ = std::make_shared<FlushCount>(*this);
    static_cast<void>(flush_->start(*slot));
    if (!flush_->done() || slot->unflushed) return false;
  }
  return quiet;
}

void PeerImpl::forget_flush() {
  if (flush_) flush_->detach();
}

Status PeerImpl::fence() {
  if (phase_ == PeerPhase::lost || phase_ == PeerPhase::closed) return failure_;
  const bool outstanding = !nothing_pending() || std::any_of(slots_.begin(), slots_.end(), [](const auto& slot) {
    return slot->state == EndpointSlot::State::ready && (slot->operations != 0 || slot->unflushed);
  });
  if (!outstanding) return {};
  add_fence();
  enqueue(std::make_shared<FenceOp>());
  pump();
  return {};
}

void PeerImpl::link(TransferWork& work) noexcept {
  work.next_ = works_;
  work.previous_ = nullptr;
  if (works_ != nullptr) works_->previous_ = &work;
  works_ = &work;
}

void PeerImpl::unlink(TransferWork& work) noexcept {
  if (work.previous_ == nullptr && works_ != &work) return;
  (work.previous_ == nullptr ? works_ : work.previous_->next_) = work.next_;
  if (work.next_ != nullptr) work.next_->previous_ = work.previous_;
  work.next_ = work.previous_ = nullptr;
}

void PeerImpl::operation_done(EndpointSlot& slot) {
  --slot.operations;
  if (withdrawing_) [[unlikely]]
    settle_withdrawn();
  if (!pending_.empty() && slot.operations == 0 && phase_ == PeerPhase::ready) context_.needs_pump(*this);
}

}  // namespace hmc
