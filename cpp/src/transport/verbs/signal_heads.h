// Signals that go as the immediate of the write whose bytes they announce. Such a write is one packet where the write and a message
// are two, each with an acknowledgement.
//
// An immediate has 32 bits. What fits is a signal that ends in a number of 8 bytes, little endian, below 2^24, as comm's counted
// notifications do. What stands in front of the number, the signal's head (a kind, a group and two of its ranks), the receiver is
// told by a message once, and the immediate says which of them it is: those 8 bits, and the number. None is forgotten, so that what
// is under way always means the same. When 256 have been told, signals with others go as messages; lest they be such as never come
// again (a payload with a counter in it looks the same), one is told when it comes a second time.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/blob.h"

namespace hmc::verbs {

inline constexpr std::size_t max_signal_head = 24;
inline constexpr std::size_t signal_number_bytes = 8;

// The two parts of a signal that fits.
struct SplitSignal {
  ByteSpan head;
  std::uint32_t number = 0;
};
// None: it does not fit.
[[nodiscard]] std::optional<SplitSignal> split_signal(ByteSpan signal) noexcept;

// At most max_signal_head bytes.
struct SignalHead {
  std::uint8_t bytes = 0;
  std::array<std::byte, max_signal_head> data{};
  [[nodiscard]] bool is(ByteSpan head) const noexcept { return bytes == head.size() && std::ranges::equal(span(), head); }
  [[nodiscard]] ByteSpan span() const noexcept { return ByteSpan(data).first(bytes); }
  static SignalHead of(ByteSpan head) noexcept;
};

// The heads that one direction of a link knows, in the order in which they were told. Of the receiver's everything comes from the
// peer: nothing is believed of it.
class SignalHeads {
 public:
  static constexpr std::size_t capacity = 256;

  // Where `head` stands; none: it is not known.
  [[nodiscard]] std::optional<std::uint8_t> find(ByteSpan head) noexcept;
  // Where it stands now; none: no room, or of a size that no head has.
  [[nodiscard]] std::optional<std::uint8_t> add(ByteSpan head);

  [[nodiscard]] static std::uint32_t immediate(std::uint8_t place, std::uint32_t number) noexcept;
  // The signal that an immediate stands for. Valid until the next call; empty: of no head that was told.
  [[nodiscard]] ByteSpan expand(std::uint32_t immediate) noexcept;

 private:
  std::vector<SignalHead> heads_;
  std::size_t last_found_ = 0;
  std::array<std::byte, max_signal_head + signal_number_bytes> expanded_{};
};

// The last few heads that came.
class RecentHeads {
 public:
  // Whether `head` is one of them; it is now. At most max_signal_head bytes.
  [[nodiscard]] bool again(ByteSpan head) noexcept;

 private:
  std::array<SignalHead, 8> heads_{};
  std::size_t next_ = 0;
};

}  // namespace hmc::verbs
