// BulkTransfers: bytes of puts and gets through the bulk rings of one endpoint, where the peer's memory can be neither mapped nor
// reached by system call. The producer copies in, the consumer copies out.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "transport/shm/bulk_ring.h"
#include "transport/shm/channel_memory.h"
#include "transport/shm/doorbell.h"
#include "transport/shm/operation.h"
#include "transport/shm/peer_memory.h"
#include "transport/shm/region.h"

namespace hmc::shm {

// All calls with the engine lock held. None completes an operation: the caller looks whether it has ended.
class BulkTransfers {
 public:
  enum class Acknowledged : std::uint8_t { none, slot, broken };

  explicit BulkTransfers(std::shared_ptr<RegionTable> regions) noexcept : regions_(std::move(regions)) {}
  // The arguments outlive this, or are not used after clear().
  void connect(const ChannelMemory& in, ChannelMemory& out, Doorbell& doorbell);
  [[nodiscard]] bool busy() const noexcept { return !serving_.empty() || !stops_.empty() || producer_.in_flight(); }
  // Something to consume, acknowledge or send.
  [[nodiscard]] bool can_work() const noexcept;
  void clear() noexcept;

  // ---- own operations ----
  Status reserve() { return out_->reserve_slots(); }
  [[nodiscard]] bool can_move(const Operation& op) const noexcept { return op.is_put ? producer_.has_free() : can_request(); }
  // Fills one slot with the next bytes of a put, up to a run that goes another way. Returns bytes.
  std::size_t fill_put(Operation& op, std::size_t budget, const PeerMemory& other);
  // Asks the peer for the next pieces of a get, which arrive at the cursor.
  void request(Operation& op, const PeerMemory& other);
  // The next slot that the peer is done with: the number of its operation (0: none) and what came of it.
  Acknowledged take_ack(std::uint64_t& operation, Code& outcome) noexcept;
  // Withdraws every chunk of a put that the peer has not begun to copy. False when it is copying one: what was withdrawn is sent
  // again.
  bool revoke(Operation& op) noexcept;
  void stop_get(const Operation& op);  // cancelled: tells the peer
  bool send_stops();                   // true if any went

  // ---- the peer's ----
  [[nodiscard]] bool ready() const noexcept { return consumer_.ready(); }
  // The next chunk; land it, then finish().
  BulkConsumer::Next take(SlotInfo& info, bool& skipped) noexcept;
  // Any but get_data: `outcome` is what the peer is told. Errors: protocol.
  Status land(const SlotInfo& info, Code& outcome);
  // The next bytes of a get. Errors: protocol.
  Status land_data(const SlotInfo& info, Operation& op);
  void finish(Code outcome) noexcept {
    consumer_.finish(outcome);
    doorbell_->ring();
  }
  // Answers one chunk of a peer's get per free slot; takes it off `budget`. True if anything went.
  bool serve(std::size_t& budget);

 private:
  struct SlotUse {
    std::uint64_t op = 0;  // 0: none (a request, a reply, a revoked chunk)
    RunCursor start;       // where the chunk began
    std::size_t bytes = 0;
  };
  // A peer's get.
  struct Serving {
    std::uint64_t token = 0;
    std::vector<Piece> pieces;
    std::size_t index = 0;
    std::uint64_t done = 0;  // bytes of the piece sent
    bool streaming = false;
  };

  [[nodiscard]] bool can_request() const noexcept;
  Code land_put(const SlotInfo& info);
  Status accept_request(const SlotInfo& info);
  // The region of a peer's request if it may touch those bytes so.
  Code find(const Piece& piece, bool write, std::byte*& data) const;
  void publish(const SlotInfo& info, const SlotUse& use);

  const std::shared_ptr<RegionTable> regions_;
  ChannelMemory* out_ = nullptr;
  Doorbell* doorbell_ = nullptr;
  BulkConsumer consumer_;
  BulkProducer producer_;
  std::array<SlotUse, slot_count> uses_;
  unsigned requests_out_ = 0;
  std::vector<std::uint64_t> stops_;  // gets to tell the peer that they were cancelled
  std::deque<Serving> serving_;
};

}  // namespace hmc::shm
