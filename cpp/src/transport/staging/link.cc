// Posting and ending operations, the connection, and its end. How chunks move is in link_chunks.cc.
#include "transport/staging/link.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace hmc::staging {

namespace {

constexpr std::uint8_t version = 1;
constexpr std::size_t max_waiting_signals = 64;

}  // namespace

Link::Link(std::shared_ptr<Shared> shared, const Geometry& geometry, EndpointSink& sink)
    : shared_(std::move(shared)), geometry_(geometry), sink_(&sink), server_(shared_) {
  for (std::uint32_t i = 0; i < geometry_.slots; ++i) slots_.push_back(std::make_unique<Slot>());
}

Result<std::shared_ptr<Link>> Link::create(std::shared_ptr<Shared> shared, const Carriers& carriers, const PeerDomain& peer,
                                           const Options& options, EndpointSink& sink) {
  auto link = std::shared_ptr<Link>(new Link(std::move(shared), options.geometry, sink));
  HMC_ASSIGN(link->carrier_, CarrierLink::create(carriers, peer, *link));
  HMC_ASSIGN(link->ring_, Ring::allocate(options.geometry));
  link->own_shared_ = peer.same_host && options.share && link->ring_->shareable();
  return link;
}

// extra = wire{u8 version, u32 slots, u32 bytes of a chunk}, with the ring's descriptor where the peer can map it.
Result<Blob> Link::address() {
  Blob extra;
  WireWriter(extra.bytes).u8(version).u32(geometry_.slots).u32(geometry_.chunk_bytes);
  if (own_shared_) {
    HMC_ASSIGN(Blob handle, ring_->handle());
    WireWriter(extra.bytes).bytes(handle.bytes);
    extra.fds = std::move(handle.fds);
  } else {
    WireWriter(extra.bytes).bytes({});
  }
  return carrier_->address(std::move(extra));
}

Status Link::connect(const Blob& address, Completion* done) {
  connecting_ = done;
  auto extra = carrier_->connect(address, this);
  if (!extra.ok()) {
    connecting_ = nullptr;
    return extra.status();
  }
  WireReader reader(extra->bytes);
  const std::uint8_t theirs = reader.u8();
  Geometry geometry;
  geometry.slots = reader.u32();
  geometry.chunk_bytes = reader.u32();
  Blob handle;
  const ByteSpan bytes = reader.bytes(64);
  handle.bytes.assign(bytes.begin(), bytes.end());
  handle.fds = std::move(extra->fds);
  if (!reader.finish() || theirs != version || !geometry.valid()) return Status(Code::protocol, "malformed address of staging");
  if (!handle.fds.empty()) {
    HMC_TRY(server_.use_shared(geometry, handle));
  } else {
    HMC_TRY(server_.use_mirror(geometry, carrier_->transport()));
  }
  if (!own_shared_) {
    HMC_ASSIGN(ring_region_, carrier_->transport().register_region({.span = ring_->span()}));
  }
  ready_ = true;
  if (carrier_outcome_) complete(*std::exchange(carrier_outcome_, std::nullopt));
  return {};
}

// Perhaps from within connect(), which has more to do then.
void Link::complete(Status status) noexcept {
  if (!ready_) {
    carrier_outcome_ = std::move(status);
    return;
  }
  Completion* done = std::exchange(connecting_, nullptr);
  if (done == nullptr) return;
  if (status.ok()) send_rings();
  done->complete(std::move(status));
}

// The carrier has room for the first signal.
void Link::send_rings() {
  const auto exported = [](LocalRegion* region) -> Bytes {
    if (region == nullptr) return {};
    auto blob = region->exported();
    return blob.ok() && blob->fds.empty() ? std::move(blob->bytes) : Bytes();
  };
  const Rings rings{exported(ring_region_.get()), exported(server_.mirror_region())};
  if (rings.own.empty() && rings.mirror.empty()) return;
  if (const Status sent = carrier_->signal_own(encode(rings)); !sent.ok()) on_carrier_failed(sent);
}

void Link::on_rings(const Rings& rings) {
  const auto import = [&](const Bytes& exported) -> std::unique_ptr<RemoteRegion> {
    if (exported.empty()) return nullptr;
    Blob blob;
    blob.bytes = exported;
    auto region = carrier_->endpoint().import_region(blob);
    if (!region.ok() || !(*region)->prepare(Device::cpu()).ok()) return nullptr;
    return std::move(*region);
  };
  server_.set_peer_ring(import(rings.own));
  peer_mirror_ = import(rings.mirror);
  if (!own_shared_ && (!peer_mirror_ || peer_mirror_->bytes() < geometry_.bytes())) {
    on_carrier_failed(Status(Code::protocol, "the peer's mirror of the staging ring cannot be used"));
  }
}

Status Link::not_ready() const {
  if (closed_) return Status(Code::closed, "the staging endpoint is closed");
  return Status(Code::invalid_argument, "the staging endpoint is not connected yet");
}

