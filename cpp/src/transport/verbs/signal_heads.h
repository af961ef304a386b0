// Signals that go as the immediate of the write whose bytes they announce. Such a write is one packet where the write and a message
// are two, each with an acknowledgement.
//
// An immediate has 32 bits. What fits is a signal that ends in a number of 8 bytes, little endian, below 2^24, as comm's counted
// notifications do. What stands in front of the number, the signal's head, the receiver is told by a message once, and the
// immediate says which of them it is: those 8 bits, and the number. Heads are few (a kind, a group and two of its ranks), so none
// is forgotten.
#pragma once

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
[[nodiscard]] std::optional<SplitSignal> split_signal(ByteSpan signal) noexcept;

// The heads that one direction of a link knows, in the order in which they were told. Of the receiver's everything comes from the
// peer: nothing is believed of it.
class SignalHeads {
 public:
  static constexpr std::size_t capacity = 256;

  // Where `head` stands; none: it is not known.
  [[nodiscard]] std::optional<std::uint8_t> find(ByteSpan head) const noexcept;
  // Where it stands now; none: no room, or of a size that no head has.
  [[nodiscard]] std::optional<std::uint8_t> add(ByteSpan head);

  [[nodiscard]] static std::uint32_t immediate(std::uint8_t place, std::uint32_t number) noexcept;
  // The signal that an immediate stands for. Valid until the next call; empty: of no head that was told.
  [[nodiscard]] ByteSpan expand(std::uint32_t immediate) noexcept;

 private:
  struct Head {
    std::uint8_t bytes = 0;
    std::array<std::byte, max_signal_head> data{};
    [[nodiscard]] ByteSpan span() const noexcept { return ByteSpan(data).first(bytes); }
  };
  std::vector<Head> heads_;
  std::array<std::byte, max_signal_head + signal_number_bytes> expanded_{};
};

}  // namespace hmc::verbs
