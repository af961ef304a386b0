// Outbox: signals that were posted and that the peer may not have received, should the connection that carries them end first. They
// go again, in order, over the next one; the peer says how many it has, so none arrives twice.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/blob.h"

namespace hmc {

class Outbox {
 public:
  // More is not kept: the peer acknowledges long before, or does not read.
  [[nodiscard]] bool full() const noexcept { return bytes_.size() - begin_ >= max_bytes; }
  void keep(ByteSpan head, ByteSpan body);
  // The peer has received `total` of all that were ever kept. Fewer than it has acknowledged already: the word came late, and
  // changes nothing. False: it cannot have.
  [[nodiscard]] bool received(std::uint64_t total);
  [[nodiscard]] std::uint64_t kept() const noexcept { return kept_; }  // ever
  // Kept, and not acknowledged by the peer.
  [[nodiscard]] std::uint64_t unacknowledged() const noexcept { return kept_ - received_; }

  // Going through them again: all that the peer has not received.
  void rewind() noexcept { at_ = begin_; }
  [[nodiscard]] bool at_end() const noexcept { return at_ == bytes_.size(); }
  [[nodiscard]] ByteSpan current() const noexcept;
  void advance() noexcept;

 private:
  static constexpr std::size_t max_bytes = 8 << 20;
  static constexpr std::size_t length_bytes = 4;
  [[nodiscard]] std::size_t length_at(std::size_t place) const noexcept;

  Bytes bytes_;  // each: its length, then itself
  std::size_t begin_ = 0;
  std::size_t at_ = 0;
  std::uint64_t kept_ = 0;
  std::uint64_t received_ = 0;
};

}  // namespace hmc
