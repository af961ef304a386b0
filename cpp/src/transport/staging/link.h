// Link: the working half of a staging endpoint. The transport polls it and keeps it alive while a callback that it made destroys
// the endpoint.
//
// Whoever starts an operation moves it through its own ring, chunk by chunk: a put loads a slot from local memory and the peer
// unloads it, a get has the peer load it and unloads it here. Loading, carrying and unloading of different slots overlap.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "transport/carrier.h"
#include "transport/run_cursor.h"
#include "transport/staging/messages.h"
#include "transport/staging/parcel.h"
#include "transport/staging/region.h"
#include "transport/staging/ring.h"
#include "transport/staging/server.h"

namespace hmc::staging {

struct Options {
  Geometry geometry;
  bool share = true;  // map each other's ring where that can be
};

// All calls with the engine lock held.
class Link final : private CarrierLink::Owner, private Completion {
 public:
  static Result<std::shared_ptr<Link>> create(std::shared_ptr<Shared> shared, const Carriers& carriers, const PeerDomain& peer,
                                              const Options& options, EndpointSink& sink);

  Result<Blob> address();
  Status connect(const Blob& address, Completion* done);
  Status put(const TransferOp& op, Completion* done) { return post(op, done, true); }
  Status get(const TransferOp& op, Completion* done) { return post(op, done, false); }
  Status signal(ByteSpan head, ByteSpan body);
  Status flush(Completion* done);
  Status cancel(Completion* done);
  void close();

  [[nodiscard]] bool closed() const noexcept { return closed_; }
  // Something that no signal of the peer will bring on by itself.
  [[nodiscard]] bool busy() const noexcept;
  bool poll();

 private:
  struct Op {
    RunCursor cursor;
    Completion* done = nullptr;
    std::uint64_t number = 0;  // order of posting
    std::size_t bytes = 0;
    bool is_put = true;
    const StreamPoint* after = nullptr;
    std::uint32_t slots = 0;  // in use
    bool begun = false;
    Status failure;
    Bytes signal;
  };
  enum class State : std::uint8_t { free, loading, loaded, sent, unloading };
  struct Slot {
    State state = State::free;
    Op* op = nullptr;
    PieceCopies copies;
    Parcel parcel;
    Bytes message;
  };
  struct Flush {
    std::uint64_t before;
    Completion* done;
  };

  Link(std::shared_ptr<Shared> shared, const Geometry& geometry, EndpointSink& sink);
  Status not_ready() const;
  Status post(const TransferOp& op, Completion* done, bool is_put);
  [[nodiscard]] bool can_send() const noexcept { return own_shared_ || peer_mirror_ != nullptr; }
  bool begin_chunks();
  void begin_chunk(std::uint32_t slot, Op& op);
  bool advance(std::uint32_t slot);
  void slot_over(Slot& slot);
  bool end_ops();
  void end_flushes();
  void send_waiting();
  void end_everything(const Status& reason);
  void send_rings();
  void on_rings(const Rings& rings);

  void complete(Status status) noexcept override;  // the carrier is connected
  void on_user_signal(ByteSpan signal) override { sink_->on_signal(signal); }
  void on_own_signal(ByteSpan signal) override;
  void on_carrier_failed(const Status& reason) override;
  void on_finished(const Finished& finished);

  const std::shared_ptr<Shared> shared_;
  const Geometry geometry_;
  EndpointSink* sink_;
  bool ready_ = false;
  bool closed_ = false;
  Completion* connecting_ = nullptr;
  std::optional<Status> carrier_outcome_;  // of its connecting, until ours is done

  std::unique_ptr<Ring> ring_;
  bool own_shared_ = false;                    // the peer maps ring_
  std::unique_ptr<LocalRegion> ring_region_;   // of ring_, where it is carried
  std::unique_ptr<RemoteRegion> peer_mirror_;  // of ring_ at the peer
  Server server_;                              // the peer's operations
  std::vector<std::unique_ptr<Slot>> slots_;
  std::list<std::unique_ptr<Op>> ops_;
  std::deque<Bytes> waiting_;  // attached signals that met a full carrier
  std::deque<Flush> flushes_;
  std::uint64_t last_number_ = 0;
  std::unique_ptr<CarrierLink> carrier_;  // first to go
};

}  // namespace hmc::staging
