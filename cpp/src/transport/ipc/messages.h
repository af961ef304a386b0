// What the two ends of an ipc link say to each other: as signals of their carrier, and, of memory, with its descriptors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/blob.h"
#include "hmc/status.h"

namespace hmc::ipc {

// Asks under way at once in one direction; their numbers are below it.
inline constexpr std::uint32_t max_asks = 64;

// Asks the receiver, whose device reaches both, to copy blocks: `put`: from memory that the sender has announced into the
// receiver's region, else the other way.
struct Ask {
  std::uint32_t number = 0;
  bool put = true;
  std::uint64_t memory = 0;  // as announced
  std::uint64_t region = 0;  // as exported
  std::uint64_t block = 0;   // bytes
  std::vector<std::uint64_t> memory_offsets;
  std::vector<std::uint64_t> region_offsets;
  Bytes signal;  // put only: for the receiver's user once the bytes are visible

  // Bytes of an ask of so many blocks and so large a signal.
  static constexpr std::size_t encoded(std::size_t blocks, std::size_t signal) noexcept { return 37 + 16 * blocks + signal; }
};
// The copies of that ask are over; its number is free.
struct Answer {
  std::uint32_t number = 0;
  Code code = Code::ok;
  std::string message;
};
// The memory is not referred to any more.
struct Forget {
  std::uint64_t memory = 0;
};
using Message = std::variant<Ask, Answer, Forget>;

Bytes encode(const Message& message);
std::optional<Message> decode(ByteSpan bytes);

// With the descriptors of what was exported, before the first signal that names it.
struct Announcement {
  std::uint64_t memory = 0;  // never used twice on one link
  Bytes exported;            // as ImportedRegion::import takes it
};
inline constexpr std::size_t max_announcement = 8192;

Bytes encode(const Announcement& announcement);
std::optional<Announcement> decode_announcement(ByteSpan bytes);

}  // namespace hmc::ipc
