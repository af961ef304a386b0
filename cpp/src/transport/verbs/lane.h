// Lane: a port here and a port of the peer, joined by a connection in each direction, and what is under way between them. A Link
// has one lane or several; which carries what is the Link's affair.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "transport/run_cursor.h"
#include "transport/verbs/queue_pair.h"
#include "transport/verbs/split.h"

namespace hmc::verbs {

// One work request outbound.
struct Record {
  // settle: a byte that goes the other way, behind what a device was given (Link::settle).
  enum class Kind : std::uint8_t { write, read, settle, message } kind = Kind::message;
  std::uint64_t op = 0;         // of a message: the put that it is attached to, if any
  RunPiece piece{};             // of all but messages
  unsigned slot = 0;            // of a message
  std::uint32_t ordinal = 0;    // of what takes a signal's credit: how many had been posted with it
  std::uint32_t immediate = 0;  // of a write with an ordinal: the signal that goes with it
  std::size_t bytes = 0;
};

// Work requests that are posted together.
struct Batch {
  static constexpr unsigned size = 32;
  std::array<ibv_send_wr, size> work;
  std::array<ibv_sge, size> parts;
  unsigned count = 0;
  std::size_t silent = 0;  // bytes since the last that reports
  [[nodiscard]] bool full() const noexcept { return count == size; }
};

// All calls with the engine lock held.
class Lane {
 public:
  // live: it carries. draining: it has failed, and what the peer had sent is being taken. left: nothing of the peer's arrives any
  // more, and the peer has been told. gone: so has the peer told, and what was in doubt is decided. joining: made anew, and nothing
  // has come back over it yet.
  enum class State : std::uint8_t { live, draining, left, gone, joining };

  static constexpr unsigned depth = 256;                      // work requests outbound; a power of two
  static constexpr unsigned data_depth = 192;                 // of these for data, so that messages always find room
  static constexpr std::uint32_t sequence_mask = 0x0FFFFFFF;  // of work requests

  // `id`: the upper bits of the numbers of its work requests. `receives`: that wait inbound at once.
  static Result<std::unique_ptr<Lane>> create(Nic& nic, std::size_t index, std::uint64_t id, unsigned receives);

  Nic& nic;
  const std::size_t index;
  const std::uint64_t id;
  State state = State::live;
  bool has_lived = true;  // else it was made anew, and has carried nothing
  LaneAddress own, peer;
  std::uint32_t rank = 0;  // of the lanes that live, the one of the lowest carries signals; both sides agree
  std::uint16_t life = 0;  // how often it has been made anew
  bool introduced = true;  // the peer's end of this life is known
  unsigned attempts = 0;   // to make it anew, since it lasted
  std::chrono::steady_clock::time_point joined_at = std::chrono::steady_clock::now();
  std::unique_ptr<QueuePair> outbound, inbound;
  std::uint32_t memory_key = 0;  // of the messages' memory
  std::uint32_t sink_key = 0;    // local one, of the sink

  // ---- outbound ----
  bool broken = false;                    // an access error: everything posted comes back, then it starts over
  bool probe = false;                     // something is to be sent, to learn whether the peer lives
  std::deque<Record> again;               // were under way behind the failed one
  std::deque<Record> settles;             // to be posted here and nowhere else
  std::vector<std::uint8_t> to_announce;  // lanes that have been left
  std::uint32_t generation = 0;
  std::uint32_t oldest = 0, next = 0;  // sequences of work requests

  [[nodiscard]] unsigned posted() const noexcept { return (next - oldest) & sequence_mask; }
  [[nodiscard]] Record& record(std::uint32_t sequence) noexcept { return records_[sequence % depth]; }
  [[nodiscard]] bool room_for_data() const noexcept { return data_posted_ < data_depth && bytes_posted_ < window_of(rate_); }
  [[nodiscard]] bool room_for_records() const noexcept { return data_posted_ < data_depth; }
  // The largest piece that leaves room for others beside it.
  [[nodiscard]] std::size_t piece_bytes() const noexcept;
  [[nodiscard]] LaneLoad load(int numa_node) const noexcept;
  [[nodiscard]] bool up() const noexcept { return state == State::live || state == State::joining; }
  // Takes the oldest out of the queue, done or not.
  Record pop();
  void note_posted(const Record& one);
  // What a record held of the queue.
  void forget(const Record& one);
  Status connect_outbound(const Patience& patience);

  // ---- inbound ----
  bool inbound_broken = false;
  bool messages = false;  // posted receives for signals, too
  std::uint32_t inbound_generation = 0;
  unsigned receives_posted = 0;
  std::vector<unsigned> returned;  // slots that came back from a broken queue pair
  bool peer_left = false;
  Status connect_inbound(const Patience& patience);

  // ---- what Link::look() saw last ----
  struct Mark {
    State state = State::live;
    std::uint32_t generation = 0, oldest = 0;
    unsigned receives = 0;
    bool operator==(const Mark&) const = default;
  };
  Mark seen;
  unsigned looks_in_vain = 0;

 private:
  Lane(Nic& card, std::size_t place, std::uint64_t number) noexcept : nic(card), index(place), id(number) {}
  void measure(std::size_t bytes);

  std::array<Record, depth> records_;
  unsigned data_posted_ = 0;
  std::size_t bytes_posted_ = 0;
  double rate_ = 0;
  std::size_t measured_ = 0;  // bytes since then
  std::chrono::steady_clock::time_point since_;
};

}  // namespace hmc::verbs
