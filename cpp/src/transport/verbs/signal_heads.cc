#include "transport/verbs/signal_heads.h"

#include <algorithm>

namespace hmc::verbs {
namespace {

constexpr unsigned number_bits = 24;
constexpr std::size_t used_bytes = number_bits / 8;  // of the number
constexpr std::uint32_t low_bits = (1U << number_bits) - 1;

bool head_fits(std::size_t bytes) noexcept { return bytes != 0 && bytes <= max_signal_head; }

}  // namespace

std::optional<SplitSignal> split_signal(ByteSpan signal) noexcept {
  if (signal.size() < signal_number_bytes || !head_fits(signal.size() - signal_number_bytes)) return std::nullopt;
  const ByteSpan number = signal.last(signal_number_bytes);
  if (std::ranges::any_of(number.subspan(used_bytes), [](std::byte each) { return each != std::byte{0}; })) return std::nullopt;
  SplitSignal parts{signal.first(signal.size() - signal_number_bytes)};
  for (std::size_t i = 0; i < used_bytes; ++i) parts.number |= std::to_integer<std::uint32_t>(number[i]) << (8 * i);
  return parts;
}

SignalHead SignalHead::of(ByteSpan head) noexcept {
  SignalHead made;
  made.bytes = static_cast<std::uint8_t>(head.size());
  std::ranges::copy(head, made.data.begin());
  return made;
}

std::optional<std::uint8_t> SignalHeads::find(ByteSpan head) noexcept {
  if (last_found_ >= heads_.size() || !heads_[last_found_].is(head)) {
    const auto found = std::ranges::find_if(heads_, [&](const SignalHead& known) { return known.is(head); });
    if (found == heads_.end()) return std::nullopt;
    last_found_ = static_cast<std::size_t>(found - heads_.begin());
  }
  return static_cast<std::uint8_t>(last_found_);
}

std::optional<std::uint8_t> SignalHeads::add(ByteSpan head) {
  if (heads_.size() == capacity || !head_fits(head.size())) return std::nullopt;
  heads_.push_back(SignalHead::of(head));
  return static_cast<std::uint8_t>(heads_.size() - 1);
}

std::uint32_t SignalHeads::immediate(std::uint8_t place, std::uint32_t number) noexcept {
  return std::uint32_t{place} << number_bits | number;
}

ByteSpan SignalHeads::expand(std::uint32_t immediate) noexcept {
  const std::size_t place = immediate >> number_bits;
  if (place >= heads_.size()) return {};
  const ByteSpan head = heads_[place].span();
  expanded_.fill(std::byte{0});
  std::ranges::copy(head, expanded_.begin());
  for (std::size_t i = 0; i < used_bytes; ++i)
    expanded_[head.size() + i] = static_cast<std::byte>((immediate & low_bits) >> (8 * i));
  return ByteSpan(expanded_).first(head.size() + signal_number_bytes);
}

bool RecentHeads::again(ByteSpan head) noexcept {
  if (std::ranges::any_of(heads_, [&](const SignalHead& seen) { return seen.is(head); })) return true;
  heads_[next_] = SignalHead::of(head);
  next_ = (next_ + 1) % heads_.size();
  return false;
}

}  // namespace hmc::verbs
