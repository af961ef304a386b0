// Rail: a port here and a port of the peer, joined by a connection in each direction, and what is in flight between them. An
// endpoint has one rail or several, and decides which carries what.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "transport/run_cursor.h"
#include "transport/verbs/messages.h"
#include "transport/verbs/queue_pair.h"
#include "transport/verbs/rate.h"
#include "transport/verbs/split.h"

namespace hmc::verbs {

// One work request outbound.
struct Record {
  // settle_put, settle_get: a byte that goes the other way, behind what a device was given (Transfers::settle).
  enum class Kind : std::uint8_t { write, read, settle_put, settle_get, message } kind = Kind::message;
  std::uint64_t op = 0;         // of a message: the put that it is attached to, if any
  RunPiece piece{};             // of all but messages
  unsigned slot = 0;            // of a message
  std::uint32_t ordinal = 0;    // of what takes a signal's credit: how many had been posted with it
  std::uint32_t immediate = 0;  // of a write with an ordinal: the signal that goes with it
  std::size_t bytes = 0;
  [[nodiscard]] bool settles() const noexcept { return kind == Kind::settle_put || kind == Kind::settle_get; }
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

// SendQueue: the requester's queue pair of a rail, its work requests in flight, and what is to be posted on this rail alone. Its
// Rail owns it. Engine lock held.
class SendQueue {
 public:
  static constexpr unsigned depth = 256;                      // work requests; a power of two
  static constexpr unsigned data_depth = 192;                 // of these for data, so that messages always find room
  static constexpr std::uint32_t sequence_mask = 0x0FFFFFFF;  // of work requests

  explicit SendQueue(const Nic& nic) noexcept;

  std::unique_ptr<QueuePair> pair;
  bool broken = false;                    // an access error: everything posted comes back, then it starts over
  bool probe = false;                     // something is to be sent, to learn whether the peer lives
  std::deque<Record> again;               // were in flight behind the failed one
  std::deque<Record> settles;             // to be posted here and nowhere else
  std::vector<std::uint8_t> to_announce;  // rails that have been left
  std::uint32_t generation = 0;
  std::uint32_t oldest = 0, next = 0;  // sequences of work requests

  [[nodiscard]] bool waits() const noexcept { return probe || !again.empty() || !settles.empty() || !to_announce.empty(); }
  // A signal that has not been executed, as far as is known here.
  [[nodiscard]] bool holds_signal() const noexcept;
  [[nodiscard]] unsigned posted() const noexcept { return (next - oldest) & sequence_mask; }
  [[nodiscard]] bool full() const noexcept { return posted() == depth; }
  [[nodiscard]] Record& record(std::uint32_t sequence) noexcept { return records_[sequence % depth]; }
  [[nodiscard]] bool room_for_records() const noexcept { return data_posted_ < data_depth; }
  [[nodiscard]] bool room_for_data() const noexcept { return room_for_records() && rate_.in_flight() < window_of(rate_.rate()); }
  // The largest piece that leaves room for others beside it.
  [[nodiscard]] std::size_t piece_bytes() const noexcept;
  [[nodiscard]] RailLoad load(bool near) const noexcept { return {rate_.rate(), rate_.in_flight(), near, passed_over_}; }
  // Takes the oldest out. `executed`: else it came back without effect.
  Record retire(bool executed);
  void note_posted(const Record& one);
  // Other rails have carried bytes of large operations since this one last carried a piece.
  void passed_over(std::size_t bytes) noexcept { passed_over_ += bytes; }

 private:
  const std::size_t max_message_;
  std::array<Record, depth> records_;
  unsigned data_posted_ = 0;
  RateEstimate rate_;
  std::size_t passed_over_ = 0;
};

// ReceiveQueue: the target's queue pair of a rail, and the slots posted to it. Its Rail owns it. Engine lock held.
struct ReceiveQueue {
  std::unique_ptr<QueuePair> pair;
  bool broken = false;
  bool messages = false;  // posted receives for signals, too
  std::uint32_t generation = 0;
  unsigned posted = 0;
  std::vector<unsigned> returned;  // slots that came back from a broken queue pair
};

// All calls with the engine lock held.
class Rail {
 public:
  // live: it carries. draining: it has failed, and what the peer had sent is being taken. left: nothing of the peer's arrives any
  // more, and the peer has been told. gone: so has the peer told, and what was in doubt is decided. offered: reconnecting, and the
  // peer's end is not known. joining: it is, and nothing has come back over it yet.
  enum class State : std::uint8_t { live, draining, left, gone, offered, joining };

