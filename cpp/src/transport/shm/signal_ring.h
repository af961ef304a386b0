// The two ends of a signal ring. Plain objects over mapped memory, so that tests and the fuzzer can feed them any bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/blob.h"
#include "transport/shm/layout.h"

namespace hmc::shm {

inline std::size_t record_bytes(std::size_t payload) noexcept {
  return (sizeof(RecordHeader) + payload + line_bytes - 1) & ~(line_bytes - 1);
}
// Odd, so never the zero of fresh memory; distinct for all positions (multiples of 64) of a channel's life.
inline std::uint64_t record_tag(std::uint64_t key, std::uint64_t position) noexcept { return (key + 2 * position) | 1U; }

class SignalProducer {
 public:
  SignalProducer() noexcept = default;
  SignalProducer(std::byte* ring, std::size_t bytes, std::uint64_t key, const std::atomic<std::uint64_t>* head) noexcept
      : ring_(ring), bytes_(bytes), key_(key), head_(head) {}

  // Where a signal of `payload` bytes would end, counted from the ring's first use.
  [[nodiscard]] std::uint64_t end_of(std::size_t payload) const noexcept {
    return position_ + skip_before(payload) + record_bytes(payload);
  }
  // Is there room for a signal of `payload` bytes? Looks at the consumer's head only when what was last seen does not suffice.
  bool has_room(std::size_t payload) noexcept {
    const std::uint64_t end = end_of(payload);
    if (end - seen_head_ <= bytes_) return true;
    seen_head_ = head_->load(std::memory_order_seq_cst);
    return end - seen_head_ <= bytes_;
  }
  // Writes and publishes one signal; has_room() was true. The publishing exchange is seq_cst: look at `armed` after it.
  void push(ByteSpan head, ByteSpan body) noexcept {
    const std::size_t payload = head.size() + body.size();
    if (const std::size_t skip = skip_before(payload); skip != 0) {
      RecordHeader* header = at(position_);
      header->bytes = static_cast<std::uint32_t>(skip - sizeof(RecordHeader));
      header->kind = static_cast<std::uint32_t>(RecordKind::skip);
      header->tag.store(record_tag(key_, position_), std::memory_order_release);
      position_ += skip;
    }
    RecordHeader* header = at(position_);
    auto* out = reinterpret_cast<std::byte*>(header + 1);
    if (!head.empty()) std::memcpy(out, head.data(), head.size());
    if (!body.empty()) std::memcpy(out + head.size(), body.data(), body.size());
    header->bytes = static_cast<std::uint32_t>(payload);
    header->kind = static_cast<std::uint32_t>(RecordKind::signal);
    header->tag.exchange(record_tag(key_, position_), std::memory_order_seq_cst);
    position_ += record_bytes(payload);
  }

 private:
  [[nodiscard]] RecordHeader* at(std::uint64_t position) const noexcept {
    return reinterpret_cast<RecordHeader*>(ring_ + (position & (bytes_ - 1)));
  }
  // Bytes to the end of the ring when the record does not fit before it, else 0.
  [[nodiscard]] std::size_t skip_before(std::size_t payload) const noexcept {
    const std::size_t contiguous = bytes_ - (position_ & (bytes_ - 1));
    return record_bytes(payload) > contiguous ? contiguous : 0;
  }

  std::byte* ring_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint64_t key_ = 0;
  const std::atomic<std::uint64_t>* head_ = nullptr;
  std::uint64_t position_ = 0;
  std::uint64_t seen_head_ = 0;
};

class SignalConsumer {
 public:
  enum class Next : std::uint8_t { none, signal, broken };

  SignalConsumer() noexcept = default;
  SignalConsumer(std::byte* ring, std::size_t bytes, std::uint64_t key, std::atomic<std::uint64_t>* head) noexcept
      : ring_(ring), bytes_(bytes), key_(key), head_(head) {}

  [[nodiscard]] bool ready(std::memory_order order = std::memory_order_acquire) const noexcept {
    return at(position_)->tag.load(order) == record_tag(key_, position_);
  }
  // Finds the next signal, of at most max_signal bytes, which lies in the ring: its producer can still write to it. Call pass()
  // next. broken: the producer wrote what no producer writes; the ring is dead from then on.
  Next find(ByteSpan& signal) noexcept {
    for (int skips = 0; skips < 2; ++skips) {  // two in a row never happen honestly
      if (!ready()) return Next::none;
      const RecordHeader* header = at(position_);
      std::uint32_t payload = 0;
      std::uint32_t kind = 0;
      std::memcpy(&payload, &header->bytes, sizeof payload);
      std::memcpy(&kind, &header->kind, sizeof kind);
      const std::size_t contiguous = bytes_ - (position_ & (bytes_ - 1));
      if (kind == static_cast<std::uint32_t>(RecordKind::skip)) {
        if (payload != contiguous - sizeof(RecordHeader)) return Next::broken;
        position_ += contiguous;
        continue;
      }
      if (kind != static_cast<std::uint32_t>(RecordKind::signal) || payload > max_signal || record_bytes(payload) > contiguous) {
        return Next::broken;
      }
      signal = {reinterpret_cast<const std::byte*>(header + 1), payload};
      found_ = record_bytes(payload);
      return Next::signal;
    }
    return Next::broken;
  }
  [[nodiscard]] bool has_found() const noexcept { return found_ != 0; }  // a signal, since the beginning
  // Leaves the room of the signal that was found to the producer.
  void pass() noexcept { position_ += found_; }
  // Hands passed room back once a quarter of the ring has gathered, so that the line of the head moves seldom. True if it did:
  // look at the producer's `armed` then.
  bool publish() noexcept {
    if (position_ - published_ < bytes_ / 4) return false;
    published_ = position_;
    head_->exchange(position_, std::memory_order_seq_cst);
    return true;
  }

 private:
  [[nodiscard]] RecordHeader* at(std::uint64_t position) const noexcept {
    return reinterpret_cast<RecordHeader*>(ring_ + (position & (bytes_ - 1)));
  }

  std::byte* ring_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint64_t key_ = 0;
  std::atomic<std::uint64_t>* head_ = nullptr;
  std::uint64_t position_ = 0;
  std::uint64_t published_ = 0;
  std::size_t found_ = 0;  // bytes of the record at position_
};

}  // namespace hmc::shm
