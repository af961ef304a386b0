// Link: the working half of a shm endpoint. The transport polls it and keeps it alive while a callback that it made destroys the
// endpoint.
//
// Four ways to move bytes, chosen per region: the peer's memory mapped here (one copy by us), its address space by system call (one
// copy by the kernel), or the shared ring (we copy in, the peer copies out; for a get the other way round).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "progress/engine.h"
#include "transport/copy.h"
#include "transport/run_cursor.h"
#include "transport/shm/bulk_ring.h"
#include "transport/shm/channel_memory.h"
#include "transport/shm/layout.h"
#include "transport/shm/peer_memory.h"
#include "transport/shm/region.h"
#include "transport/shm/signal_ring.h"
#include "transport/transport.h"

namespace hmc::shm {

// What the links of one transport share. Outlives the transport while links do.
struct Shared {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<RegionTable> regions = std::make_shared<RegionTable>();
  Sizes sizes;
  bool ptrace_wanted = true;                   // HMC_SHM_PTRACE
  bool ptrace_refused = false;                 // the last peer that was tried could not be read
  std::uint64_t probe_word = 0;                // random; peers read it to prove that they can
  std::array<std::byte, max_signal> incoming;  // the signal being delivered, out of its sender's reach
};

// What address() says, beside the ring's memfd and the doorbell.
struct AddressInfo {
  std::uint64_t key = 0;  // of the signal ring's tags
  Sizes sizes;
  std::uint64_t probe_address = 0;
  std::uint64_t probe_word = 0;
};
void encode_address(const AddressInfo& info, Bytes& out);
Result<AddressInfo> decode_address(ByteSpan bytes);  // errors: protocol

// All calls with the engine lock held.
class Link {
 public:
  static Result<std::shared_ptr<Link>> create(std::shared_ptr<Shared> shared, int pid, EndpointSink& sink);

  // ---- of Endpoint ----
  Result<Blob> address();
  Status connect(const Blob& peer_address);
  Status put(const TransferOp& op, Completion* done) { return post(op, done, true); }
  Status get(const TransferOp& op, Completion* done) { return post(op, done, false); }
  bool put_short(const Run& run, ByteSpan signal);
  Status signal(ByteSpan head, ByteSpan body);
  Status flush(Completion* done);
  Status cancel(Completion* done);
  // Ends pending operations with `closed`. The sink is not called any more.
  void close();

  // ---- of the transport ----
  [[nodiscard]] bool closed() const noexcept { return closed_; }
  // Has poll() something to look at? The whole cost of an idle peer: two lines that only the peer writes.
  [[nodiscard]] bool active() const noexcept { return ready_ && (signals_in_.ready() || bulk_in_.ready() || busy()); }
  // Takes what it copies off `budget`. True if anything moved.
  bool poll(std::size_t& budget);
  // Asks the peer to ring; false: there is something to do already.
  [[nodiscard]] bool busy() const noexcept {
    return !ops_.empty() || !waiting_signals_.empty() || !serving_.empty() || !stops_.empty() || blocked_ || bulk_out_.in_flight();
  }
  bool arm();
  void disarm() noexcept;

 private:
  // One put or get that did not end in its post.
  struct Op {
    RunCursor cursor;
    Completion* done = nullptr;  // null once told (a put at level local whose chunks are not acknowledged yet)
    std::uint64_t number = 0;    // order of posting; names a get to the peer
    std::size_t bytes = 0;
    std::size_t moved = 0;
    CopyKind kind = CopyKind::cached;
    Complete level = Complete::remote;
    bool is_put = true;
    unsigned in_flight = 0;      // slots filled and not acknowledged
    std::uint64_t awaiting = 0;  // bytes of a get asked for and not here yet
    Status failure;
    Bytes signal;
  };
  struct SlotUse {
    std::uint64_t op = 0;  // 0: none (a request, a reply, a revoked chunk)
    RunCursor start;       // where the chunk began
    std::size_t bytes = 0;
  };
  // A peer's get through the ring.
  struct Serving {
    std::uint64_t token = 0;
    std::vector<Piece> pieces;
    std::size_t index = 0;
    std::uint64_t done = 0;  // bytes of the piece sent
    bool streaming = false;
  };
  struct Flush {
    std::uint64_t before;
    Completion* done;
  };

