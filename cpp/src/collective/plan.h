// What one rank does in a collective: a Schedule of steps and the order between them. Pure: no I/O, so tested without a network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hmc {

enum class StepKind : std::uint8_t { send, receive, copy, reduce, wait };  // wait: for what no step does
enum class Area : std::uint8_t { in, out, scratch };  // the caller's two buffers, and memory of the collective itself

// Which part of an operation on all ranks' inputs a reduction carries out: inputs are scaled in the first, results divided in the
// last.
enum class ReducePhase : std::uint8_t { whole, first, last };

struct Slice {
  Area area = Area::in;
  std::uint64_t offset = 0;  // bytes
};

// Messages of one collective between one pair of ranks are told apart by `round`, which both sides compute alike.
struct Step {
  StepKind kind = StepKind::copy;
  std::uint8_t round = 0;
  std::uint32_t peer = 0;  // rank; own for copies, reductions and waits
  std::uint64_t bytes = 0;
  Slice from;                                        // send, copy
  Slice to;                                          // receive, copy, reduce
  std::uint32_t waits = 0;                           // steps that must be complete before
  std::uint32_t first_next = 0, next_count = 0;      // in Schedule::next: steps that wait for this one
  std::uint32_t first_source = 0, source_count = 0;  // reduce: in Schedule::sources, `bytes` each
  ReducePhase phase = ReducePhase::whole;            // reduce
};

struct Schedule {
  std::vector<Step> steps;  // those without predecessors are posted in this order
  std::vector<std::uint32_t> next;
  std::vector<Slice> sources;
  std::uint64_t scratch = 0;  // bytes of Area::scratch
};

// Where the bytes of each rank lie in a buffer.
struct BlockLayout {
  std::span<const std::uint64_t> counts;         // bytes, one per rank
  std::span<const std::uint64_t> displacements;  // bytes
};

struct AllToAllTuning {
  std::uint64_t large = 64 << 10;  // blocks from this size on are sent `window` at a time
  std::uint32_t window = 4;
  std::uint64_t relay_block =
      1024;  // blocks up to this size, among at least relay_ranks ranks, are relayed (log2 n partners, not n)
  std::uint32_t relay_ranks = 16;
  std::uint64_t inline_copy = 1 << 20;  // a rank's block to itself above this size goes as a message, in slices
};

// Dissemination: after round k a rank knows of 2^(k+1) ranks. ceil(log2 n) empty messages each way.
Schedule plan_barrier(std::uint32_t rank, std::uint32_t size);

// Every rank's `counts[r]` bytes, from `in` to `out` of everybody. Doubling: ceil(log2 n) rounds, any n. `out` is packed by rank,
// or has the blocks at `displacements`, which are each rank's own affair: they are gathered in scratch memory then.
Schedule plan_all_gather(std::uint32_t rank, std::uint32_t size, std::span<const std::uint64_t> counts,
                         std::span<const std::uint64_t> displacements = {});

// Whether blocks of `block` bytes are relayed: every rank must answer alike.
constexpr bool relays(std::uint32_t size, std::uint64_t block, const AllToAllTuning& tuning) noexcept {
  return size >= tuning.relay_ranks && block > 0 && block <= tuning.relay_block;
}

// Equal blocks of `block` bytes: direct or relayed.
Schedule plan_all_to_all(std::uint32_t rank, std::uint32_t size, std::uint64_t block, const AllToAllTuning& tuning = {});

// Direct: all receives are posted first, then sends, staggered (rank + k) so that no rank is everybody's target at once, large ones
// at most `window` under way. Empty blocks are sent too: every pair checks its size.
Schedule plan_all_to_all_v(std::uint32_t rank, std::uint32_t size, const BlockLayout& out, const BlockLayout& in,
                           const AllToAllTuning& tuning = {});

}  // namespace hmc
