// OneShots: the small fused calls of one rank among ranks of one host. Each rank publishes its whole input, waits for the others',
// and reduces or copies what it wants of them itself: one exchange, where chunks (pass.h, spread.h) take more. All ranks reduce in
// the same loop in rank order, so they get the same bits.
//
// A rank's one-shot calls alternate between its shot_depth = 2 slots, and are found by their sequence: ranks that called with
// blocks of other sizes may have made other numbers of them. A slot is free once every rank is past the call that it was used for,
// which a rank that has published a later one-shot call is.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "collective/algorithm.h"
#include "collective/areas.h"
#include "collective/call.h"
#include "collective/fused/announcements.h"
#include "collective/fused/pass.h"
#include "collective/fused/slots.h"
#include "collective/fused/spread.h"
#include "collective/parts.h"
#include "native/rank_communicator.h"

namespace hmc {

struct ExchangeCall;

namespace fused {

// Bytes of a call of ranks' equal parts, as EqualCall has them, that go in one shot at most: larger inputs are not reduced so, as a
// rank reads all of every input; bytes that are handed on fit a slot, and a rank reads little.
constexpr std::uint64_t most_in_one_shot(CallKind kind, std::uint32_t ranks) noexcept {
  if (kind == CallKind::all_gather) return std::min<std::uint64_t>(ranks * shot_bytes, most_read_at_once);
  return reduces(kind) ? shot_bytes / (ranks - 1) : shot_bytes;
}
constexpr bool fits_one_shot(CallKind kind, std::uint32_t ranks, std::uint64_t bytes) noexcept {
  return bytes <= most_in_one_shot(kind, ranks);
}
// Calls of that kind can go through shared memory.
constexpr bool may_carry(CallKind kind) noexcept {
  return reduces(kind) || kind == CallKind::all_to_all || kind == CallKind::all_gather || kind == CallKind::broadcast;
}
// Whether a call that hands bytes on goes through shared memory by HMC's choice, where the group's ranks share some. The limits are
// measured: longer blocks cost less when they are copied once; the root of a small broadcast along a tree goes on without waiting.
constexpr bool spreads_shared(CallKind kind, std::uint32_t ranks, std::uint64_t bytes) noexcept {
  if (kind == CallKind::broadcast) return (ranks == 2 || bytes > (8 << 10)) && bytes <= (1 << 20);
  return (kind == CallKind::all_to_all || kind == CallKind::all_gather) && bytes / ranks <= (1 << 20) && bytes <= (4 << 20);
}

// How one rank takes part in a fused call.
struct Way {
  std::shared_ptr<const Plan> chunks = nullptr;     // of a call that reduces; null: in one shot, as the following say
  std::uint64_t bytes = 0;                          // alike at every rank: of the input; of all blocks where bytes are handed on
  Part wanted = {};                                 // of the published inputs: the rank reduces it into its output
  std::uint64_t wanted_at = 0;                      // where that part is in the rank's own input
  std::vector<Part> pieces = {};                    // of its own input, published one after the other; none: all of it
  std::optional<SpreadPlan> spread = std::nullopt;  // of a call that hands bytes on: in place of the above, but for `bytes`
  bool through_slots = true;                        // where all ranks pass CPU memory; else that goes by messages
  // Not null: the memory is its device's, which carries the call out so if those of all ranks do. But for its memory, its numbers
  // and its arithmetic.
  std::shared_ptr<const ExchangeCall> on_device = nullptr;
  std::optional<native::Call> by_library = std::nullopt;  // likewise, by the vendor's library

  [[nodiscard]] bool in_chunks() const noexcept { return spread ? !spread->in_one_shot : chunks != nullptr; }
};
// `algorithm`: one over shared memory that is able to carry out the call, or `chosen`: by size.
Way way_of_all_reduce(std::uint32_t rank, std::uint32_t size, std::uint64_t bytes, std::size_t element,
                      Algorithm algorithm = Algorithm::chosen);
Way way_of_reduce(std::uint32_t rank, std::uint32_t size, std::uint32_t root, std::uint64_t bytes, std::size_t element,
                  Algorithm algorithm = Algorithm::chosen);
Way way_of_reduce_scatter(std::uint32_t rank, const BlockLayout& blocks, Algorithm algorithm = Algorithm::chosen);
Way way_of_all_to_all(std::uint32_t size, std::uint64_t block, Algorithm algorithm = Algorithm::chosen);
Way way_of_all_gather(std::uint32_t rank, const BlockLayout& blocks, Algorithm algorithm = Algorithm::chosen);
Way way_of_broadcast(std::uint32_t rank, std::uint32_t root, std::uint64_t bytes, Algorithm algorithm = Algorithm::chosen);

// The one-shot calls that one rank publishes. One thread at a time.
class OneShots {
 public:
  // Whether the slot of the next call is free.
  [[nodiscard]] bool can_publish(const Slots& slots) const noexcept;
  // Announces the next call and publishes its input, which is not read if the rank takes no part.
  void publish(const Slots& slots, std::uint32_t rank, const Announced& own, const Way& way,
               const CollectiveBuffers& buffers) noexcept;
  // That call goes by messages, at every rank: what was published is not read.
  void declined(std::uint64_t sequence) noexcept;

  // The call of that sequence, which every rank has announced alike. Returns the bytes taken from other ranks' slots. Afterwards
  // nothing of it is read or written.
  static std::uint64_t finish(const Slots& slots, std::uint32_t rank, std::uint64_t sequence, const Way& way,
                              const CollectiveBuffers& buffers) noexcept;

 private:
  struct Published {
    std::uint64_t sequence = 0;
    bool is_free = true;
  };
  std::array<Published, shot_depth> published_;  // by slot
  std::size_t next_ = 0;                         // the slot of the next call
};

}  // namespace fused
}  // namespace hmc
