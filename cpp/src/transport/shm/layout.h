// What lies in the memory shared by two endpoints. Each endpoint owns one inbound channel: a sealed memfd that only its peer writes
// records into. Everything in it that the peer may write is untrusted: copied out, checked, then used.
//
//   0                 Control, one page
//   control_bytes     signal ring: records of whole 64-byte lines
//   + signal_bytes    bulk slots: chunks of payload with a table of where they go
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace hmc::shm {

inline constexpr std::size_t line_bytes = 64;
inline constexpr std::size_t control_bytes = 4096;
inline constexpr std::size_t slot_count = 4;
inline constexpr std::size_t min_signal_bytes = 256 << 10;  // of a signal ring
// Bytes of one signal: a message of 64 KiB and its head. An empty ring takes it at every place: what its end is too short for, and
// the quarter that is not handed back yet, are less than the rest.
inline constexpr std::size_t max_signal = (64 << 10) + line_bytes;
static_assert(2 * (max_signal + line_bytes) + min_signal_bytes / 4 <= min_signal_bytes);

// Each word has one writer (the producer is the peer of the channel's owner) but for `armed`, which both sides exchange.
// All publishing writes are seq_cst read-modify-writes, so that publish-then-look-at-armed and arm-then-look-at-rings cannot miss
// each other.
struct Control {
  alignas(line_bytes) std::atomic<std::uint32_t> armed;        // 1: the owner sleeps and wants its doorbell rung
  alignas(line_bytes) std::atomic<std::uint64_t> signal_head;  // bytes of the signal ring consumed; published every quarter ring
  alignas(line_bytes) std::atomic<std::uint64_t> bulk_tail;    // slots filled
  alignas(line_bytes) std::atomic<std::uint64_t> bulk_head;    // slots consumed
};
static_assert(sizeof(Control) <= control_bytes && std::atomic<std::uint64_t>::is_always_lock_free);

// Starts every record, at the start of a line. The tag alone says that the record is there: it is the channel's random key plus
// the position, so neither bytes of an earlier lap nor any payload can pass for it, and one line carries flag and payload alike.
struct RecordHeader {
  std::atomic<std::uint64_t> tag;
  std::uint32_t bytes;  // of the payload that follows
  std::uint32_t kind;   // RecordKind
};
static_assert(sizeof(RecordHeader) == 16);

enum class RecordKind : std::uint32_t {
  signal = 0,
  skip = 1,  // nothing until the end of the ring
};

enum class SlotKind : std::uint32_t {
  put = 0,          // pieces: where in the owner's regions the payload goes
  get_request = 1,  // payload: pieces of the owner's regions to send back, in this order
  get_data = 2,     // payload: the next bytes of what `token` asked for, or `code`
  get_stop = 3,     // `token` is not wanted any more
};

// Who may touch a filled slot. The producer publishes `ready`; the consumer takes it (busy) or the producer takes it back
// (revoked).
enum class SlotState : std::uint32_t { empty = 0, ready = 1, busy = 2, revoked = 3 };

struct SlotHeader {
  std::atomic<std::uint32_t> state;    // SlotState
  std::atomic<std::uint32_t> outcome;  // Code, by the consumer before it moves bulk_head past the slot
  std::uint32_t kind;                  // SlotKind
  std::uint32_t pieces;
  std::uint64_t token;      // names a get of the requester
  std::uint32_t bytes;      // of payload
  std::uint32_t code;       // get_data: Code
  std::uint32_t streaming;  // 1: part of an operation large enough for streaming stores
};
static_assert(sizeof(SlotHeader) <= line_bytes);

// Bytes of one region, by its unguessable id.
struct Piece {
  std::uint64_t region;
  std::uint64_t offset;
  std::uint64_t bytes;
};
inline constexpr std::size_t slot_header_bytes = 1024;  // header line, then the table of a put
inline constexpr std::size_t max_put_pieces = (slot_header_bytes - line_bytes) / sizeof(Piece);

// Sizes of one channel. Derived from the ring budget of its owner; the peer learns them with the address and checks them.
struct Sizes {
  std::size_t signal_bytes = 0;  // power of two
  std::size_t slot_bytes = 0;    // whole pages

  [[nodiscard]] std::size_t total() const noexcept { return control_bytes + signal_bytes + slot_count * slot_bytes; }
  [[nodiscard]] std::size_t slot_payload() const noexcept { return slot_bytes - slot_header_bytes; }
  [[nodiscard]] std::size_t max_request_pieces() const noexcept { return slot_payload() / sizeof(Piece); }
  [[nodiscard]] bool valid() const noexcept;
};
inline constexpr std::size_t min_ring_bytes = 384 << 10;
inline constexpr std::size_t max_ring_bytes = 64 << 20;
Sizes sizes_for(std::size_t ring_bytes) noexcept;  // clamped to the bounds above

}  // namespace hmc::shm
