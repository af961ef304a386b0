#include "transport/tcp/turns.h"

#include <algorithm>
#include <utility>

namespace hmc::tcp {
namespace {

constexpr std::size_t slice_bytes = 512 << 10;
constexpr std::size_t max_pieces = 500;  // per slice; with what goes around them within one system call
constexpr std::size_t max_requests = 4;  // gets under way per stream
constexpr std::size_t max_begun = 64;    // operations whose slices alternate

const ServedRemoteRegion& remote_of(const Run& run) noexcept { return static_cast<const ServedRemoteRegion&>(*run.remote); }
std::byte* local_data(const Run& run) noexcept { return static_cast<std::byte*>(run.local->view().span.data); }

// The next slice of an operation: pieces of local memory, and the ranges of one remote region that they belong to.
struct Slice {
  const ServedRemoteRegion* remote = nullptr;
  std::vector<iovec> pieces;
  std::vector<Extent> extents;
  std::size_t bytes = 0;
};

void cut(RunCursor& cursor, Slice& slice) {
  slice.pieces.clear();
  slice.extents.clear();
  slice.bytes = 0;
  slice.remote = &remote_of(cursor.run());
  while (!cursor.at_end() && slice.bytes < slice_bytes && &remote_of(cursor.run()) == slice.remote) {
    const RunPiece piece = cursor.peek(slice_bytes - slice.bytes);
    std::byte* data = local_data(*piece.run) + piece.local_offset;
    const bool joins_local =
        !slice.pieces.empty() && static_cast<std::byte*>(slice.pieces.back().iov_base) + slice.pieces.back().iov_len == data;
    const bool joins_remote =
        !slice.extents.empty() && slice.extents.back().offset + slice.extents.back().length == piece.remote_offset;
    if ((!joins_local && slice.pieces.size() == max_pieces) || (!joins_remote && slice.extents.size() == max_pieces)) break;
    if (joins_local) {
      slice.pieces.back().iov_len += piece.bytes;
    } else {
      slice.pieces.push_back({data, piece.bytes});
    }
    if (joins_remote) {
      slice.extents.back().length += static_cast<std::uint32_t>(piece.bytes);
    } else {
      slice.extents.push_back({piece.remote_offset, static_cast<std::uint32_t>(piece.bytes)});
    }
    slice.bytes += piece.bytes;
    cursor.advance(piece.bytes);
  }
}

void append_request(Bytes& out, FrameType type, std::uint64_t op, const Slice& slice) {
  Header header;
  header.type = type;
  header.extents = static_cast<std::uint16_t>(slice.extents.size());
  header.length = static_cast<std::uint32_t>(slice.bytes);
  header.op = op;
  header.a = slice.remote->id();
  if (slice.extents.size() == 1) header.b = slice.extents[0].offset;
  append(out, header);
  if (slice.extents.size() == 1) return;
  for (const Extent& extent : slice.extents) {
    const std::size_t at = out.size();
    out.resize(at + extent_bytes);
    encode_extent(out.data() + at, extent);
  }
}

thread_local Slice scratch_slice;  // keeps its capacity

}  // namespace

bool Turns::can_fill(const Stream& stream) const noexcept {
  if (!stream.servings.queue.empty()) return true;
  const bool room = stream.requests.queue.size() < max_requests;
  const std::size_t looks = std::min(queue_.size(), max_begun);  // as append_next()
  return std::any_of(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(looks),
                     [&](const Op* op) { return op->is_put ? may_send(*op) : room; });
}

void Turns::fill(Stream& stream) {
  // Requests are small and join; a slice or a reply ends the burst.
  while (can_fill(stream) && stream.burst.payload == 0 && stream.burst.op == 0) {
    if (!append_next(stream)) break;
  }
}

bool Turns::append_next(Stream& stream) {
  // Replies and own operations alternate.
  if (!stream.servings.queue.empty() && (queue_.empty() || stream.servings.first)) {
    stream.servings.first = false;
    append_reply(stream);
    return true;
  }
  stream.servings.first = true;
  const std::size_t looks = std::min(queue_.size(), max_begun);
  for (std::size_t i = 0; i < looks; ++i) {
    Op& op = *queue_.front();
    queue_.pop_front();
    const bool built = op.is_put ? append_put(stream, op) : append_get(stream, op);
    const bool more = op.is_put ? !op.end_sent : !op.cursor.at_end();
    // Behind the others whose turn it is, not behind those that have not begun.
    if (more) queue_.insert(queue_.begin() + static_cast<std::ptrdiff_t>(std::min(queue_.size(), max_begun - 1)), &op);
    if (built) return true;
  }
  if (stream.servings.queue.empty()) return false;
  append_reply(stream);
  return true;
}

bool Turns::append_put(Stream& stream, Op& op) {
  if (!may_send(op)) return false;
  Burst& burst = stream.burst;
  const bool first = !std::exchange(op.started, true);
  if (!op.cursor.at_end()) {
    cut(op.cursor, scratch_slice);
    append_request(burst.head, FrameType::put, op.number, scratch_slice);
    burst.pieces.swap(scratch_slice.pieces);
    burst.payload = scratch_slice.bytes;
  }
  if (first && !op.cursor.at_end()) {
    op.split = true;
    ++split_;
  }
  burst.op = op.number;
  ++op.in_flight;
  if (op.cursor.at_end()) {
    op.end_sent = true;
    Header header;
    header.type = FrameType::put_end;
    header.op = op.number;
    header.a = op.bytes;
    header.length = static_cast<std::uint32_t>(op.signal.size());
    Bytes& out = burst.payload == 0 ? burst.head : burst.tail;
    append(out, header);
    append(out, op.signal);
    op.signal.clear();
  }
  return true;
}

bool Turns::append_get(Stream& stream, Op& op) {
  if (stream.requests.queue.size() >= max_requests) return false;
  op.started = true;
  cut(op.cursor, scratch_slice);
  Request request;
  request.id = ++last_request_;
  request.op = op.number;
  request.length = static_cast<std::uint32_t>(scratch_slice.bytes);
  append_request(stream.burst.head, FrameType::get, request.id, scratch_slice);
  request.pieces = scratch_slice.pieces;
  stream.requests.queue.push_back(std::move(request));
  ++op.in_flight;
  return true;
}

void Turns::append_reply(Stream& stream) {
  Burst& burst = stream.burst;
  const Serving serving = std::move(stream.servings.queue.front());
  stream.servings.queue.pop_front();
  Refusal refusal = Refusal::none;
  auto held = regions_->hold(serving.region, false);
  ServedRegion* const region = held.ok() ? held->get() : nullptr;
  if (region == nullptr) {
    refusal = Refusal::stale;
  } else if (!inside(serving.extents, region->bytes())) {
    refusal = Refusal::range;
  } else {
    Header header;
    header.type = FrameType::get_data;
    header.op = serving.id;
    header.length = serving.length;
    append(burst.head, header);
    for (const Extent& extent : serving.extents) burst.pieces.push_back({region->data() + extent.offset, extent.length});
    burst.payload = serving.length;
    stream.reply_from(std::move(*held));
  }
  Header end;
  end.type = FrameType::get_end;
  end.op = serving.id;
  end.a = static_cast<std::uint64_t>(refusal);
  append(refusal == Refusal::none ? burst.tail : burst.head, end);
}

}  // namespace hmc::tcp
