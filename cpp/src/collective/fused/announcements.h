// What ranks say of the collectives that they start, read and written by several processes at once.
//
// A rank announces a fused call when its earlier ones have ended, or when its device carries them out. The last two are kept, and
// one whose call the device carries out until all ranks have given it to theirs. So a rank that waits in call n, and finds a call m
// > n announced but not n, knows that the other rank carried out n by messages. Other collectives are announced so that a rank that
// waits in a fused call learns that another collective was called instead. The last announcement_count of them are kept: a rank
// that is further ahead is not found, and the wait ends at its deadline.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "collective/fused/slots.h"

namespace hmc::fused {

// How a rank is able to take part, in bits: by the CPU over shared memory; by its device, through mapped memory or by the vendor's
// library. 0: by messages.
inline constexpr std::uint32_t by_cpu = 1, by_mapped = 2, by_native = 4;

struct Announced {
  std::uint64_t sequence = 0;
  std::uint64_t bytes = 0;
  std::uint32_t call = 0;
  std::uint32_t ways = 0;
};

// The entry that the board's rank, which alone writes there, announces its next call in.
inline FusedAnnouncement& next_entry(Board& board) noexcept {
  const auto number = [&](std::size_t i) { return board.fused[i].number.load(std::memory_order_relaxed); };
  return board.fused[number(0) <= number(1) ? 0 : 1];
}

inline void announce_fused(Board& board, const Announced& what) noexcept {
  FusedAnnouncement& entry = next_entry(board);
  entry.number.store(0, std::memory_order_relaxed);  // a reader of the stores that follow sees a change at its second look
  entry.bytes.store(what.bytes, std::memory_order_release);
  entry.call.store(what.call, std::memory_order_release);
  entry.ways.store(what.ways, std::memory_order_release);
  entry.number.store(what.sequence + 1, std::memory_order_seq_cst);
}

// None: nothing yet, or it is being written and seen at the next look.
inline std::optional<Announced> read(const FusedAnnouncement& entry) noexcept {
  const std::uint64_t number = entry.number.load(std::memory_order_seq_cst);
  if (number == 0) return std::nullopt;
  const std::uint64_t bytes = entry.bytes.load(std::memory_order_acquire);
  const std::uint32_t call = entry.call.load(std::memory_order_acquire), ways = entry.ways.load(std::memory_order_acquire);
  const Announced found{number - 1, bytes, call, ways};
  if (entry.number.load(std::memory_order_relaxed) != number) return std::nullopt;
  return found;
}

// What the board's rank announced under `sequence`, else the latest.
inline std::optional<Announced> fused_under(const Board& board, std::uint64_t sequence) noexcept {
  const auto first = read(board.fused[0]), second = read(board.fused[1]);
  if (first && first->sequence == sequence) return first;
  if (!first || (second && (second->sequence == sequence || second->sequence > first->sequence))) return second;
  return first;
}

inline void announce_other(Board& board, std::uint64_t sequence, std::uint32_t call) noexcept {
  OtherAnnouncement& entry = board.others[sequence % announcement_count];
  entry.number.store(0, std::memory_order_relaxed);
  entry.call.store(call, std::memory_order_release);
  entry.number.store(sequence + 1, std::memory_order_seq_cst);
}

// The collective that is not fused which the board's rank started under `sequence`.
inline std::optional<std::uint32_t> other_call(const Board& board, std::uint64_t sequence) noexcept {
  const OtherAnnouncement& entry = board.others[sequence % announcement_count];
  if (entry.number.load(std::memory_order_seq_cst) != sequence + 1) return std::nullopt;
  const std::uint32_t call = entry.call.load(std::memory_order_acquire);
  if (entry.number.load(std::memory_order_relaxed) != sequence + 1) return std::nullopt;
  return call;
}

}  // namespace hmc::fused
