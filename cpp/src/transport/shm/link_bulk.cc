// Link: bytes through the shared ring, where the peer's memory can be neither mapped nor reached by system call.
#include <algorithm>
#include <cstring>
#include <string>

#include "transport/shm/link.h"

namespace hmc::shm {

namespace {

// Gets under way through the ring, per direction. A requester keeps to its limit, so a peer that exceeds the other is broken.
constexpr unsigned max_requests_out = 32;
constexpr std::size_t max_serving = 64;

std::byte* local_data(const Run& run) noexcept { return static_cast<std::byte*>(run.local->view().span.data); }

}  // namespace

void Link::publish(const SlotInfo& info, const SlotUse& use) {
  uses_[bulk_out_.next() % slot_count] = use;
  bulk_out_.publish(info);
  ring_peer();
}

std::size_t Link::fill_put(Op& op, std::size_t budget) {
  if (!bulk_out_.has_free()) return 0;
  if (Status reserved = out_.reserve_slots(); !reserved.ok()) {
    op.failure = std::move(reserved);
    return 0;
  }
  SlotInfo info;
  info.streaming = op.kind == CopyKind::streaming;
  SlotUse use{op.number, op.cursor, 0};
  const std::size_t room = std::min(budget, out_.sizes().slot_payload());
  while (use.bytes < room && info.pieces < max_put_pieces && !op.cursor.at_end() && uses_ring(op.cursor)) {
    const RunPiece piece = op.cursor.peek(room - use.bytes);
    const auto& remote = static_cast<const ShmRemoteRegion&>(*piece.run->remote);
    bulk_out_.write_piece(info.pieces++, {remote.id(), piece.remote_offset, piece.bytes});
    std::memcpy(bulk_out_.payload() + use.bytes, local_data(*piece.run) + piece.local_offset, piece.bytes);
    use.bytes += piece.bytes;
    op.cursor.advance(piece.bytes);
  }
  info.bytes = static_cast<std::uint32_t>(use.bytes);
  ++op.in_flight;
  publish(info, use);
  return use.bytes;
}

bool Link::can_request() const noexcept {
  // Stops go first: the peer counts a cancelled get until it reads them.
  return bulk_out_.has_free() && stops_.empty() && requests_out_ < max_requests_out;
}

// Asks the peer for the next pieces of a get; they come back as a stream that lands at the cursor.
void Link::request(Op& op) {
  if (!can_request()) return;
  if (Status reserved = out_.reserve_slots(); !reserved.ok()) {
    op.failure = std::move(reserved);
    return;
  }
  SlotInfo info;
  info.kind = SlotKind::get_request;
  info.token = op.number;
  info.streaming = op.kind == CopyKind::streaming;
  RunCursor ahead = op.cursor;
  while (info.pieces < out_.sizes().max_request_pieces() && !ahead.at_end() && uses_ring(ahead)) {
    const RunPiece piece = ahead.peek(ahead.run().block);
    const auto& remote = static_cast<const ShmRemoteRegion&>(*piece.run->remote);
    const Piece wire{remote.id(), piece.remote_offset, piece.bytes};
    std::memcpy(bulk_out_.payload() + info.pieces++ * sizeof wire, &wire, sizeof wire);
    op.awaiting += piece.bytes;
    ahead.advance(piece.bytes);
  }
  info.bytes = static_cast<std::uint32_t>(info.pieces * sizeof(Piece));
  ++requests_out_;
  publish(info, {});
}

bool Link::take_acks() {
  bool moved = false;
  bool broken = false;
  std::uint64_t number = 0;
  Code outcome = Code::ok;
  while (ready_ && bulk_out_.take_ack(number, outcome, broken)) {
    moved = true;
    const std::uint64_t owner = uses_[number % slot_count].op;
    const auto place = ops_.find(owner);
    if (owner == 0 || place == ops_.end()) continue;
    Op& op = *place->second;
    --op.in_flight;
    if (outcome != Code::ok && op.failure.ok()) {
      op.failure = Status(outcome, outcome == Code::stale ? "the peer closed the region" : "the peer refused a chunk of the put");
    }
    after_move(op);
  }
  if (broken) fail(Status(Code::protocol, "the peer acknowledged chunks that were never sent"));
  return moved;
}

bool Link::send_stops() {
  bool moved = false;
  while (!stops_.empty() && bulk_out_.has_free()) {
    SlotInfo info;
    info.kind = SlotKind::get_stop;
    info.token = stops_.front();
    stops_.erase(stops_.begin());
    publish(info, {});
    moved = true;
  }
  return moved;
}

Code Link::find(const Piece& piece, bool write, std::byte*& data) const {
  const auto place = shared_->regions->find(piece.region);
  if (place == shared_->regions->end()) return Code::stale;
  const RegionView& view = place->second->view();
  if (write && view.access != Access::read_write) return Code::invalid_argument;
  if (piece.offset > view.span.bytes || piece.bytes > view.span.bytes - piece.offset) return Code::invalid_argument;
  data = static_cast<std::byte*>(view.span.data) + piece.offset;
  return Code::ok;
}

// Answers one chunk of a peer's get per free slot. The region is looked up for every chunk: it may be closed meanwhile.
bool Link::serve(std::size_t& budget) {
  bool moved = false;
  while (budget != 0 && !serving_.empty() && bulk_out_.has_free()) {
    Serving& job = serving_.front();
    SlotInfo info;
    info.kind = SlotKind::get_data;
    info.token = job.token;
    info.streaming = job.streaming;
    if (!out_.reserve_slots().ok()) return moved;  // no memory now: try again later
    const std::size_t room = out_.sizes().slot_payload();
    std::size_t bytes = 0;
    while (bytes < room && job.index < job.pieces.size()) {
      Piece piece = job.pieces[job.index];
      std::byte* data = nullptr;
      info.code = find(piece, false, data);
      if (info.code != Code::ok) break;
      const std::size_t part = std::min<std::size_t>(piece.bytes - job.done, room - bytes);
      std::memcpy(bulk_out_.payload() + bytes, data + job.done, part);
      bytes += part;
      job.done += part;
      if (job.done == piece.bytes) {
        ++job.index;
        job.done = 0;
      }
    }
    if (info.code != Code::ok) bytes = 0;
    info.bytes = static_cast<std::uint32_t>(bytes);
    const bool last = info.code != Code::ok || job.index == job.pieces.size();
    publish(info, {});
    budget -= std::min(budget, bytes);
    moved = true;
    if (last) serving_.pop_front();
  }
  return moved;
}

bool Link::drain_bulk(std::size_t& budget) {
  bool moved = false;
  while (ready_ && budget != 0) {
    SlotInfo info;
    bool skipped = false;
    const auto next = bulk_in_.take(info, skipped);
    if (skipped) {
      moved = true;
      ring_peer();
    }
    if (next == BulkConsumer::Next::none) break;
    Status broken;
    Code outcome = Code::ok;
    if (next == BulkConsumer::Next::broken) {
      broken = Status(Code::protocol, "the peer wrote a malformed chunk into the bulk ring");
    } else {
      switch (info.kind) {
        case SlotKind::put:
          outcome = land_put(info);
          if (outcome == Code::protocol)
            broken = Status(Code::protocol, "the peer sent a chunk whose table does not match its size");
          break;
        case SlotKind::get_request:
          broken = accept_request(info);
          break;
        case SlotKind::get_data:
          broken = land_data(info);
          break;
        case SlotKind::get_stop:
          std::erase_if(serving_, [&](const Serving& job) { return job.token == info.token; });
          break;
      }
    }
    if (!broken.ok()) {
      fail(broken);
      return true;
    }
    if (!ready_) return true;  // a completion destroyed the endpoint
    bulk_in_.finish(outcome);
    ring_peer();
    moved = true;
    budget -= std::min<std::size_t>(budget, info.bytes);
  }
  return moved;
}

Code Link::land_put(const SlotInfo& info) {
  const CopyKind kind = info.streaming ? CopyKind::streaming : CopyKind::cached;
  std::size_t at = 0;
  for (std::size_t i = 0; i < info.pieces; ++i) {
    const Piece piece = bulk_in_.piece(i);
    if (piece.bytes > info.bytes - at) return Code::protocol;
    std::byte* target = nullptr;
    if (const Code code = find(piece, true, target); code != Code::ok) return code;
    copy_bytes(target, bulk_in_.payload() + at, piece.bytes, kind);
    at += piece.bytes;
  }
  copy_fence(kind);
  return at == info.bytes ? Code::ok : Code::protocol;
}

Status Link::accept_request(const SlotInfo& info) {
  if (serving_.size() >= max_serving) return Status(Code::protocol, "the peer asked for too many gets at once");
  Serving job;
  job.token = info.token;
  job.streaming = info.streaming;
  job.pieces.reserve(info.pieces);
  for (std::size_t i = 0; i < info.pieces; ++i) {
    const Piece piece = bulk_in_.payload_piece(i);
    if (piece.bytes == 0) return Status(Code::protocol, "the peer asked for an empty piece");
    job.pieces.push_back(piece);
  }
  serving_.push_back(std::move(job));
  return {};
}

Status Link::land_data(const SlotInfo& info) {
  const auto place = ops_.find(info.token);
  // Cancelled meanwhile, or a peer's invention: dropped either way.
  if (place == ops_.end() || place->second->is_put || place->second->awaiting == 0) return {};
  Op& op = *place->second;
  if (info.bytes > op.awaiting || (info.bytes == 0 && info.code == Code::ok)) {
    return Status(Code::protocol, "the peer answered a get with another size");
  }
  const CopyKind kind = op.kind;
  std::size_t at = 0;
  while (at < info.bytes) {
    const RunPiece piece = op.cursor.peek(info.bytes - at);
    copy_bytes(local_data(*piece.run) + piece.local_offset, bulk_in_.payload() + at, piece.bytes, kind);
    at += piece.bytes;
    op.cursor.advance(piece.bytes);
  }
  copy_fence(kind);
  op.awaiting -= info.bytes;
  op.moved += info.bytes;
  if (info.code != Code::ok) {
    op.awaiting = 0;
    op.failure = Status(info.code, info.code == Code::stale ? "the peer closed the region" : "the peer refused the get");
  }
  if (op.awaiting == 0) {
    --requests_out_;
    after_move(op);
  }
  return {};
}

}  // namespace hmc::shm
