// Spread: one rank's share of an all_to_all, all_gather or broadcast among ranks of one host, in chunks through shared slots.
//
// Bytes are handed on as they are: each rank copies its input into its slots, and the others copy what is theirs out of them. Twice
// in the caches costs less than once through the kernel, and than messages, up to the sizes in spreads_shared().
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "collective/areas.h"
#include "collective/call.h"
#include "collective/fused/passing.h"
#include "collective/parts.h"
#include "transport/copy.h"

namespace hmc::fused {

// Bytes of a chunk. Of one that every rank reads less than there is room for, so that the slots of all stay in a core's cache.
[[nodiscard]] inline std::size_t spread_chunk(const Slots& slots, bool to_all) noexcept {
  constexpr std::size_t most_for_all = 64 << 10;
  return to_all ? std::min(most_for_all, (slots.ranks() + 1) * slots.chunk()) : slots.chunk();
}

// One rank's view. Blocks of equal calls are evenly spaced; those of others are listed.
struct SpreadPlan {
  Part gives = {};                                   // of the input: to rank 0, or to all
  bool to_all = false;                               // else to rank r what is r times `gives.bytes` further
  Part takes = {};                                   // of the output: from rank 0, or from the root
  std::vector<Part> takes_each = {};                 // not empty: in place of `takes`, by rank
  std::optional<std::uint32_t> root = std::nullopt;  // the only rank that gives
  std::uint64_t longest = 0;                         // bytes of the longest block of the call: alike at every rank
  bool in_one_shot = false;                          // else in chunks

  [[nodiscard]] Part given_to(std::uint32_t rank) const noexcept {
    return {gives.offset + (to_all ? 0 : rank * gives.bytes), gives.bytes};
  }
  // Of the input, to all other ranks and itself.
  [[nodiscard]] std::uint64_t given(std::uint32_t ranks) const noexcept { return gives.bytes * (to_all ? 1 : ranks); }
  [[nodiscard]] Part taken_from(std::uint32_t rank) const noexcept {
    if (!takes_each.empty()) return takes_each[rank];
    if (root) return rank == *root ? takes : Part{};
    return {takes.offset + rank * takes.bytes, takes.bytes};
  }
};

class Spread final : public Passing {
 public:
  // CPU memory. In place where the input is where the own block of the output is; of a broadcast the output of the root is its
  // input.
  Spread(const Slots& slots, std::uint32_t rank, const SpreadPlan& plan, const CollectiveBuffers& buffers, std::uint64_t first);

  [[nodiscard]] bool can_advance() override { return can_publish() || can_take(); }
  [[nodiscard]] bool needs(std::uint32_t rank) const noexcept override;

 private:
  std::size_t step() override;
  [[nodiscard]] std::size_t chunk() const noexcept;
  [[nodiscard]] Part piece(const Part& block, std::uint64_t number) const noexcept;
  // Where `from` publishes what `to` takes.
  [[nodiscard]] std::byte* slot(std::uint32_t from, std::uint64_t number, std::uint32_t to) const noexcept;
  [[nodiscard]] bool can_publish();
  [[nodiscard]] bool can_take();
  std::size_t publish();
  std::size_t take();
  std::size_t copy(const Part& to, const std::byte* from) noexcept;

  const SpreadPlan plan_;
  const std::byte* const in_;
  std::byte* const out_;
  const CopyKind kind_;  // of copies into the output
};

// What a rank gives is here: of a broadcast the output of the root is its input.
[[nodiscard]] inline const std::byte* given_by(const CollectiveBuffers& buffers) noexcept {
  return static_cast<const std::byte*>(buffers.in.data != nullptr ? buffers.in.data : buffers.out.data);
}

}  // namespace hmc::fused
