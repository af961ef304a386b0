#include "transport/shm/bulk_ring.h"

namespace hmc::shm {

namespace {

std::uint32_t raw(SlotState state) noexcept { return static_cast<std::uint32_t>(state); }

bool plausible(const SlotInfo& info, std::uint32_t kind, const Sizes& sizes) noexcept {
  if (kind > static_cast<std::uint32_t>(SlotKind::get_stop) || info.bytes > sizes.slot_payload()) return false;
  switch (info.kind) {
    case SlotKind::put:
      return info.pieces <= max_put_pieces;
    case SlotKind::get_request:
      return info.pieces != 0 && info.pieces * sizeof(Piece) == info.bytes;
    case SlotKind::get_data:
      return info.pieces == 0;
    case SlotKind::get_stop:
      return info.pieces == 0 && info.bytes == 0;
  }
  return false;
}

}  // namespace

Code outcome_code(std::uint32_t value) noexcept {
  for (const Code code : {Code::ok, Code::invalid_argument, Code::stale}) {
    if (value == static_cast<std::uint32_t>(code)) return code;
  }
  return Code::protocol;
}

void BulkProducer::publish(const SlotInfo& info) noexcept {
  SlotHeader* slot = header(filled_);
  slot->kind = static_cast<std::uint32_t>(info.kind);
  slot->pieces = info.pieces;
  slot->token = info.token;
  slot->bytes = info.bytes;
  slot->code = static_cast<std::uint32_t>(info.code);
  slot->streaming = info.streaming ? 1 : 0;
  slot->outcome.store(0, std::memory_order_relaxed);
  slot->state.store(raw(SlotState::ready), std::memory_order_release);
  ++filled_;
  channel_->control().bulk_tail.exchange(filled_, std::memory_order_seq_cst);
}

bool BulkProducer::take_ack(std::uint64_t& number, Code& outcome, bool& broken) noexcept {
  const std::uint64_t head = channel_->control().bulk_head.load(std::memory_order_acquire);
  if (head == acked_) return false;
  if (head - acked_ > filled_ - acked_) {
    broken = true;
    return false;
  }
  number = acked_;
  outcome = outcome_code(header(acked_)->outcome.load(std::memory_order_relaxed));
  ++acked_;
  return true;
}

BulkProducer::Revoke BulkProducer::revoke(std::uint64_t number) const noexcept {
  std::uint32_t expected = raw(SlotState::ready);
  if (header(number)->state.compare_exchange_strong(expected, raw(SlotState::revoked), std::memory_order_seq_cst))
    return Revoke::revoked;
  const std::uint64_t head = channel_->control().bulk_head.load(std::memory_order_acquire);
  return head - acked_ > number - acked_ ? Revoke::consumed : Revoke::busy;
}

BulkConsumer::Next BulkConsumer::take(SlotInfo& info, bool& skipped) noexcept {
  for (std::size_t passed = 0; passed <= slot_count; ++passed) {
    const std::uint64_t tail = channel_->control().bulk_tail.load(std::memory_order_acquire);
    if (tail == consumed_) return Next::none;
    if (tail - consumed_ > slot_count) return Next::broken;
    auto* slot = reinterpret_cast<SlotHeader*>(channel_->slot(consumed_));
    std::uint32_t state = raw(SlotState::ready);
    if (!slot->state.compare_exchange_strong(state, raw(SlotState::busy), std::memory_order_seq_cst)) {
      if (state != raw(SlotState::revoked)) return Next::broken;
      skipped = true;
      finish(Code::ok);
      continue;
    }
    std::uint32_t kind = 0;
    std::uint32_t code = 0;
    std::uint32_t streaming = 0;
    std::memcpy(&kind, &slot->kind, sizeof kind);
    std::memcpy(&info.pieces, &slot->pieces, sizeof info.pieces);
    std::memcpy(&info.token, &slot->token, sizeof info.token);
    std::memcpy(&info.bytes, &slot->bytes, sizeof info.bytes);
    std::memcpy(&code, &slot->code, sizeof code);
    std::memcpy(&streaming, &slot->streaming, sizeof streaming);
    info.kind = static_cast<SlotKind>(kind);
    info.code = outcome_code(code);
    info.streaming = streaming == 1;
    return plausible(info, kind, channel_->sizes()) ? Next::slot : Next::broken;
  }
  return Next::none;  // a whole lap was revoked: go on at the next poll
}

void BulkConsumer::finish(Code outcome) noexcept {
  auto* slot = reinterpret_cast<SlotHeader*>(channel_->slot(consumed_));
  slot->outcome.store(static_cast<std::uint32_t>(outcome), std::memory_order_relaxed);
  ++consumed_;
  channel_->control().bulk_head.exchange(consumed_, std::memory_order_seq_cst);
}

}  // namespace hmc::shm
