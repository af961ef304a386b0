// local: between memories of one Context. The peer is the process itself: regions are found by number, a put is a copy.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "transport/copy.h"
#include "transport/run_cursor.h"
#include "transport/transport.h"

namespace hmc::local {

class LocalTransport;

class Region final : public LocalRegion {
 public:
  Region(LocalTransport& transport, std::uint64_t id, RegionView view);
  ~Region() override;
  Result<Blob> exported() override;

 private:
  LocalTransport& transport_;
  std::uint64_t id_;
};

// The same memory seen as a peer's. Looked up at every use: a region that was destroyed is refused, not written.
class RegionReference final : public RemoteRegion {
 public:
  RegionReference(std::uint64_t number, std::size_t bytes) noexcept : RemoteRegion(bytes), id(number) {}
  const std::uint64_t id;
};

class LoopEndpoint final : public Endpoint {
 public:
  LoopEndpoint(LocalTransport& transport, EndpointSink& sink);
  ~LoopEndpoint() override;
  Result<Blob> address() override;
  Status connect(const Blob& peer_address, Completion* done) override;
  Result<std::unique_ptr<RemoteRegion>> import_region(const Blob& exported) override;
  Status put(const TransferOp& op, Completion* done) override { return post(op, done, true); }
  Status get(const TransferOp& op, Completion* done) override { return post(op, done, false); }
  Status signal(ByteSpan head, ByteSpan body) override;
  Status flush(Completion* done) override;
  Status cancel(Completion* done) override;

  bool poll();
  [[nodiscard]] bool idle() const noexcept { return signals_.empty() && transfers_.empty(); }

 private:
  struct Transfer {
    RunCursor cursor;
    CopyKind kind;
    bool put;
    Bytes signal;
    Completion* done;
    bool flush = false;  // a marker: completes when it reaches the front
  };
  Status post(const TransferOp& op, Completion* done, bool put);
  // Copies up to `budget` bytes. True when the transfer is over; `status` then holds its outcome.
  bool move(Transfer& transfer, std::size_t budget, Status& status);
  void finish(Transfer& transfer, const Status& status);

  LocalTransport& transport_;
  EndpointSink& sink_;
  std::deque<Bytes> signals_;
  std::size_t signal_bytes_ = 0;
  std::deque<Transfer> transfers_;
};

class LocalTransport final : public Transport {
 public:
  explicit LocalTransport(const TransportEnvironment& environment);
  ~LocalTransport() override;
  [[nodiscard]] std::string_view name() const noexcept override { return "local"; }
  [[nodiscard]] Capabilities capabilities() const override;
  [[nodiscard]] Bytes domain() const override;
  [[nodiscard]] Reach reach(const PeerDomain& peer, const Device& local, const Device& remote) const override;
  Result<std::unique_ptr<LocalRegion>> register_region(const RegionView& view) override;
  Result<std::unique_ptr<Endpoint>> create_endpoint(const PeerDomain& peer, EndpointSink& sink) override;
  bool poll() override;
  bool arm() override;

  // Regions are registered without the engine lock, so the table has its own.
  [[nodiscard]] bool region_span(std::uint64_t id, RegionView& view) const;
  void remove_region(std::uint64_t id);
  void remove_endpoint(LoopEndpoint& endpoint);
  void kick() { engine_->kick(); }

 private:
  std::shared_ptr<Engine> engine_;
  std::uint64_t instance_;
  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, RegionView> regions_;
  std::uint64_t next_region_ = 1;
  std::vector<LoopEndpoint*> endpoints_;
};

}  // namespace hmc::local
