#include "device/exchange.h"

#include <algorithm>

namespace hmc {
namespace {

// As in kernels/mapped_memory.cu.
constexpr std::uint64_t flags_bytes = std::uint64_t{most_exchange_blocks} * most_exchange_ranks * 64;
constexpr std::uint64_t slots_of_block = 4;
constexpr std::uint64_t pack = 16;
constexpr std::uint64_t cells_together = 32;

// Measured on 2 x H200: beyond that, flags behind the bytes cost less than cells of twice the bytes.
constexpr std::uint64_t cell_input = 2 << 20;
// Slots of all other ranks together, for one chunk of one block. Measured on 2 and 4 x H200: with more, what is under way leaves
// the caches; with less, blocks wait for each other more often.
constexpr std::uint64_t slots_bytes = 48 << 10;
constexpr std::uint32_t cell_threads = 256, most_cell_threads = 512, chunk_threads = 512;

constexpr std::uint64_t rounded_up(std::uint64_t bytes, std::uint64_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

std::uint64_t most_cell_bytes(std::uint32_t ranks) noexcept {
  constexpr std::uint64_t together = cells_together * pack;
  return cell_input / (ranks - 1) / together * together;
}

ExchangeSegment exchange_segment(std::uint32_t ranks) noexcept {
  ExchangeSegment segment;
  segment.cells_at = flags_bytes;
  segment.cells = 2 * most_cell_bytes(ranks);  // every word has a number beside it
  segment.slots_at = segment.cells_at + 2 * ranks * segment.cells;
  segment.slot = slots_bytes / (ranks - 1) / pack * pack;
  segment.bytes = segment.slots_at + 2 * (ranks - 1) * most_exchange_blocks * slots_of_block * segment.slot;
  return segment;
}

ExchangeShape exchange_shape(std::uint64_t bytes, std::uint32_t ranks, bool cells, std::uint64_t least_steps) noexcept {
  const std::uint64_t packs = std::max<std::uint64_t>(1, (bytes + pack - 1) / pack);
  if (cells && bytes <= most_cell_bytes(ranks)) {
    const std::uint64_t blocks = std::min<std::uint64_t>((packs + cell_threads - 1) / cell_threads, most_exchange_blocks);
    // Few threads end soonest; with fewer than cells, one waits for a second cell after its first.
    const bool enough = packs <= std::uint64_t{most_exchange_blocks} * cell_threads;
    return {.blocks = static_cast<std::uint32_t>(blocks), .threads = enough ? cell_threads : most_cell_threads};
  }
  const std::uint64_t share = (packs + most_exchange_blocks - 1) / most_exchange_blocks * pack;
  const std::uint64_t slot = exchange_segment(ranks).slot;
  const std::uint64_t steps = share <= slot ? 1 : std::max(least_steps, (share + slot - 1) / slot);
  return {.blocks = most_exchange_blocks,
          .threads = chunk_threads,
          .steps = steps,
          .chunk = rounded_up((share + steps - 1) / steps, pack),
          .lag = steps == 1 ? 1U : 2U};
}

std::uint64_t exchange_rounds(const ExchangeCall& call) noexcept {
  return call.shape.steps + (call.reduced.collectors != 0 ? 2 : 1) * call.shape.lag;
}

}  // namespace hmc