  static constexpr std::uint64_t receive_bit = 0x80000000;  // in the number of a work request
  static constexpr unsigned index_shift = 28;

  // `id`: the upper bits of the numbers of its work requests. `receives`: that wait inbound at once.
  static Result<std::unique_ptr<Rail>> create(Nic& nic, std::uint64_t id, unsigned receives);
  // This end of the next life of one that is gone.
  static Result<std::unique_ptr<Rail>> renew(const Rail& gone, std::uint16_t life, std::uint32_t rank, unsigned receives);

  Nic& nic;
  const std::uint64_t id;
  State state = State::live;
  RailAddress own, peer;
  MessageKeys keys;
  std::uint32_t rank = 0;  // of the rails that live, the one of the lowest carries signals; both sides agree
  std::uint16_t life = 0;  // how often it has been reconnected
  unsigned attempts = 0;   // to reconnect it, since it lasted
  std::optional<std::chrono::steady_clock::time_point> joined_at = std::chrono::steady_clock::now();  // none: not in this life
  bool peer_left = false;
  SendQueue out;
  ReceiveQueue in;
  // What RailKeeper::look() saw last.
  struct Look {
    State state = State::live;
    std::uint32_t generation = 0, oldest = 0;
    unsigned receives = 0;
    unsigned in_vain = 0;
    bool operator==(const Look&) const = default;
  };
  Look look;

  // What the number of a work request, or `id`, says.
  static std::uint32_t link_of(std::uint64_t number) noexcept { return static_cast<std::uint32_t>(number >> 32); }
  static std::size_t index_of(std::uint64_t number) noexcept { return number >> index_shift & (max_rails - 1); }

  [[nodiscard]] std::size_t index() const noexcept { return index_of(id); }
  [[nodiscard]] std::uint32_t bit() const noexcept { return 1U << index(); }
  [[nodiscard]] bool live() const noexcept { return state == State::live; }
  [[nodiscard]] bool up() const noexcept { return live() || state == State::offered || state == State::joining; }
  [[nodiscard]] RailLoad load(int numa_node) const noexcept {
    return out.load(numa_node < 0 || nic.numa_node() < 0 || nic.numa_node() == numa_node);
  }
  // Adds a work request to a batch of this rail.
  void add(Batch& batch, const Record& one, const MessageMemory& memory);
  Status submit(Batch& batch);
  Status post_receive(unsigned slot, const MessageMemory& memory);
  // The slot of a receive's completion. None: it is of a former life.
  [[nodiscard]] std::optional<unsigned> slot_of(const ibv_wc& completion) const noexcept;
  Status connect_outbound(const Patience& patience);
  Status connect_inbound(const Patience& patience);
  Status connect(const Patience& patience);  // both
  // Nothing of it is read or written afterwards.
  void stop();

 private:
  Rail(Nic& card, std::uint64_t number) noexcept : nic(card), id(number), out(card) {}
};

// Rails: those of one endpoint, by index. Engine lock held.
class Rails {
 public:
  [[nodiscard]] auto begin() const noexcept { return all_.begin(); }
  [[nodiscard]] auto end() const noexcept { return all_.end(); }
  [[nodiscard]] std::size_t size() const noexcept { return all_.size(); }
  [[nodiscard]] Rail& operator[](std::size_t index) const noexcept { return *all_[index]; }
  void add(std::unique_ptr<Rail> rail) { all_.push_back(std::move(rail)); }
  void replace(std::unique_ptr<Rail> rail) { std::swap(all_[rail->index()], rail); }
  void keep(std::size_t count) {
    if (size() > count) all_.resize(count);
  }

  [[nodiscard]] std::size_t live() const noexcept;
  [[nodiscard]] Rail* first_live() const noexcept;
  // The one that carries signals. Null: it is on its way out.
  [[nodiscard]] Rail* for_messages() const noexcept;
  // To be told on every rail that lives, for any of them may fail.
  void announce(const Rail& rail);
  // Should `rail` take the next bytes of an operation? See takes_chunk().
  [[nodiscard]] bool takes(const Rail& rail, int numa_node, std::size_t left) const;

 private:
  std::vector<std::unique_ptr<Rail>> all_;
};

}  // namespace hmc::verbs
