#include "transport/local/local.h"

#include <algorithm>

#include "base/random.h"
#include "base/wire.h"

namespace hmc::local {
namespace {

constexpr std::size_t max_signal_bytes = 64 << 10;
constexpr std::size_t max_queued_signal_bytes = 1 << 20;
constexpr std::size_t slice_bytes = 1 << 20;

}  // namespace

// ---- regions ----

Region::Region(LocalTransport& transport, std::uint64_t id, RegionView view)
    : LocalRegion(std::move(view)), transport_(transport), id_(id) {}

Region::~Region() { transport_.remove_region(id_); }

Result<Blob> Region::exported() {
  Blob blob;
  WireWriter(blob.bytes).u64(id_).u64(view_.span.bytes);
  return blob;
}

// ---- endpoint ----

LoopEndpoint::LoopEndpoint(LocalTransport& transport, EndpointSink& sink) : transport_(transport), sink_(sink) {}

LoopEndpoint::~LoopEndpoint() {
  transport_.remove_endpoint(*this);
  auto pending = std::move(transfers_);
  for (Transfer& transfer : pending) transfer.done->complete(Status(Code::closed, "the endpoint was closed"));
}

Result<Blob> LoopEndpoint::address() {
  Blob blob;
  blob.bytes = transport_.domain();
  return blob;
}

Status LoopEndpoint::connect(const Blob& peer_address, Completion* done) {
  if (peer_address.bytes != transport_.domain()) return Status(Code::invalid_argument, "local connects a Context to itself only");
  done->complete({});
  return {};
}

Result<std::unique_ptr<RemoteRegion>> LoopEndpoint::import_region(const Blob& exported) {
  WireReader reader(exported.bytes);
  const std::uint64_t id = reader.u64();
  const std::uint64_t bytes = reader.u64();
  RegionView view;
  if (!reader.finish()) return Status(Code::protocol, "malformed description of a local region");
  if (!transport_.region_span(id, view) || view.span.bytes != bytes) return Status(Code::stale, "that local region is gone");
  return std::unique_ptr<RemoteRegion>(std::make_unique<RegionReference>(id, bytes));
}

Status LoopEndpoint::post(const TransferOp& op, Completion* done, bool put) {
  HMC_TRY(check_runs(op.runs).status());
  if (op.signal.size() > max_signal_bytes) return Status(Code::invalid_argument, "signal larger than max_signal");
  if (put && !op.signal.empty() && signal_bytes_ + op.signal.size() > max_queued_signal_bytes) {
    return Status(Code::would_block, "the signal queue is full");
  }
  Transfer transfer{RunCursor(op.runs), copy_kind_for(op.bytes), put, Bytes(op.signal.begin(), op.signal.end()), done};
  // Small ones at once, unless they would overtake; more than a slice is moved by poll().
  Status status;
  if (transfers_.empty() && op.bytes <= slice_bytes && move(transfer, slice_bytes, status)) {
    finish(transfer, status);
    return {};
  }
  transfers_.push_back(std::move(transfer));
  transport_.kick();
  return {};
}

bool LoopEndpoint::move(Transfer& transfer, std::size_t budget, Status& status) {
  while (!transfer.cursor.at_end() && budget > 0) {
    const Run& run = transfer.cursor.run();
    RegionView remote;
    if (!transport_.region_span(static_cast<const RegionReference*>(run.remote)->id, remote)) {
      status = Status(Code::stale, "the target's registration has ended");
      return true;
    }
    if (transfer.put && remote.access == Access::read) {
      status = Status(Code::invalid_argument, "the target is registered for reading only");
      return true;
    }
    budget -= std::min(budget, copy_run(transfer.cursor, static_cast<std::byte*>(run.local->view().span.data),
                                        static_cast<std::byte*>(remote.span.data), transfer.put, budget, transfer.kind));
  }
  return transfer.cursor.at_end();
}

void LoopEndpoint::finish(Transfer& transfer, const Status& status) {
  copy_fence(transfer.kind);
  if (status.ok() && !transfer.signal.empty()) {
    signal_bytes_ += transfer.signal.size();
    signals_.push_back(std::move(transfer.signal));
    transport_.kick();
  }
  transfer.done->complete(status);
}

Status LoopEndpoint::signal(ByteSpan head, ByteSpan body) {
  const std::size_t bytes = head.size() + body.size();
  if (bytes > max_signal_bytes) return Status(Code::invalid_argument, "signal larger than max_signal");
  if (signal_bytes_ + bytes > max_queued_signal_bytes) return Status(Code::would_block, "the signal queue is full");
  Bytes whole;
  whole.reserve(bytes);
  whole.insert(whole.end(), head.begin(), head.end());
  whole.insert(whole.end(), body.begin(), body.end());
  signal_bytes_ += bytes;
  signals_.push_back(std::move(whole));
  transport_.kick();
  return {};
}

Status LoopEndpoint::flush(Completion* done) {
  if (transfers_.empty()) {
    done->complete({});
    return {};
  }
  Transfer marker{RunCursor(), CopyKind::cached, true, {}, done};
  marker.flush = true;
  transfers_.push_back(std::move(marker));
  return {};
}

Status LoopEndpoint::cancel(Completion* done) {
  const auto found = std::find_if(transfers_.begin(), transfers_.end(), [done](const Transfer& t) { return t.done == done; });
  if (found == transfers_.end()) return Status(Code::unsupported, "the operation is already complete");
  copy_fence(found->kind);
  transfers_.erase(found);
  done->complete(Status(Code::cancelled, "cancelled; a part of the target may have been written"));
  return {};
}

bool LoopEndpoint::poll() {
  bool moved = false;
  // Only what is there now: a signal's handler may post the next one.
  for (std::size_t n = signals_.size(); n > 0 && !signals_.empty(); --n) {
    const Bytes signal = std::move(signals_.front());
    signals_.pop_front();
    signal_bytes_ -= signal.size();
    sink_.on_signal(signal);
    moved = true;
  }
  if (!transfers_.empty()) {
    Status status;
    if (move(transfers_.front(), slice_bytes, status)) {
      Transfer transfer = std::move(transfers_.front());
      transfers_.pop_front();
      finish(transfer, status);
    }
    moved = true;
  }
  return moved;
}

// ---- transport ----

LocalTransport::LocalTransport(const TransportEnvironment& environment) : engine_(environment.engine), instance_(random_u64()) {}

LocalTransport::~LocalTransport() = default;

Capabilities LocalTransport::capabilities() const {
  Capabilities capabilities;
  capabilities.reason = "between memories of one process";
  capabilities.max_signal = max_signal_bytes;
  capabilities.eager_limit = 8 << 10;
  return capabilities;
}

Bytes LocalTransport::domain() const {
  Bytes bytes;
  WireWriter(bytes).u64(instance_);
  return bytes;
}

Reach LocalTransport::reach(const PeerDomain& peer, const Device& local, const Device& remote) const {
  Reach reach;
  const Bytes own = domain();
  if (!peer.same_process || !std::equal(peer.domain.begin(), peer.domain.end(), own.begin(), own.end())) {
    reach.reason = "only within one Context";
    return reach;
  }
  if (!local.is_cpu() || !remote.is_cpu()) {
    reach.reason = "copies CPU memory only";
    return reach;
  }
  reach.ok = true;
  reach.detail = "one copy";
  reach.reason = "both memories are in this process";
  reach.latency_us = 0.1;
  reach.bandwidth = 10e9;
  return reach;
}

Result<std::unique_ptr<LocalRegion>> LocalTransport::register_region(const RegionView& view) {
  if (!view.span.device.is_cpu()) return Status(Code::unsupported, "local copies CPU memory only");
  const std::scoped_lock lock(mutex_);
  const std::uint64_t id = next_region_++;
  regions_.emplace(id, view);
  return std::unique_ptr<LocalRegion>(std::make_unique<Region>(*this, id, view));
}

Result<std::unique_ptr<Endpoint>> LocalTransport::create_endpoint(const PeerDomain&, EndpointSink& sink) {
  auto endpoint = std::make_unique<LoopEndpoint>(*this, sink);
  endpoints_.push_back(endpoint.get());
  return std::unique_ptr<Endpoint>(std::move(endpoint));
}

bool LocalTransport::poll() {
  bool moved = false;
  for (std::size_t i = 0; i < endpoints_.size(); ++i) moved = endpoints_[i]->poll() || moved;
  return moved;
}

bool LocalTransport::arm() {
  return std::all_of(endpoints_.begin(), endpoints_.end(), [](const LoopEndpoint* endpoint) { return endpoint->idle(); });
}

bool LocalTransport::region_span(std::uint64_t id, RegionView& view) const {
  const std::scoped_lock lock(mutex_);
  const auto found = regions_.find(id);
  if (found == regions_.end()) return false;
  view = found->second;
  return true;
}

void LocalTransport::remove_region(std::uint64_t id) {
  const std::scoped_lock lock(mutex_);
  regions_.erase(id);
}

void LocalTransport::remove_endpoint(LoopEndpoint& endpoint) { std::erase(endpoints_, &endpoint); }

Result<std::unique_ptr<Transport>> create_local_transport(const TransportEnvironment& environment);
Result<std::unique_ptr<Transport>> create_local_transport(const TransportEnvironment& environment) {
  return std::unique_ptr<Transport>(std::make_unique<LocalTransport>(environment));
}

}  // namespace hmc::local

HMC_TRANSPORT(local, hmc::local::create_local_transport);
