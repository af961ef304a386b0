// LoopRing: the bounded queue of signals that an endpoint sends to itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "base/blob.h"

namespace hmc::local {

// Contiguous records in a ring allocated at first use. Engine lock held.
class LoopRing {
 public:
  static constexpr std::size_t capacity = 256 << 10;

  [[nodiscard]] bool empty() const noexcept { return head_ == tail_; }
  // False: no room.
  bool push(ByteSpan head, ByteSpan body) {
    const std::size_t payload = head.size() + body.size();
    const std::size_t need = record_bytes(payload);
    const std::size_t contiguous = capacity - tail_ % capacity;
    const std::size_t skip = need > contiguous ? contiguous : 0;
    if (tail_ + skip + need - head_ > capacity) return false;
    if (!bytes_) bytes_ = std::make_unique_for_overwrite<std::byte[]>(capacity);
    if (skip != 0) write_size(skip_marker);
    tail_ += skip;
    write_size(payload);
    std::byte* out = bytes_.get() + tail_ % capacity + sizeof(std::uint64_t);
    if (!head.empty()) std::memcpy(out, head.data(), head.size());
    if (!body.empty()) std::memcpy(out + head.size(), body.data(), body.size());
    tail_ += need;
    return true;
  }
  // The oldest record, in place until pop(). Not empty.
  [[nodiscard]] ByteSpan front() noexcept {
    std::uint64_t payload = read_size();
    if (payload == skip_marker) {
      head_ += capacity - head_ % capacity;
      payload = read_size();
    }
    return {bytes_.get() + head_ % capacity + sizeof(std::uint64_t), payload};
  }
  void pop() noexcept { head_ += record_bytes(read_size()); }
  void clear() noexcept { head_ = tail_; }

 private:
  static constexpr std::uint64_t skip_marker = ~std::uint64_t{0};
  static std::size_t record_bytes(std::size_t payload) noexcept {
    return (sizeof(std::uint64_t) + payload + sizeof(std::uint64_t) - 1) & ~(sizeof(std::uint64_t) - 1);
  }
  void write_size(std::uint64_t size) noexcept { std::memcpy(bytes_.get() + tail_ % capacity, &size, sizeof size); }
  [[nodiscard]] std::uint64_t read_size() const noexcept {
    std::uint64_t size = 0;
    std::memcpy(&size, bytes_.get() + head_ % capacity, sizeof size);
    return size;
  }

  std::unique_ptr<std::byte[]> bytes_;
  std::uint64_t head_ = 0;
  std::uint64_t tail_ = 0;
};

}  // namespace hmc::local
