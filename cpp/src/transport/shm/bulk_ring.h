// The two ends of a channel's bulk slots. Like the signal ring, plain objects over mapped memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hmc/status.h"
#include "transport/shm/channel_memory.h"
#include "transport/shm/layout.h"

namespace hmc::shm {

// What a producer says about a slot.
struct SlotInfo {
  SlotKind kind = SlotKind::put;
  std::uint32_t pieces = 0;
  std::uint64_t token = 0;
  std::uint32_t bytes = 0;
  Code code = Code::ok;
  bool streaming = false;
};

class BulkProducer {
 public:
  enum class Revoke : std::uint8_t { revoked, consumed, busy };

  BulkProducer() noexcept = default;
  explicit BulkProducer(const ChannelMemory& channel) noexcept : channel_(&channel) {}

  [[nodiscard]] bool has_free() const noexcept { return filled_ - acked_ < slot_count; }
  [[nodiscard]] bool in_flight() const noexcept { return filled_ != acked_; }
  [[nodiscard]] std::uint64_t next() const noexcept { return filled_; }  // number of the slot filled next
  [[nodiscard]] std::uint64_t oldest() const noexcept { return acked_; }

  // The next free slot, to be filled before publish().
  [[nodiscard]] std::byte* payload() const noexcept { return channel_->slot(filled_) + slot_header_bytes; }
  void write_piece(std::size_t index, const Piece& piece) const noexcept {
    std::memcpy(channel_->slot(filled_) + line_bytes + index * sizeof piece, &piece, sizeof piece);
  }
  // seq_cst: look at `armed` after it.
  void publish(const SlotInfo& info) noexcept;

  // Something to acknowledge?
  [[nodiscard]] bool has_ack() const noexcept { return channel_->control().bulk_head.load(std::memory_order_seq_cst) != acked_; }
  // Takes the oldest slot in flight that the consumer is done with: its outcome. False: none. `broken` is set when the consumer's
  // count cannot be.
  bool take_ack(std::uint64_t& number, Code& outcome, bool& broken) noexcept;
  // Takes a slot in flight back before the consumer touches it. The slot is still acknowledged in its turn.
  Revoke revoke(std::uint64_t number) const noexcept;

 private:
  [[nodiscard]] SlotHeader* header(std::uint64_t number) const noexcept {
    return reinterpret_cast<SlotHeader*>(channel_->slot(number));
  }

  const ChannelMemory* channel_ = nullptr;
  std::uint64_t filled_ = 0;
  std::uint64_t acked_ = 0;
};

class BulkConsumer {
 public:
  enum class Next : std::uint8_t { none, slot, broken };

  BulkConsumer() noexcept = default;
  explicit BulkConsumer(const ChannelMemory& channel) noexcept : channel_(&channel) {}

  [[nodiscard]] bool ready() const noexcept { return channel_->control().bulk_tail.load(std::memory_order_seq_cst) != consumed_; }
  // Takes the next slot that was not revoked; its header is copied out and checked. `skipped` is set when revoked ones were passed
  // (look at `armed`). After `slot`, read the payload and call finish().
  Next take(SlotInfo& info, bool& skipped) noexcept;
  [[nodiscard]] const std::byte* payload() const noexcept { return channel_->slot(consumed_) + slot_header_bytes; }
  [[nodiscard]] Piece piece(std::size_t index) const noexcept { return read_piece(channel_->slot(consumed_) + line_bytes, index); }
  [[nodiscard]] Piece payload_piece(std::size_t index) const noexcept { return read_piece(payload(), index); }
  // seq_cst: look at the producer's `armed` after it.
  void finish(Code outcome) noexcept;

 private:
  static Piece read_piece(const std::byte* table, std::size_t index) noexcept {
    Piece piece;
    std::memcpy(&piece, table + index * sizeof piece, sizeof piece);
    return piece;
  }

  const ChannelMemory* channel_ = nullptr;
  std::uint64_t consumed_ = 0;
};

// Codes cross the ring as numbers: anything unknown is `protocol`.
Code outcome_code(std::uint32_t value) noexcept;

}  // namespace hmc::shm