Status Link::signal(ByteSpan head, ByteSpan body) {
  if (!ready_) return not_ready();
  if (!waiting_.empty()) return Status(Code::would_block, "attached signals wait for room");
  return carrier_->signal_user(head, body);
}

Status Link::post(const TransferOp& transfer, Completion* done, bool is_put) {
  if (!ready_) return not_ready();
  HMC_ASSIGN(const std::size_t bytes, check_runs(transfer.runs));
  const ByteSpan signal = is_put ? transfer.signal : ByteSpan();
  if (!signal.empty() && waiting_.size() >= max_waiting_signals) {
    return Status(Code::would_block, "too many attached signals wait for room");
  }
  auto op = std::make_unique<Op>();
  op->cursor = RunCursor(transfer.runs);
  op->done = done;
  op->number = ++last_number_;
  op->bytes = bytes;
  op->is_put = is_put;
  op->after = transfer.after;
  op->signal.assign(signal.begin(), signal.end());
  ops_.push_back(std::move(op));
  begin_chunks();
  shared_->engine->kick();
  return {};
}

bool Link::busy() const noexcept {
  if (!ready_) return false;
  if (!waiting_.empty() || server_.busy()) return true;
  return std::ranges::any_of(slots_, [](const auto& slot) { return slot->state != State::free && slot->state != State::sent; }) ||
         std::ranges::any_of(ops_, [this](const auto& op) { return op->slots == 0 && (can_send() || op->cursor.at_end()); });
}

bool Link::poll() {
  bool moved = server_.poll(*carrier_);
  for (std::uint32_t i = 0; i < slots_.size() && ready_; ++i) moved = advance(i) || moved;
  if (ready_) moved = end_ops() || moved;
  if (ready_) moved = begin_chunks() || moved;
  if (ready_ && !waiting_.empty()) send_waiting();
  return moved;
}

bool Link::end_ops() {
  bool moved = false;
  for (auto at = ops_.begin(); at != ops_.end() && ready_;) {
    Op& op = **at;
    if (op.slots != 0 || (!op.cursor.at_end() && op.failure.ok())) {
      ++at;
      continue;
    }
    const std::unique_ptr<Op> ended = std::move(*at);
    ops_.erase(at);
    if (ended->failure.ok() && !ended->signal.empty()) waiting_.push_back(std::move(ended->signal));
    send_waiting();
    ended->done->complete(std::move(ended->failure));
    moved = true;
    if (ready_) end_flushes();
    at = ops_.begin();  // completing may have posted, or closed the endpoint
  }
  return moved;
}

void Link::send_waiting() {
  while (ready_ && !waiting_.empty() && carrier_->signal_user(waiting_.front(), {}).ok()) waiting_.pop_front();
}

Status Link::flush(Completion* done) {
  if (!ready_) return not_ready();
  flushes_.push_back({last_number_ + 1, done});
  end_flushes();
  return {};
}

void Link::end_flushes() {
  std::uint64_t oldest_put = std::numeric_limits<std::uint64_t>::max();
  for (const auto& op : ops_) {
    if (op->is_put) oldest_put = std::min(oldest_put, op->number);
  }
  while (!flushes_.empty() && flushes_.front().before <= oldest_put) {
    Completion* done = flushes_.front().done;
    flushes_.pop_front();
    done->complete({});
  }
}

Status Link::cancel(Completion* done) {
  const auto place = std::ranges::find_if(ops_, [done](const auto& op) { return op->done == done; });
  if (place == ops_.end() || (*place)->begun) {
    return Status(Code::unsupported, "part of the operation is on its way; it completes by itself");
  }
  const std::unique_ptr<Op> op = std::move(*place);
  ops_.erase(place);
  op->done->complete(Status(Code::cancelled, "cancelled before anything was written"));
  end_flushes();
  return {};
}

// What devices copy is seen out: its memory may be freed once the operations are complete.
void Link::end_everything(const Status& reason) {
  ready_ = false;
  for (const auto& slot : slots_) slot->copies.see_out();
  server_.see_out();
  const auto ops = std::exchange(ops_, {});
  const auto flushes = std::exchange(flushes_, {});
  waiting_.clear();
  for (const auto& op : ops) op->done->complete(reason);
  for (const Flush& flush : flushes) flush.done->complete(reason);
}

void Link::close() {
  if (closed_) return;
  closed_ = true;
  connecting_ = nullptr;
  end_everything(Status(Code::closed, "the staging endpoint was closed"));
  carrier_.reset();  // ends what it carries, before the memory goes
  ring_region_.reset();
  server_.close();
}

void Link::on_carrier_failed(const Status& reason) {
  if (closed_) return;
  end_everything(reason);
  if (!closed_) sink_->on_failed(reason);
}

}  // namespace hmc::staging
