// Bootstrap: how the processes of a job meet. Process 0 keeps a board; everybody puts a value under its number for a round, and
// gets everybody's once all have come. O(n) messages, no connections but to process 0.
//
// Control messages: arrive (job::Arrival) to process 0, which answers each with gathered (job::Gathered).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collective/records.h"
#include "comm/context_state.h"
#include "progress/engine.h"

namespace hmc {

inline constexpr MessageType control_arrive = 200;
inline constexpr MessageType control_gathered = 201;

class Bootstrap : public std::enable_shared_from_this<Bootstrap> {
 public:
  // `who` of `size`; process 0 keeps the board.
  Bootstrap(ContextState& context, std::uint32_t who, std::uint32_t size);

  // ---- engine lock not held ----
  // Puts `value` for `round` and waits for everybody's; index is the process number. `board`: the peer that is process 0, null
  // there. Errors: timeout (names who is missing), invalid_argument (number taken, sizes differ), peer_lost, would_block: the board
  // belongs to a job that is complete already; try again.
  Result<std::vector<Bytes>> gather(std::uint32_t round, Bytes value, const std::shared_ptr<PeerState>& board, Deadline deadline);

  // ---- engine lock held ----
  bool on_message(PeerState& peer, MessageType type, ByteSpan payload);  // false: not one of its messages
  void on_peer_gone(PeerState& peer, const Status& reason);

 private:
  struct Arrival {
    bool here = false;
    bool gave_up = false;             // came, and its deadline passed
    std::shared_ptr<PeerState> peer;  // null: this process
    Bytes value;
    Engine::TimerId timer = 0;  // when its sender gives up
  };
  struct Round {
    std::vector<Arrival> arrivals;  // by process number, once this round has begun
    std::uint32_t count = 0;
    bool complete = false;
    Status failure;  // of the whole job
  };

  void on_arrive(PeerState& peer, ByteSpan payload);
  void on_gathered(PeerState& peer, ByteSpan payload);
  void arrive_here(std::uint32_t round, Bytes value);
  void give_up_on(std::uint32_t round, std::uint32_t who);
  void settle(std::uint32_t round);
  void fail(std::uint32_t round, const Status& reason);
  void refuse(PeerState& peer, std::uint32_t round, const Status& reason);
  [[nodiscard]] std::string missing(std::uint32_t round) const;
  Result<std::vector<Bytes>> gather_here(std::uint32_t round, Bytes value, Deadline deadline);
  Result<std::vector<Bytes>> gather_there(std::uint32_t round, const Bytes& value, PeerState& board, Deadline deadline);

  ContextState& context_;
  const std::uint32_t who_;
  const std::uint32_t size_;
  Round rounds_[bootstrap_rounds];  // process 0

  // Elsewhere: the answer waited for.
  std::shared_ptr<PeerState> board_;
  std::uint32_t asked_ = 0;
  bool answered_ = false;
  Status answer_;
  Status later_rounds_failure_;  // process 0 said so, or is gone
  std::vector<Bytes> gathered_;
};

}  // namespace hmc
