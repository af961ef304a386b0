// What ranks of one host share for fused calls: for every rank a Board, where it says how far it is, and slots, through which
// it hands chunks to the others. Small enough to stay in the caches, however large the arrays.
//
// Chunks are numbered from the group's first fused call on, alike at every rank. Chunk n of each rank's part passes through the
// slots n % depth: `published` by everyone, `reduced` by the rank whose part it is, `collected` by everyone who wants the result.
//
// Other processes write here. Their numbers are compared and never used as an address or a length, so a peer that writes nonsense
// gets wrong sums and hangs until a deadline, and nothing else.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace hmc::fused {

inline constexpr std::uint32_t max_ranks = 32;
inline constexpr std::uint64_t depth = 4;
inline constexpr std::size_t line_bytes = 64;
inline constexpr std::size_t board_bytes = 4096;
inline constexpr std::size_t ring_bytes = 512 << 10;         // slots of one rank
inline constexpr std::size_t shot_bytes = 64 << 10;          // input of a one-shot call, see one_shot.h
inline constexpr std::size_t most_read_at_once = 256 << 10;  // by a rank in a one-shot call that hands bytes on
inline constexpr std::uint64_t shot_depth = 2;               // one-shot calls whose inputs are kept
inline constexpr std::size_t rank_bytes = ring_bytes + shot_depth * shot_bytes;
inline constexpr std::uint64_t announcement_count = 64;  // kept of collectives that are not fused

// What a rank says of one of its latest fused calls, and of other collectives that it has started: see announcements.h.
struct FusedAnnouncement {
  std::atomic<std::uint64_t> number;  // the collective's sequence, plus one; 0: none yet. Written last
  std::atomic<std::uint64_t> bytes;
  std::atomic<std::uint32_t> call;
  std::atomic<std::uint32_t> ways;  // of Announced
};
struct OtherAnnouncement {
  std::atomic<std::uint64_t> number;
  std::atomic<std::uint32_t> call;
};

// A one-shot call of a rank: the announcement, and the input where it fits. One line, so that a small call costs one transfer.
struct alignas(line_bytes) ShotEntry {
  std::atomic<std::uint64_t> number;  // the collective's sequence, plus one; 0: none yet. Written last
  std::atomic<std::uint64_t> bytes;   // of the input
  std::atomic<std::uint32_t> call;
  std::atomic<std::uint32_t> ways;  // of Announced
  std::byte input[line_bytes - 24];
};
static_assert(sizeof(ShotEntry) == line_bytes);

// What a rank says of its segment of device memory, see mapped/devices.h.
struct MappedOffer {
  static constexpr std::size_t most_bytes = 512;
  std::atomic<std::uint32_t> state;  // of mapped::Standing. Written last
  std::atomic<std::uint32_t> bytes;  // of what follows
  std::byte offer[most_bytes];       // not changed once it is there
};

// What a rank says of its device to the vendor's collective library, see native/boards.h.
struct NativeOffer {
  static constexpr std::size_t most_bytes = 96;
  std::atomic<std::uint32_t> state;   // of native::Standing. Written last
  std::atomic<std::uint32_t> bytes;   // of `offer`
  std::atomic<std::uint32_t> has_id;  // 1: `id` is there. Of rank 0
  std::atomic<std::uint64_t> agreed;  // the sequence, plus one, of the last call that the rank knows all to make by the library
  std::byte id[136];                  // this and what follows is not changed once it is there
  std::byte offer[most_bytes];
};

// Written by its rank alone, but for `armed`. All publishing writes are seq_cst, as are arm() and what it then looks at, so that
// none of the two misses the other.
struct Board {
  alignas(line_bytes) std::atomic<std::uint32_t> armed;      // 1: the rank sleeps and wants to be woken
  alignas(line_bytes) std::atomic<std::uint64_t> published;  // chunks, as are the next two
  alignas(line_bytes) std::atomic<std::uint64_t> reduced;
  alignas(line_bytes) std::atomic<std::uint64_t> collected;
  // The sequence, plus one, from which on the rank takes no part in fused calls: one failed there, or it left the group. 0: it
  // does.
  alignas(line_bytes) std::atomic<std::uint64_t> gave_up;
  alignas(line_bytes) FusedAnnouncement fused[2];  // of calls in chunks, in turns
  ShotEntry shots[shot_depth];
  alignas(line_bytes) OtherAnnouncement others[announcement_count];
  alignas(line_bytes) MappedOffer mapped;
  alignas(line_bytes) NativeOffer native;
  // The sequence, plus one, of the rank's last call that its device has carried out: by a kernel, and by the vendor's library,
  // whose ends come in an order of their own.
  std::atomic<std::uint64_t> kernel_ended, library_ended;
  // The sequence, plus one, of the last fused call that the rank is past: it has ended, or its device was given it. What ranks
  // announced of that call and of earlier ones is not looked at again.
  alignas(line_bytes) std::atomic<std::uint64_t> past;
};
static_assert(sizeof(Board) <= board_bytes && std::atomic<std::uint64_t>::is_always_lock_free);

// A view: the memory belongs to a Segment.
class Slots {
 public:
  // `base`: bytes_for(ranks) bytes, zero at first, aligned to a page.
  Slots(std::byte* base, std::uint32_t ranks) noexcept : base_(base), ranks_(ranks) {}
  static constexpr std::size_t bytes_for(std::uint32_t ranks) noexcept { return ranks * (board_bytes + rank_bytes); }

  [[nodiscard]] std::uint32_t ranks() const noexcept { return ranks_; }
  // Bytes of one slot: whole lines, so whole elements of every type.
  [[nodiscard]] std::size_t chunk() const noexcept { return ring_bytes / (depth * (ranks_ + 1)) / line_bytes * line_bytes; }
  [[nodiscard]] Board& board(std::uint32_t rank) const noexcept { return *reinterpret_cast<Board*>(base_ + rank * board_bytes); }
  // Where `rank` publishes its input for chunk `number` of the part that `owner` reduces.
  [[nodiscard]] std::byte* input(std::uint32_t rank, std::uint64_t number, std::uint32_t owner) const noexcept {
    return slot(rank, number) + owner * chunk();
  }
  // Where `rank` publishes the result of chunk `number` of its part.
  [[nodiscard]] std::byte* result(std::uint32_t rank, std::uint64_t number) const noexcept {
    return slot(rank, number) + ranks_ * chunk();
  }
  // Where `rank` publishes the input of its one-shot call in that slot, if its entry has no room.
  [[nodiscard]] std::byte* shot(std::uint32_t rank, std::size_t slot) const noexcept {
    return area(rank) + ring_bytes + slot * shot_bytes;
  }
  // The rank's slots of both kinds: rank_bytes.
  [[nodiscard]] std::byte* area(std::uint32_t rank) const noexcept { return base_ + ranks_ * board_bytes + rank * rank_bytes; }

 private:
  [[nodiscard]] std::byte* slot(std::uint32_t rank, std::uint64_t number) const noexcept {
    return area(rank) + (number % depth) * (ranks_ + 1) * chunk();
  }

  std::byte* base_;
  std::uint32_t ranks_;
};

}  // namespace hmc::fused
