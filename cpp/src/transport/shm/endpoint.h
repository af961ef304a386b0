// ShmEndpoint: one peer over shared memory. The transport polls it and keeps it alive while a callback that it made destroys its
// handle.
//
// Three ways to move bytes, chosen per region: the peer's memory mapped here (one copy by us), its address space by system call
// (one copy by the kernel), or the bulk rings (we copy in, the peer copies out; for a get the other way round).
#pragma once

#include <cstdint>
#include <memory>

#include "transport/shm/bulk_transfers.h"
#include "transport/shm/channel_memory.h"
#include "transport/shm/doorbell.h"
#include "transport/shm/operations.h"
#include "transport/shm/peer_memory.h"
#include "transport/shm/region.h"
#include "transport/shm/shared.h"
#include "transport/shm/signals.h"
#include "transport/transport.h"

namespace hmc::shm {

// All calls with the engine lock held.
class ShmEndpoint {
 public:
  static Result<std::shared_ptr<ShmEndpoint>> create(std::shared_ptr<Shared> shared, int pid, EndpointSink& sink);

  // ---- of Endpoint ----
  Result<Blob> address();
  Status connect(const Blob& peer_address, Completion* done);
  static Result<std::unique_ptr<RemoteRegion>> import_region(const Blob& exported);
  Status put(const TransferOp& op, Completion* done) { return post(op, done, true); }
  Status get(const TransferOp& op, Completion* done) { return post(op, done, false); }
  bool put_short(const Run& run, ByteSpan signal);
  Status signal(ByteSpan head, ByteSpan body);
  Status flush(Completion* done);
  Status cancel(Completion* done);
  void receive_rest();
  // What the ring holds has left: the ring outlives this process.
  [[nodiscard]] bool has_unsent() const noexcept { return signals_.holds_back(); }
  // Ends pending operations with `closed`. The sink is not called any more.
  void close();

  // ---- of the transport ----
  [[nodiscard]] bool closed() const noexcept { return closed_; }
  // Has poll() something to look at? The whole cost of an idle peer: two lines that only the peer writes.
  [[nodiscard]] bool active() const noexcept { return ready_ && (signals_.ready() || bulk_.ready() || busy()); }
  // Takes what it copies off `budget`. True if anything moved.
  bool poll(std::size_t& budget);
  [[nodiscard]] bool busy() const noexcept { return !operations_.empty() || signals_.waits() || bulk_.busy(); }
  // Asks the peer to ring; false: there is something to do already.
  bool arm();
  void disarm() noexcept;

 private:
  ShmEndpoint(std::shared_ptr<Shared> shared, int pid, EndpointSink& sink) noexcept
      : shared_(std::move(shared)), pid_(pid), sink_(&sink), bulk_(shared_->regions) {}

  void fail(const Status& reason);
  bool drain_bulk(std::size_t& budget);

  // endpoint_operations.cc
  Status post(const TransferOp& op, Completion* done, bool is_put);
  std::size_t move(Operation& op, std::size_t budget);
  void after_move(Operation& op);
  bool advance(std::size_t& budget);

  const std::shared_ptr<Shared> shared_;
  const int pid_;
  EndpointSink* const sink_;
  bool ready_ = false;
  bool closed_ = false;
  bool serve_first_ = false;
  Status failure_{Code::invalid_argument, "the shm endpoint is not connected yet"};  // unless ready: why nothing can be posted
  std::uint64_t key_ = 0;
  ChannelMemory in_;
  ChannelMemory out_;
  Doorbell doorbell_;
  Signals signals_;
  BulkTransfers bulk_;
  PeerMemory peer_memory_;
  Operations operations_;
};

}  // namespace hmc::shm
