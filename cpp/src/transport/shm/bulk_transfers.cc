#include "transport/shm/bulk_transfers.h"

#include <algorithm>
#include <cstring>

#include "transport/copy.h"

namespace hmc::shm {

namespace {

// Gets in flight through the ring, per direction. A requester keeps to its limit, so a peer that exceeds the other is broken.
constexpr unsigned max_requests_out = 32;
constexpr std::size_t max_serving = 64;

}  // namespace

void BulkTransfers::connect(const ChannelMemory& in, ChannelMemory& out, Doorbell& doorbell) {
  out_ = &out;
  doorbell_ = &doorbell;
  consumer_ = BulkConsumer(in);
  producer_ = BulkProducer(out);
}

bool BulkTransfers::can_work() const noexcept {
  if (consumer_.ready() || (producer_.in_flight() && producer_.has_ack())) return true;
  return producer_.has_free() && (!serving_.empty() || !stops_.empty());
}

void BulkTransfers::clear() noexcept {
  serving_.clear();
  stops_.clear();
}

void BulkTransfers::publish(const SlotInfo& info, const SlotUse& use) {
  uses_[producer_.next() % slot_count] = use;
  producer_.publish(info);
  doorbell_->ring();
}

bool BulkTransfers::can_request() const noexcept {
  // Stops go first: the peer counts a cancelled get until it reads them.
  return producer_.has_free() && stops_.empty() && requests_out_ < max_requests_out;
}

std::size_t BulkTransfers::fill_put(Operation& op, std::size_t budget, const PeerMemory& other) {
  if (!producer_.has_free()) return 0;
  if (Status reserved = reserve(); !reserved.ok()) {
    op.failure = std::move(reserved);
    return 0;
  }
  SlotInfo info;
  info.streaming = op.kind == CopyKind::streaming;
  SlotUse use{op.number, op.cursor, 0};
  const std::size_t room = std::min(budget, out_->sizes().slot_payload());
  while (use.bytes < room && info.pieces < max_put_pieces && !op.cursor.at_end() && goes_through_ring(op.cursor, other)) {
    const RunPiece piece = op.cursor.peek(room - use.bytes);
    producer_.write_piece(info.pieces++, {remote_of(*piece.run).id(), piece.remote_offset, piece.bytes});
    std::memcpy(producer_.payload() + use.bytes, local_data(*piece.run) + piece.local_offset, piece.bytes);
    use.bytes += piece.bytes;
    op.cursor.advance(piece.bytes);
  }
  info.bytes = static_cast<std::uint32_t>(use.bytes);
  ++op.in_flight;
  publish(info, use);
  return use.bytes;
}

void BulkTransfers::request(Operation& op, const PeerMemory& other) {
  if (!can_request()) return;
  if (Status reserved = reserve(); !reserved.ok()) {
    op.failure = std::move(reserved);
    return;
  }
  SlotInfo info;
  info.kind = SlotKind::get_request;
  info.token = op.number;
  info.streaming = op.kind == CopyKind::streaming;
  RunCursor ahead = op.cursor;
  while (info.pieces < out_->sizes().max_request_pieces() && !ahead.at_end() && goes_through_ring(ahead, other)) {
    const RunPiece piece = ahead.peek(ahead.run().block);
    const Piece wire{remote_of(*piece.run).id(), piece.remote_offset, piece.bytes};
    std::memcpy(producer_.payload() + info.pieces++ * sizeof wire, &wire, sizeof wire);
    op.awaiting += piece.bytes;
    ahead.advance(piece.bytes);
  }
  info.bytes = static_cast<std::uint32_t>(info.pieces * sizeof(Piece));
  ++requests_out_;
  publish(info, {});
}

BulkTransfers::Acknowledged BulkTransfers::take_ack(std::uint64_t& operation, Code& outcome) noexcept {
  std::uint64_t number = 0;
  bool broken = false;
  if (producer_.take_ack(number, outcome, broken)) {
    operation = uses_[number % slot_count].op;
    return Acknowledged::slot;
  }
  return broken ? Acknowledged::broken : Acknowledged::none;
}

bool BulkTransfers::revoke(Operation& op) noexcept {
  bool busy = false;
  const SlotUse* earliest = nullptr;
  for (std::uint64_t number = producer_.oldest(); number != producer_.next(); ++number) {
    SlotUse& use = uses_[number % slot_count];
    if (use.op != op.number) continue;
    switch (producer_.revoke(number)) {
      case BulkProducer::Revoke::revoked:
        use.op = 0;
        --op.in_flight;
        op.moved -= use.bytes;
        if (earliest == nullptr) earliest = &use;
        break;
      case BulkProducer::Revoke::consumed:
        break;
      case BulkProducer::Revoke::busy:
        busy = true;
        break;
    }
  }
  if (busy && earliest != nullptr) op.cursor = earliest->start;
  if (!busy) {
    for (SlotUse& use : uses_) {
      if (use.op == op.number) use.op = 0;
    }
  }
  return !busy;
}

void BulkTransfers::stop_get(const Operation& op) {
  stops_.push_back(op.number);
  --requests_out_;
}

bool BulkTransfers::send_stops() {
  bool moved = false;
  while (!stops_.empty() && producer_.has_free()) {
    SlotInfo info;
    info.kind = SlotKind::get_stop;
    info.token = stops_.front();
    stops_.erase(stops_.begin());
    publish(info, {});
    moved = true;
  }
  return moved;
}

BulkConsumer::Next BulkTransfers::take(SlotInfo& info, bool& skipped) noexcept {
  const auto next = consumer_.take(info, skipped);
  if (skipped) doorbell_->ring();
  return next;
}

Status BulkTransfers::land(const SlotInfo& info, Code& outcome) {
  switch (info.kind) {
    case SlotKind::put:
      outcome = land_put(info);
      if (outcome == Code::protocol) {
        return Status(Code::protocol, "the peer sent a chunk whose table does not match its size");
      }
      return {};
    case SlotKind::get_request:
      return accept_request(info);
    case SlotKind::get_stop:
      std::erase_if(serving_, [&](const Serving& job) { return job.token == info.token; });
      return {};
    case SlotKind::get_data:  // of no get, or a cancelled one: discarded
      return {};
  }
  return {};
}

Code BulkTransfers::land_put(const SlotInfo& info) {
  const CopyKind kind = info.streaming ? CopyKind::streaming : CopyKind::cached;
  std::size_t at = 0;
  for (std::size_t i = 0; i < info.pieces; ++i) {
    const Piece piece = consumer_.piece(i);
    if (piece.bytes > info.bytes - at) return Code::protocol;
    std::byte* target = nullptr;
    if (const Code code = find(piece, true, target); code != Code::ok) return code;
    copy_bytes(target, consumer_.payload() + at, piece.bytes, kind);
    at += piece.bytes;
  }
  copy_fence(kind);
  return at == info.bytes ? Code::ok : Code::protocol;
}

Status BulkTransfers::accept_request(const SlotInfo& info) {
  if (serving_.size() >= max_serving) return Status(Code::protocol, "the peer asked for too many gets at once");
  Serving job;
  job.token = info.token;
  job.streaming = info.streaming;
  job.pieces.reserve(info.pieces);
  for (std::size_t i = 0; i < info.pieces; ++i) {
    const Piece piece = consumer_.payload_piece(i);
    if (piece.bytes == 0) return Status(Code::protocol, "the peer asked for an empty piece");
    job.pieces.push_back(piece);
  }
  serving_.push_back(std::move(job));
  return {};
}

Status BulkTransfers::land_data(const SlotInfo& info, Operation& op) {
  if (info.bytes > op.awaiting || (info.bytes == 0 && info.code == Code::ok)) {
    return Status(Code::protocol, "the peer answered a get with another size");
  }
  std::size_t at = 0;
  while (at < info.bytes) {
    const RunPiece piece = op.cursor.peek(info.bytes - at);
    copy_bytes(local_data(*piece.run) + piece.local_offset, consumer_.payload() + at, piece.bytes, op.kind);
    at += piece.bytes;
    op.cursor.advance(piece.bytes);
  }
  copy_fence(op.kind);
  op.awaiting -= info.bytes;
  op.moved += info.bytes;
  if (info.code != Code::ok) {
    op.awaiting = 0;
    op.failure = Status(info.code, info.code == Code::stale ? "the peer closed the region" : "the peer refused the get");
  }
  if (op.awaiting == 0) --requests_out_;
  return {};
}

Code BulkTransfers::find(const Piece& piece, bool write, std::byte*& data) const {
  const auto place = regions_->find(piece.region);
  if (place == regions_->end()) return Code::stale;
  const RegionView& view = place->second->view();
  if (write && view.access != Access::read_write) return Code::invalid_argument;
  if (piece.offset > view.span.bytes || piece.bytes > view.span.bytes - piece.offset) return Code::invalid_argument;
  data = static_cast<std::byte*>(view.span.data) + piece.offset;
  return Code::ok;
}

// The region is looked up for every chunk: it may be closed meanwhile.
bool BulkTransfers::serve(std::size_t& budget) {
  bool moved = false;
  while (budget != 0 && !serving_.empty() && producer_.has_free()) {
    Serving& job = serving_.front();
    SlotInfo info;
    info.kind = SlotKind::get_data;
    info.token = job.token;
    info.streaming = job.streaming;
    if (!reserve().ok()) return moved;  // no memory now: try again later
    const std::size_t room = out_->sizes().slot_payload();
    std::size_t bytes = 0;
    while (bytes < room && job.index < job.pieces.size()) {
      Piece piece = job.pieces[job.index];
      std::byte* data = nullptr;
      info.code = find(piece, false, data);
      if (info.code != Code::ok) break;
      const std::size_t part = std::min<std::size_t>(piece.bytes - job.done, room - bytes);
      std::memcpy(producer_.payload() + bytes, data + job.done, part);
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

}  // namespace hmc::shm
