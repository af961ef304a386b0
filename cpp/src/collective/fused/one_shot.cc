#include "collective/fused/one_shot.h"

#include <array>
#include <cstring>
#include <numeric>
#include <span>

namespace hmc::fused {
namespace {

std::byte* input_at(const Slots& slots, std::uint32_t rank, std::uint64_t number, std::uint64_t bytes) noexcept {
  ShotEntry& entry = slots.board(rank).shots[number % shot_depth];
  return bytes <= sizeof entry.input ? entry.input : slots.shot(rank, number);
}

void copy_input(std::byte* to, const Way& way, const std::byte* input) noexcept {
  if (way.pieces.empty()) {
    std::memcpy(to, input, way.bytes);
    return;
  }
  for (const Part& piece : way.pieces) {
    if (piece.bytes > 0) std::memcpy(to, input + piece.offset, piece.bytes);
    to += piece.bytes;
  }
}

// None: another call's, or it is being written.
std::optional<Announced> read(const ShotEntry& entry, std::uint64_t sequence) noexcept {
  if (entry.number.load(std::memory_order_seq_cst) != sequence + 1) return std::nullopt;
  const std::uint64_t bytes = entry.bytes.load(std::memory_order_acquire);
  const std::uint32_t call = entry.call.load(std::memory_order_acquire), code = entry.takes_part.load(std::memory_order_acquire);
  const Announced found{sequence, bytes, call, code != 0, code == 2};
  if (entry.number.load(std::memory_order_relaxed) != sequence + 1) return std::nullopt;
  return found;
}

// A rank could end a call without chunks, and announce its next one, before the others have seen its announcement.
bool takes_one_shot(std::uint64_t bytes, std::uint32_t ranks, Algorithm algorithm) noexcept {
  return algorithm == Algorithm::chosen || bytes == 0 ? in_one_shot(bytes, ranks) : algorithm == Algorithm::shared_whole;
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

std::optional<Announced> shot_under(const Board& board, std::uint64_t sequence) noexcept {
  for (const ShotEntry& entry : board.shots) {
    if (const auto found = read(entry, sequence)) return found;
  }
  return std::nullopt;
}

bool OneShots::can_publish(const Slots& slots) noexcept {
  if (next_ < shot_depth) return true;
  for (std::uint32_t r = 0; r < slots.ranks(); ++r) {
    const ShotEntry& before = slots.board(r).shots[(next_ - 1) % shot_depth];
    if (before.number.load(std::memory_order_seq_cst) != last_sequence_ + 1) return false;
  }
  return true;
}

std::uint64_t OneShots::publish(const Slots& slots, std::uint32_t rank, const Announced& own, const Way& way,
                                const void* input) noexcept {
  const std::uint64_t number = next_++;
  last_sequence_ = own.sequence;
  ShotEntry& entry = slots.board(rank).shots[number % shot_depth];
  entry.number.store(0, std::memory_order_relaxed);  // a reader of the stores that follow sees a change at its second look
  entry.bytes.store(own.bytes, std::memory_order_release);
  entry.call.store(own.call, std::memory_order_release);
  entry.takes_part.store(code_of(own), std::memory_order_release);
  if (own.takes_part && !own.on_device && own.bytes > 0)
    copy_input(input_at(slots, rank, number, own.bytes), way, static_cast<const std::byte*>(input));
  entry.number.store(own.sequence + 1, std::memory_order_seq_cst);
  return number;
}

std::optional<Announced> OneShots::announced(const Slots& slots, std::uint32_t rank, std::uint64_t number,
                                             std::uint64_t sequence) noexcept {
  return read(slots.board(rank).shots[number % shot_depth], sequence);
}

std::uint64_t OneShots::finish(const Slots& slots, std::uint32_t rank, std::uint64_t number, const Way& way,
                               const CollectiveBuffers& buffers) noexcept {
  if (way.wanted.bytes == 0) return 0;
  std::array<const void*, max_ranks> sources;
  for (std::uint32_t r = 0; r < slots.ranks(); ++r) sources[r] = input_at(slots, r, number, way.bytes) + way.wanted.offset;
  sources[rank] = static_cast<const std::byte*>(buffers.in.data) + way.wanted_at;
  const ReduceStep& step = buffers.reduction;
  reduce_on_cpu(buffers.out.data, std::span(sources.data(), slots.ranks()), way.wanted.bytes / size_of(step.type), step);
  return way.wanted.bytes * (slots.ranks() - 1);
}

}  // namespace hmc::fused
