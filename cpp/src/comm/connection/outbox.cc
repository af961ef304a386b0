#include "comm/connection/outbox.h"

#include <cstring>

namespace hmc {

std::size_t Outbox::length_at(std::size_t place) const noexcept {
  std::uint32_t length = 0;
  std::memcpy(&length, bytes_.data() + place, length_bytes);
  return length;
}

void Outbox::keep(ByteSpan head, ByteSpan body) {
  const bool was_at_end = at_end();
  const auto length = static_cast<std::uint32_t>(head.size() + body.size());
  const std::size_t place = bytes_.size();
  bytes_.resize(place + length_bytes + length);
  std::memcpy(bytes_.data() + place, &length, length_bytes);
  if (!head.empty()) std::memcpy(bytes_.data() + place + length_bytes, head.data(), head.size());
  if (!body.empty()) std::memcpy(bytes_.data() + place + length_bytes + head.size(), body.data(), body.size());
  ++kept_;
  if (was_at_end) at_ = bytes_.size();
}

bool Outbox::received(std::uint64_t total) {
  if (total > kept_) return false;
  for (; received_ < total; ++received_) begin_ += length_bytes + length_at(begin_);
  if (at_ < begin_) at_ = begin_;
  // Moved down once more is free than used, so that each byte moves at most once on average.
  if (begin_ > bytes_.size() / 2) {
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(begin_));
    at_ -= begin_;
    begin_ = 0;
  }
  return true;
}

ByteSpan Outbox::current() const noexcept { return {bytes_.data() + at_ + length_bytes, length_at(at_)}; }

void Outbox::advance() noexcept { at_ += length_bytes + length_at(at_); }

}  // namespace hmc
