// What ranks say of the collectives that they start, read and written by several processes at once.
//
// A rank announces a fused call when its earlier ones have ended, or when its device carries them out. What it announced is kept
// until every rank is past the call, unless the rank carried it out by messages. So a rank that waits in call n, and finds a call m
// > n announced but not n, knows that the other rank carried out n by messages. Other collectives are announced so that a rank that
// waits in a fused call learns that another collective was called instead. The last announcement_count of them are kept: a rank
// that is further ahead is not found, and the wait ends at its deadline.
#pragma once

#include <algorithm>
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

// None: `entry` holds another call, or is being written.
template <typename Entry>
std::optional<Announced> read(const Entry& entry, std::uint64_t sequence) noexcept {
  if (entry.number.load(std::memory_order_seq_cst) != sequence + 1) return std::nullopt;
  const std::uint64_t bytes = entry.bytes.load(std::memory_order_acquire);
  const std::uint32_t call = entry.call.load(std::memory_order_acquire), ways = entry.ways.load(std::memory_order_acquire);
  const Announced found{sequence, bytes, call, ways};
  if (entry.number.load(std::memory_order_relaxed) != sequence + 1) return std::nullopt;
  return found;
}
template <typename Entry, std::size_t count>
std::optional<Announced> read_any(const Entry (&entries)[count], std::uint64_t sequence) noexcept {
  for (const Entry& entry : entries) {
    if (const auto found = read(entry, sequence)) return found;
  }
  return std::nullopt;
}

// What the board's rank announced under `sequence`, if that is kept: a call in chunks, and one in one shot.
inline std::optional<Announced> in_chunks_under(const Board& board, std::uint64_t sequence) noexcept {
  return read_any(board.fused, sequence);
}
inline std::optional<Announced> in_one_shot_under(const Board& board, std::uint64_t sequence) noexcept {
  return read_any(board.shots, sequence);
}
// Whether the board's rank has announced a call behind that one. If so, a later look finds all that it announced before.
inline bool is_beyond(const Board& board, std::uint64_t sequence) noexcept {
  const auto is_behind = [&](const auto& entry) { return entry.number.load(std::memory_order_seq_cst) > sequence + 1; };
  return std::ranges::any_of(board.fused, is_behind) || std::ranges::any_of(board.shots, is_behind);
}

// The board's rank is past that call, see Board::past. A device's calls may end in another order.
inline void pass(Board& board, std::uint64_t sequence) noexcept {
  if (board.past.load(std::memory_order_relaxed) <= sequence) board.past.store(sequence + 1, std::memory_order_seq_cst);
}
// Every other rank is past that call of `rank`.
inline bool others_are_past(const Slots& slots, std::uint32_t rank, std::uint64_t sequence) noexcept {
  for (std::uint32_t r = 0; r < slots.ranks(); ++r) {
    if (r != rank && slots.board(r).past.load(std::memory_order_seq_cst) <= sequence) return false;
  }
  return true;
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
