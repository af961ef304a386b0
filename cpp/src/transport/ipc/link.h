// Link: the working half of an ipc endpoint. The transport polls it and keeps it alive while a callback that it made destroys the
// endpoint.
//
// A device here copies what it reaches (link.cc). Where the memory here is the CPU's, the peer is asked to copy, by its device
// (link_asks.cc), and a Server does the same for the peer.
#pragma once

#include <array>
#include <deque>
#include <list>
#include <map>
#include <memory>

#include "transport/carrier.h"
#include "transport/device_copies.h"
#include "transport/ipc/announced.h"
#include "transport/ipc/host_region.h"
#include "transport/ipc/messages.h"
#include "transport/ipc/region.h"
#include "transport/ipc/server.h"

namespace hmc::ipc {

// All calls with the engine lock held.
class Link final : private CarrierLink::Owner, private Announcer {
 public:
  static Result<std::shared_ptr<Link>> create(std::shared_ptr<Shared> shared, const Carriers& carriers, const PeerDomain& peer,
                                              EndpointSink& sink);

  Result<Blob> address();
  Status connect(const Blob& address, Completion* done);
  Result<std::unique_ptr<RemoteRegion>> import_region(const Blob& exported);
  Result<Blob> describe(LocalRegion& region);
  Status put(const TransferOp& op, Completion* done) { return post(op, done, true); }
  Status get(const TransferOp& op, Completion* done) { return post(op, done, false); }
  Status signal(ByteSpan head, ByteSpan body) { return waiting_.empty() ? carrier_->signal_user(head, body) : would_block(); }
  Status flush(Completion* done);
  Status cancel(Completion* done);
  void close();

  [[nodiscard]] bool closed() const noexcept { return closed_; }
  // Something that no signal of the peer will bring on by itself.
  [[nodiscard]] bool busy() const noexcept;
  bool poll();

 private:
  struct Op {
    Completion* done = nullptr;
    std::uint64_t number = 0;  // order of posting
    bool is_put = true;
    RunCursor cursor;
    const StreamPoint* after = nullptr;
    DeviceCopies copies;
    DeviceRuntime* runtime = nullptr;
    std::uint32_t asks = 0;  // not answered yet
    bool begun = false;
    Bytes signal;  // empty too where it went with an ask
  };
  struct Flush {
    std::uint64_t before;
    Completion* done;
  };

  Link(std::shared_ptr<Shared> shared, DescriptorChannel channel, EndpointSink& sink);
  static Status would_block() { return {Code::would_block, "attached signals wait for room"}; }
  Status post(const TransferOp& op, Completion* done, bool is_put);
  static Result<DeviceCopies::Ends> ends_of(const Run& run, bool is_put);
  bool advance(Op& op);
  [[nodiscard]] bool waits_for_peer(Op& op) const;
  void finish(std::unique_ptr<Op> op, Status status);
  void send_waiting();
  void end_flushes();
  // Neither side copies any more; the operations are the caller's to complete.
  std::list<std::unique_ptr<Op>> stop();

  // ---- link_announce.cc ----
  Result<std::uint64_t> announce(const HostRegion& region, bool to_write);
  void forget(const LocalRegion& region) override;
  void forget(std::uint64_t memory);
  // Pieces of memory that holds messages, known to the peer.
  struct Held {
    std::unique_ptr<HeldChunks> chunks;
    std::uint64_t id = 0;
  };
  Result<const Held*> hold(const DeviceSpan& span);

  // ---- link_asks.cc ----
  Status ask(Op& op);
  Status on_message(Message message);
  bool serve();

  void on_user_signal(ByteSpan signal) override { sink_->on_signal(signal); }
  void on_own_signal(ByteSpan signal) override;
  void on_carrier_failed(const Status& reason) override;

  const std::shared_ptr<Shared> shared_;
  EndpointSink* sink_;
  std::unique_ptr<CarrierLink> carrier_;
  bool stopped_ = false;  // closed, or the carrier has failed
  bool closed_ = false;
  std::size_t max_ask_ = 0;  // bytes
  DescriptorChannel channel_;
  AnnouncedTable memories_;  // of the peer
  Server server_;
  struct Announced {
    std::uint64_t id = 0;
    Access access = Access::read;
  };
  std::map<const LocalRegion*, Announced> announced_;
  std::deque<Held> held_;  // the latest last
  std::uint64_t last_memory_ = 0;
  std::array<Op*, max_asks> asks_{};  // by number; null: free
  std::uint32_t free_asks_ = max_asks;
  std::deque<Bytes> outbox_;  // answers and the like that met a full carrier
  std::list<std::unique_ptr<Op>> ops_;
  const std::shared_ptr<MappingCache> messages_ = std::make_shared<MappingCache>();
  std::deque<Bytes> waiting_;  // attached signals that met a full carrier
  std::deque<Flush> flushes_;
  std::uint64_t last_number_ = 0;
};

}  // namespace hmc::ipc
