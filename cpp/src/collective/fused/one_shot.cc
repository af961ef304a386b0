#include "collective/fused/one_shot.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>

namespace hmc::fused {
namespace {

std::byte* input_in(const Slots& slots, std::uint32_t rank, std::size_t slot, std::uint64_t bytes) noexcept {
  ShotEntry& entry = slots.board(rank).shots[slot];
  return bytes <= sizeof entry.input ? entry.input : slots.shot(rank, slot);
}

// Of a call that `rank` has announced.
const std::byte* input_of(const Slots& slots, std::uint32_t rank, std::uint64_t sequence, std::uint64_t bytes) noexcept {
  const bool is_first = slots.board(rank).shots[0].number.load(std::memory_order_relaxed) == sequence + 1;
  return input_in(slots, rank, is_first ? 0 : 1, bytes);
}
static_assert(shot_depth == 2);

void copy_input(std::byte* to, const Way& way, const CollectiveBuffers& buffers, std::uint32_t ranks) noexcept {
  if (way.spread) {
    const std::uint64_t bytes = way.spread->given(ranks);
    if (bytes > 0) std::memcpy(to, given_by(buffers) + way.spread->gives.offset, bytes);
    return;
  }
  const auto* const input = static_cast<const std::byte*>(buffers.in.data);
  if (way.pieces.empty()) {
    std::memcpy(to, input, way.bytes);
    return;
  }
  for (const Part& piece : way.pieces) {
    if (piece.bytes > 0) std::memcpy(to, input + piece.offset, piece.bytes);
    to += piece.bytes;
  }
}

// A rank could end a call without chunks, and announce its next one, before the others have seen its announcement.
bool takes_one_shot(std::uint64_t bytes, std::uint32_t ranks, Algorithm algorithm) noexcept {
  return algorithm == Algorithm::chosen || bytes == 0 ? fits_one_shot(CallKind::all_reduce, ranks, bytes)
                                                      : algorithm == Algorithm::shared_whole;
}

// An empty call goes in one shot, as above. `longest`: what a rank gives at most.
bool spreads_at_once(std::uint64_t longest, std::uint64_t bytes, Algorithm algorithm) noexcept {
  const bool may_be = algorithm == Algorithm::chosen || algorithm == Algorithm::shared_whole;
  return bytes == 0 || (may_be && longest <= shot_bytes && bytes <= most_read_at_once);
}

// Returns the bytes taken from other ranks' slots.
std::uint64_t take(const Slots& slots, std::uint32_t rank, std::uint64_t sequence, const Way& way,
                   const CollectiveBuffers& buffers) noexcept {
  const SpreadPlan& plan = *way.spread;
  auto* const out = static_cast<std::byte*>(buffers.out.data);
  std::uint64_t bytes = 0;
  for (std::uint32_t r = 0; r < slots.ranks(); ++r) {
    const Part to = plan.taken_from(r);
    if (to.bytes == 0) continue;
    const std::byte* from = given_by(buffers) + plan.given_to(rank).offset;
    if (r != rank) {
      from = input_of(slots, r, sequence, way.bytes) + (plan.to_all ? 0 : rank * plan.gives.bytes);
      bytes += to.bytes;
    }
    if (from != out + to.offset) std::memcpy(out + to.offset, from, to.bytes);
  }
  return bytes;
}

}  // namespace

Way way_of_all_reduce(std::uint32_t rank, std::uint32_t size, std::uint64_t bytes, std::size_t element, Algorithm algorithm) {
  if (takes_one_shot(bytes, size, algorithm)) return {nullptr, bytes, {0, bytes}};
  return {plan_all_reduce(rank, size, bytes, element)};
}

Way way_of_reduce(std::uint32_t rank, std::uint32_t size, std::uint32_t root, std::uint64_t bytes, std::size_t element,
                  Algorithm algorithm) {
  if (takes_one_shot(bytes, size, algorithm)) return {nullptr, bytes, {0, rank == root ? bytes : 0}};
  return {plan_reduce(rank, size, root, bytes, element)};
}

// Displacements are each rank's own affair, so the blocks are published one after the other.
Way way_of_reduce_scatter(std::uint32_t rank, const BlockLayout& blocks, Algorithm algorithm) {
  const std::uint64_t bytes = std::reduce(blocks.counts.begin(), blocks.counts.end());
  if (!takes_one_shot(bytes, static_cast<std::uint32_t>(blocks.counts.size()), algorithm)) return {plan_reduce_scatter(blocks)};
  Way way{nullptr, bytes};
  std::uint64_t at = 0;
  bool packed = true;
  for (std::size_t r = 0; r < blocks.counts.size(); ++r) {
    if (r == rank) way.wanted = {at, blocks.counts[r]};
    packed = packed && (blocks.displacements[r] == at || blocks.counts[r] == 0);
    at += blocks.counts[r];
  }
  way.wanted_at = packed ? way.wanted.offset : blocks.displacements[rank];
  if (packed) return way;
  for (std::size_t r = 0; r < blocks.counts.size(); ++r) way.pieces.push_back({blocks.displacements[r], blocks.counts[r]});
  return way;
}

Way way_of_all_to_all(std::uint32_t size, std::uint64_t block, Algorithm algorithm) {
  Way way{.bytes = block * size};
  way.spread = SpreadPlan{.gives = {0, block}, .takes = {0, block}, .longest = block};
  way.spread->in_one_shot = spreads_at_once(way.bytes, way.bytes, algorithm);
  return way;
}

Way way_of_all_gather(std::uint32_t rank, const BlockLayout& blocks, Algorithm algorithm) {
  Way way{.bytes = std::reduce(blocks.counts.begin(), blocks.counts.end())};
  const std::uint64_t longest = *std::ranges::max_element(blocks.counts);
  way.spread = SpreadPlan{.gives = {0, blocks.counts[rank]}, .to_all = true, .longest = longest};
  way.spread->in_one_shot = spreads_at_once(longest, way.bytes, algorithm);
  const auto size = static_cast<std::uint32_t>(blocks.counts.size());
  bool even = true;
  for (std::uint32_t r = 0; r < size; ++r) even = even && blocks.counts[r] == longest && blocks.displacements[r] == r * longest;
  if (even) {
    way.spread->takes = {0, longest};
    return way;
  }
  for (std::uint32_t r = 0; r < size; ++r) way.spread->takes_each.push_back({blocks.displacements[r], blocks.counts[r]});
  return way;
}

Way way_of_broadcast(std::uint32_t rank, std::uint32_t root, std::uint64_t bytes, Algorithm algorithm) {
  Way way{.bytes = bytes};
  way.spread =
      SpreadPlan{.gives = {0, rank == root ? bytes : 0}, .to_all = true, .takes = {0, bytes}, .root = root, .longest = bytes};
  way.spread->in_one_shot = spreads_at_once(bytes, bytes, algorithm);
  return way;
}

bool OneShots::can_publish(const Slots& slots) const noexcept {
  const Published& replaced = published_[next_];
  if (replaced.is_free) return true;
  const std::uint64_t last = published_[next_ ^ 1].sequence;
  for (std::uint32_t r = 0; r < slots.ranks(); ++r) {
    const Board& board = slots.board(r);
    if (!in_one_shot_under(board, last) && board.past.load(std::memory_order_seq_cst) <= replaced.sequence) return false;
  }
  return true;
}

void OneShots::publish(const Slots& slots, std::uint32_t rank, const Announced& own, const Way& way,
                       const CollectiveBuffers& buffers) noexcept {
  const std::size_t slot = std::exchange(next_, next_ ^ 1);
  published_[slot] = {own.sequence, false};
  ShotEntry& entry = slots.board(rank).shots[slot];
  entry.number.store(0, std::memory_order_relaxed);  // a reader of the stores that follow sees a change at its second look
  entry.bytes.store(own.bytes, std::memory_order_release);
  entry.call.store(own.call, std::memory_order_release);
  entry.ways.store(own.ways, std::memory_order_release);
  if (own.ways == by_cpu && own.bytes > 0) copy_input(input_in(slots, rank, slot, own.bytes), way, buffers, slots.ranks());
  entry.number.store(own.sequence + 1, std::memory_order_seq_cst);
}

void OneShots::declined(std::uint64_t sequence) noexcept {
  for (Published& slot : published_) {
    if (slot.sequence == sequence) slot.is_free = true;
  }
}

std::uint64_t OneShots::finish(const Slots& slots, std::uint32_t rank, std::uint64_t sequence, const Way& way,
                               const CollectiveBuffers& buffers) noexcept {
  if (way.spread) return take(slots, rank, sequence, way, buffers);
  if (way.wanted.bytes == 0) return 0;
  std::array<const void*, max_ranks> sources;
  for (std::uint32_t r = 0; r < slots.ranks(); ++r) sources[r] = input_of(slots, r, sequence, way.bytes) + way.wanted.offset;
  sources[rank] = static_cast<const std::byte*>(buffers.in.data) + way.wanted_at;
  const ReduceStep& step = buffers.reduction;
  reduce_on_cpu(buffers.out.data, std::span(sources.data(), slots.ranks()), way.wanted.bytes / size_of(step.type), step);
  return way.wanted.bytes * (slots.ranks() - 1);
}

}  // namespace hmc::fused
