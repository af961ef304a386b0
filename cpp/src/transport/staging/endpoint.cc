// The connection, its operations, and its end. How chunks move is in endpoint_chunks.cc.
#include "transport/staging/endpoint.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/wire.h"

namespace hmc::staging {

namespace {

constexpr std::uint8_t version = 2;

}  // namespace

StagingEndpoint::StagingEndpoint(const std::shared_ptr<Shared>& shared, std::size_t max_signal, const Geometry& geometry,
                                 EndpointSink& sink)
    : CarriedEndpoint({"staging", max_signal, kit::operation_type<Op>()}, shared->engine, sink),
      geometry_(geometry),
      server_(shared) {
  for (std::uint32_t i = 0; i < geometry_.slots; ++i) slots_.push_back(std::make_unique<Slot>());
}

Result<std::shared_ptr<StagingEndpoint>> StagingEndpoint::create(const std::shared_ptr<Shared>& shared, const Carriers& carriers,
                                                                 const PeerDomain& peer, const Options& options,
                                                                 EndpointSink& sink) {
  const std::size_t max_signal = carriers.capabilities().max_signal;
  auto endpoint = std::shared_ptr<StagingEndpoint>(new StagingEndpoint(shared, max_signal, options.geometry, sink));
  HMC_TRY(endpoint->create_carrier(carriers, peer));
  HMC_ASSIGN(endpoint->ring_, Ring::allocate(options.geometry, peer.same_host && options.share));
  endpoint->own_shared_ = static_cast<bool>(endpoint->ring_->fd());
  return endpoint;
}

StagingEndpoint::~StagingEndpoint() {
  ring_region_.reset();
  server_.close();
  if (ring_) engine_->retire(std::shared_ptr<const Ring>(std::move(ring_)));
  if (auto peers = server_.take_ring()) engine_->retire(std::shared_ptr<const Ring>(std::move(peers)));
}

// wire{u8 version, u32 slots, u32 bytes of a chunk}, with the ring's descriptor where the peer can map it.
Result<Blob> StagingEndpoint::own_address() {
  Blob own;
  WireWriter(own.bytes).u8(version).u32(geometry_.slots).u32(geometry_.chunk_bytes);
  if (own_shared_) {
    own.fds.push_back(ring_->fd().duplicate());
    if (!own.fds.back()) return errno_status("duplicating the descriptor of a staging ring", errno);
  }
  return own;
}

Status StagingEndpoint::accept(Blob peer_address) {
  WireReader reader(peer_address.bytes);
  const std::uint8_t theirs = reader.u8();
  Geometry geometry;
  geometry.slots = reader.u32();
  geometry.chunk_bytes = reader.u32();
  if (!reader.finish() || theirs != version || !geometry.valid()) return Status(Code::protocol, "malformed address of staging");
  if (!geometry.of_whole_pages()) {
    return Status(Code::unsupported, "the peer's staging chunks of " + std::to_string(geometry.chunk_bytes) +
                                         " bytes are not whole pages of this host, of " + std::to_string(Geometry::page_bytes()) +
                                         "; set HMC_STAGING_CHUNK_BYTES there to a multiple of those");
  }
  if (!peer_address.fds.empty()) {
    HMC_TRY(server_.use_shared(geometry, std::move(peer_address.fds.front())));
  } else {
    HMC_TRY(server_.use_mirror(geometry, carrier().transport()));
  }
  if (!own_shared_) {
    HMC_ASSIGN(ring_region_, carrier().transport().register_region({.span = ring_->span()}));
  }
  return {};
}

// The carrier has room for the first signal.
void StagingEndpoint::on_carrier_ready() {
  const auto exported = [](LocalRegion* region) -> Bytes {
    if (region == nullptr) return {};
    auto blob = region->exported();
    return blob.ok() && blob->fds.empty() ? std::move(blob->bytes) : Bytes();
  };
  const Rings rings{exported(ring_region_.get()), exported(server_.mirror_region())};
  if (rings.own.empty() && rings.mirror.empty()) return;
  if (const Status sent = carrier().signal_own(encode(rings)); !sent.ok()) {
    fail(Status(sent.code() == Code::would_block ? Code::transport : sent.code(), std::string(sent.message()), sent.native()));
  }
}

Status StagingEndpoint::on_rings(const Rings& rings) {
  const auto import = [&](const Bytes& exported) -> std::unique_ptr<RemoteRegion> {
    if (exported.empty()) return nullptr;
    Blob blob;
    blob.bytes = exported;
    auto region = carrier().endpoint().import_region(blob);
    if (!region.ok() || !(*region)->prepare(Device::cpu()).ok()) return nullptr;
    return std::move(*region);
  };
  server_.set_peer_ring(import(rings.own));
  peer_mirror_ = import(rings.mirror);
  if (own_shared_ || (peer_mirror_ && peer_mirror_->bytes() >= geometry_.bytes())) return {};
  return Status(Code::protocol, "the peer's mirror of the staging ring cannot be used");
}

Status StagingEndpoint::check(const Run& run, bool is_put) const {
  return is_put && !static_cast<const ServedRemoteRegion&>(*run.remote).writable() ? read_only_target() : Status();
}

Status StagingEndpoint::start(Op&) {
  begin_chunks();
  engine_->kick();
  return {};
}

bool StagingEndpoint::busy() const noexcept {
  if (!ready()) return false;
  if (!waiting_.empty() || server_.busy() || !arm()) return true;
  return std::ranges::any_of(slots_, [](const auto& slot) { return slot->state == State::loaded; });
}

bool StagingEndpoint::arm() const noexcept {
  if (!ready()) return true;
  if (server_.copies()) return false;
  const auto copies = [](const auto& slot) { return slot->state == State::loading || slot->state == State::unloading; };
  if (std::ranges::any_of(slots_, copies)) return false;
  const bool begins = can_send() && has_free_slot();
  return std::ranges::none_of(operations_.all(), [&](const auto& entry) {
    const Op& op = *entry.second;
    return op.ended() || (begins && !op.handed_over());
  });
}

// One without pages is not: another that comes back is the occasion to ask for them again.
bool StagingEndpoint::has_free_slot() const noexcept {
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i]->available() && !ring_->lacks(i)) return true;
  }
  return false;
}

bool StagingEndpoint::poll() {
  bool moved = server_.poll(carrier());
  for (std::uint32_t i = 0; i < slots_.size() && ready(); ++i) moved = advance(i) || moved;
  if (ready()) moved = end_ops() || moved;
  if (ready()) moved = begin_chunks() || moved;
  return send_waiting() || moved;
}

bool StagingEndpoint::end_ops() {
  bool moved = false;
  std::uint64_t last = 0;
  for (std::size_t left = operations_.size(); left != 0 && ready() && !operations_.empty(); --left) {
    Op& op = operations_.next(last);
    last = op.number;
    if (!op.ended()) continue;
    finish(op);
    moved = true;
  }
  return moved;
}

// What devices copy is seen out: its memory may be freed once the operations are complete. The carrier goes before its memory.
void StagingEndpoint::stop() {
  for (const auto& slot : slots_) slot->copies.see_out();
  server_.see_out();
  if (!closed()) return;
  close_carrier();
  ring_region_.reset();
  server_.close();
}

}  // namespace hmc::staging
