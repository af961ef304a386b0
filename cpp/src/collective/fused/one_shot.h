// OneShots: the small reductions of one rank among ranks of one host. Each rank publishes its whole input, waits for the others',
// and reduces what it wants of them itself: one exchange, where chunks (pass.h) take three. All ranks run the same loop in rank
// order, so they get the same bits.
//
// One-shot calls are numbered from the group's first on, alike at every rank, and alternate between shot_depth = 2 slots. A rank
// publishes call n once every rank has published call n - 1: each has then taken what it wants of call n - 2, whose slots are free.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "collective/algorithm.h"
#include "collective/areas.h"
#include "collective/fused/announcements.h"
#include "collective/fused/pass.h"
#include "collective/fused/slots.h"
#include "collective/parts.h"

namespace hmc::fused {

// Whether inputs of that many bytes of each rank are reduced in one shot. Larger ones are not: a rank reads all of every input.
constexpr bool in_one_shot(std::uint64_t bytes, std::uint32_t ranks) noexcept { return bytes <= shot_bytes / (ranks - 1); }

// How one rank takes part in a fused call.
struct Way {
  std::shared_ptr<const Plan> chunks;  // null: in one shot, as the following say
  std::uint64_t bytes = 0;             // of the input
  Part wanted = {};                    // of the published inputs: the rank reduces it into its output
  std::uint64_t wanted_at = 0;         // where that part is in the rank's own input
  std::vector<Part> pieces = {};       // of its own input, published one after the other; none: all of it
  // Not null: the memory is its device's, which carries the call out so if those of all ranks do.
  std::shared_ptr<const Plan> on_device = nullptr;
};
// `algorithm`: one over shared memory that is able to carry out the call, or `chosen`: by size.
Way way_of_all_reduce(std::uint32_t rank, std::uint32_t size, std::uint64_t bytes, std::size_t element,
                      Algorithm algorithm = Algorithm::chosen);
Way way_of_reduce(std::uint32_t rank, std::uint32_t size, std::uint32_t root, std::uint64_t bytes, std::size_t element,
                  Algorithm algorithm = Algorithm::chosen);
Way way_of_reduce_scatter(std::uint32_t rank, const BlockLayout& blocks, Algorithm algorithm = Algorithm::chosen);

// The one-shot call that `board`'s rank announced under `sequence`, if its entry still holds it.
std::optional<Announced> shot_under(const Board& board, std::uint64_t sequence) noexcept;

// One thread at a time.
class OneShots {
 public:
  // Whether the slot of the next call is free.
  [[nodiscard]] bool can_publish(const Slots& slots) noexcept;
  // Announces the next call and publishes its input, which is not read if the rank takes no part. Returns the call's number.
  std::uint64_t publish(const Slots& slots, std::uint32_t rank, const Announced& own, const Way& way, const void* input) noexcept;

  // What `rank` has announced as call `number`, whose sequence it is; none: nothing yet.
  static std::optional<Announced> announced(const Slots& slots, std::uint32_t rank, std::uint64_t number,
                                            std::uint64_t sequence) noexcept;
  // Call `number` of `rank`, which every rank has announced alike. Returns the bytes taken from other ranks' slots. Afterwards
  // nothing of it is read or written.
  static std::uint64_t finish(const Slots& slots, std::uint32_t rank, std::uint64_t number, const Way& way,
                              const CollectiveBuffers& buffers) noexcept;

 private:
  std::uint64_t next_ = 0;           // the number of the next call
  std::uint64_t last_sequence_ = 0;  // of the call before
};

}  // namespace hmc::fused