  // The peer rings it while this side sleeps. A datagram socket: every call on one can be told not to block, whatever the peer
  // makes of the descriptor's flags, and what the peer does to its end does not make this one readable for good.
  struct Bell final : FdHandler {
    Status open();
    void on_ready(std::uint32_t events) override;
    UniqueFd ours, peers;
    bool watched = false;
  };

  Link(std::shared_ptr<Shared> shared, int pid, EndpointSink& sink) noexcept
      : shared_(std::move(shared)), pid_(pid), sink_(&sink) {}

  // link.cc
  Status not_ready() const;
  void fail(const Status& reason);
  void end_all(const Status& reason);
  void ring_doorbell() noexcept;
  void ring_peer() noexcept {
    if (out_.control().armed.load(std::memory_order_seq_cst) != 0) [[unlikely]]
      ring_doorbell();
  }
  [[nodiscard]] bool can_request() const noexcept;
  [[nodiscard]] bool can_work();
  bool drain_signals(std::size_t& budget);
  void send_attached(ByteSpan signal);
  bool send_waiting();

  // link_ops.cc
  Status post(const TransferOp& op, Completion* done, bool is_put);
  std::size_t move(Op& op, std::size_t budget);
  std::size_t move_vm(Op& op, std::size_t budget);
  [[nodiscard]] bool uses_ring(const RunCursor& cursor) const noexcept;
  static bool ended(const Op& op) noexcept;
  void after_move(Op& op);
  void finish(std::unique_ptr<Op> op);
  void end_flushes();
  bool advance_ops(std::size_t& budget);
  bool revoke_chunks(Op& op);

  // link_bulk.cc
  std::size_t fill_put(Op& op, std::size_t budget);
  void request(Op& op);
  bool take_acks();
  bool send_stops();
  bool serve(std::size_t& budget);
  bool drain_bulk(std::size_t& budget);
  Code land_put(const SlotInfo& info);
  Status accept_request(const SlotInfo& info);
  Status land_data(const SlotInfo& info);
  // The region of a peer's request if it may touch those bytes so.
  Code find(const Piece& piece, bool write, std::byte*& data) const;
  void publish(const SlotInfo& info, const SlotUse& use);

  std::shared_ptr<Shared> shared_;
  int pid_;
  EndpointSink* sink_;
  bool ready_ = false;
  bool closed_ = false;
  bool blocked_ = false;           // a signal() met a full ring
  std::size_t blocked_bytes_ = 0;  // of that signal
  Status failure_;

  std::uint64_t key_ = 0;
  ChannelMemory in_;
  ChannelMemory out_;
  Bell bell_;          // of this side
  UniqueFd doorbell_;  // the peer's
  SignalConsumer signals_in_;
  SignalProducer signals_out_;
  BulkConsumer bulk_in_;
  BulkProducer bulk_out_;
  PeerMemory peer_memory_;

  std::map<std::uint64_t, std::unique_ptr<Op>> ops_;  // by number: in order of posting
  std::uint64_t last_number_ = 0;
  std::uint64_t last_served_ = 0;
  unsigned requests_out_ = 0;
  std::array<SlotUse, slot_count> uses_;
  std::vector<std::uint64_t> stops_;  // gets to tell the peer that they were cancelled
  std::deque<Serving> serving_;
  bool serve_first_ = false;
  std::deque<Bytes> waiting_signals_;  // attached ones whose data is in place but that met a full ring
  std::deque<Flush> flushes_;
  Status late_failure_;  // of a put after it was told done at level local: the next flush reports it
};

}  // namespace hmc::shm
