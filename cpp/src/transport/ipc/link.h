// Link: the working half of an ipc endpoint. The transport polls it and keeps it alive while a callback that it made destroys the
// endpoint.
#pragma once

#include <deque>
#include <list>
#include <memory>

#include "transport/carrier.h"
#include "transport/device_copies.h"
#include "transport/ipc/region.h"

namespace hmc::ipc {

// All calls with the engine lock held.
class Link final : private CarrierLink::Owner {
 public:
  static Result<std::shared_ptr<Link>> create(const Carriers& carriers, const PeerDomain& peer, std::shared_ptr<Engine> engine,
                                              EndpointSink& sink);

  Result<Blob> address() { return carrier_->address({}); }
  Status connect(const Blob& address, Completion* done) { return carrier_->connect(address, done).status(); }
  Result<std::unique_ptr<RemoteRegion>> import_region(const Blob& exported) {
    return ImportedRegion::import(exported, {messages_, engine_});
  }
  Status put(const TransferOp& op, Completion* done) { return post(op, done, true); }
  Status get(const TransferOp& op, Completion* done) { return post(op, done, false); }
  Status signal(ByteSpan head, ByteSpan body) { return waiting_.empty() ? carrier_->signal_user(head, body) : would_block(); }
  Status flush(Completion* done);
  void close();

  [[nodiscard]] bool closed() const noexcept { return closed_; }
  [[nodiscard]] bool busy() const noexcept { return !ops_.empty() || !waiting_.empty(); }
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
    Bytes signal;
  };
  struct Flush {
    std::uint64_t before;
    Completion* done;
  };

  Link(std::shared_ptr<Engine> engine, EndpointSink& sink) noexcept : engine_(std::move(engine)), sink_(&sink) {}
  static Status would_block() { return {Code::would_block, "attached signals wait for room"}; }
  Status post(const TransferOp& op, Completion* done, bool is_put);
  static Result<DeviceCopies::Ends> ends_of(const Run& run, bool is_put);
  static bool advance(Op& op);
  void finish(std::unique_ptr<Op> op, Status status);
  void send_waiting();
  void end_flushes();
  void see_out(Op& op);

  void on_user_signal(ByteSpan signal) override { sink_->on_signal(signal); }
  void on_own_signal(ByteSpan signal) override;
  void on_carrier_failed(const Status& reason) override;

  const std::shared_ptr<Engine> engine_;
  EndpointSink* sink_;
  std::unique_ptr<CarrierLink> carrier_;
  bool closed_ = false;
  std::list<std::unique_ptr<Op>> ops_;
  const std::shared_ptr<MappingCache> messages_ = std::make_shared<MappingCache>();
  std::deque<Bytes> waiting_;  // attached signals that met a full carrier
  std::deque<Flush> flushes_;
  std::uint64_t last_number_ = 0;
};

}  // namespace hmc::ipc
