// Which links of a group are measured, and the messages that do it. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collective/island.h"
#include "collective/plan.h"

namespace hmc {

inline constexpr std::uint64_t measured_chunk = 256 << 10;  // bytes of a message, as in large collectives
inline constexpr std::uint64_t measured_buffer = 4 << 20;   // bytes of either buffer of a rank: more than caches keep
struct RankPair {
  std::uint32_t first = 0, second = 0;
  friend bool operator==(const RankPair&, const RankPair&) = default;
};

// In the order in which they are measured. Within an island: up to three neighbours. Between two islands: every rank of one with
// every rank of the other, as long as these pairs of all islands are at most 64; else each rank with one of the other island; if
// these are too many, with one of the next island alone. So each rank of several islands is in a pair across a border.
std::vector<RankPair> pairs_to_measure(std::span<const Island> islands);

// Messages in one direction; the next leg follows once the last message has arrived.
struct Leg {
  bool forward = true;  // from the pair's first rank to its second
  std::uint64_t bytes = 0;
};
// Legs of one pair, in messages of measured_chunk, four at a time. Sends from Area::in, receives into Area::out, both of
// measured_buffer bytes; legs of at most 8 bytes fit into less. Of a rank outside the pair: nothing.
Schedule plan_legs(std::uint32_t rank, const RankPair& pair, std::span<const Leg> legs);

// How much is sent to measure a link. Both ranks of a pair take that of its first one.
struct Effort {
  static constexpr std::uint32_t fewest_repetitions = 3, most_repetitions = 5;

  std::uint32_t chunks = 2;                        // of the stream that measures bandwidth
  std::uint32_t trips = 1;                         // of a small message, one after the other, that measure latency
  std::uint32_t repetitions = fewest_repetitions;  // of both, in each direction
  friend bool operator==(const Effort&, const Effort&) = default;

  // A stream of about 3 ms and round trips of about 1 ms, five times; where a chunk takes longer than that, less often.
  static Effort of_link(double seconds_of_trip, double seconds_of_chunk) noexcept;
  // As a message has it; what a peer sends is brought into the range of of_link().
  [[nodiscard]] std::uint64_t encode() const noexcept;
  static Effort decode(std::uint64_t number) noexcept;
};

}  // namespace hmc
