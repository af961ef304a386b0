// TcpEndpoint: what goes out. Streams pull: whichever has room takes the next slice.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "transport/tcp/endpoint.h"

namespace hmc::tcp {
namespace {

constexpr std::size_t slice_bytes = 512 << 10;
constexpr std::size_t max_pieces = 500;        // per slice; with what goes around them within one system call
constexpr std::size_t max_requests = 4;        // gets under way per stream
constexpr std::size_t max_queued = 64 << 10;   // bytes of signals that wait for the socket
constexpr std::size_t posted_bytes = 1 << 20;  // written in the posting call
constexpr std::size_t max_begun = 64;          // operations whose slices alternate

const ServedRemoteRegion& remote_of(const Run& run) noexcept { return static_cast<const ServedRemoteRegion&>(*run.remote); }
std::byte* local_data(const Run& run) noexcept { return static_cast<std::byte*>(run.local->view().span.data); }

void append(Bytes& out, const Header& header) {
  const std::size_t at = out.size();
  out.resize(at + header_bytes);
  encode_header(out.data() + at, header);
}

void append(Bytes& out, ByteSpan bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); }

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

Status TcpEndpoint::start(kit::Operation& operation) {
  turns_.push_back(static_cast<Op*>(&operation));
  warm(*streams_[0]);
  std::size_t budget = posted_bytes;
  write_all(budget);
  if (ready() && has_output()) engine_->kick();
  return {};
}

// A put's signal goes with its end.
bool TcpEndpoint::send(ByteSpan signal_bytes, std::uint64_t) { return signal(signal_bytes, {}).ok(); }

Status TcpEndpoint::signal(ByteSpan head, ByteSpan body) {
  if (!ready()) [[unlikely]]
    return not_ready();
  const std::size_t bytes = head.size() + body.size();
  HMC_TRY(check_signal(bytes));
  Stream& stream = *streams_[0];
  warm(stream);
  if (stream.small.size() >= max_queued) {
    static const Status full(Code::would_block, "the data connection takes no more signals");
    return full;
  }
  Header header;
  header.type = FrameType::signal;
  header.length = static_cast<std::uint32_t>(bytes);
  append(stream.small, header);
  append(stream.small, head);
  append(stream.small, body);
  if (!stream.burst.head.empty()) {
    engine_->kick();
    return {};
  }
  std::size_t budget = posted_bytes;
  write(stream, budget);
  if (ready() && has_output()) engine_->kick();
  return {};
}

// Stays on a stream until its socket is full: a transfer that fits into one does not pay for the others' system calls and wakeups.
bool TcpEndpoint::write_all(std::size_t& budget) {
  const auto next_stream = [this] { next_stream_ = next_stream_ + 1 == streams_.size() ? 0 : next_stream_ + 1; };
  bool moved = false;
  for (std::size_t refused = 0; refused < streams_.size() && ready() && budget != 0;) {
    Stream& stream = *streams_[next_stream_];
    if (write(stream, budget)) {
      moved = true;
      refused = 0;
      if (!stream.blocked) continue;
    } else {
      ++refused;
    }
    next_stream();
  }
  if (budget == 0 && ready() && has_output()) next_stream();  // its turn comes, too
  return moved;
}

// One burst of the stream. True if anything moved.
bool TcpEndpoint::write(Stream& stream, std::size_t& budget) {
  if (stream.writing || stream.shut) return false;
  if (stream.blocked && stream.watch == Stream::Watch::input_and_room) return false;  // the engine says when
  if (stream.burst.head.empty() && !next_burst(stream)) return false;
  stream.writing = true;
  const std::size_t before = stream.burst.sent;
  const Io io = stream.send_burst();
  const std::size_t sent = stream.burst.sent - before;
  budget -= std::min(budget, sent);
  stream.blocked = io == Io::blocked || (io == Io::moved && !stream.burst.done());
  if (io == Io::failed) {
    stream.shut = true;  // what has come in is still read
    fail_soon(Status(Code::peer_lost, std::string("the data connection broke: ") + std::strerror(errno), errno));
  } else if (stream.burst.done()) {
    burst_sent(stream);
  }
  stream.writing = false;
  return sent != 0;
}

bool TcpEndpoint::can_build(const Stream& stream) const noexcept {
  if (!stream.servings.queue.empty()) return true;
  if (turns_.empty()) return false;
  if (stream.requests.queue.size() < max_requests) return true;
  return std::ranges::any_of(turns_, [&](const Op* op) { return op->is_put && may_send(*op); });
}

bool TcpEndpoint::next_burst(Stream& stream) {
  Burst& burst = stream.burst;
  burst.head.swap(stream.small);  // both keep a capacity
  append_acks(burst.head);
  // Requests are small and join; a slice or a reply ends the burst.
  while (can_build(stream) && burst.payload == 0 && burst.op == 0) {
    if (!build_slice(stream)) break;
  }
  return !burst.head.empty();
}

void TcpEndpoint::append_acks(Bytes& out) {
  if (ack_count_ == 0) return;
  Header header;
  header.type = FrameType::ack;
  header.op = ack_first_;
  header.a = std::exchange(ack_count_, 0);
  append(out, header);
}

bool TcpEndpoint::build_slice(Stream& stream) {
  // Replies and own operations alternate.
  if (!stream.servings.queue.empty() && (turns_.empty() || stream.servings.first)) {
    stream.servings.first = false;
    build_reply(stream);
    return true;
  }
  stream.servings.first = true;
  const std::size_t looks = std::min(turns_.size(), max_begun);
  for (std::size_t i = 0; i < looks; ++i) {
    Op& op = *turns_.front();
    turns_.pop_front();
    const bool built = op.is_put ? build_put(stream, op) : build_request(stream, op);
    const bool more = op.is_put ? !op.end_sent : !op.cursor.at_end();
    // Behind the others whose turn it is, not behind those that have not begun.
    if (more) turns_.insert(turns_.begin() + static_cast<std::ptrdiff_t>(std::min(turns_.size(), max_begun - 1)), &op);
    if (built) return true;
  }
  if (stream.servings.queue.empty()) return false;
  build_reply(stream);
  return true;
}

bool TcpEndpoint::build_put(Stream& stream, Op& op) {
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

bool TcpEndpoint::build_request(Stream& stream, Op& op) {
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

void TcpEndpoint::build_reply(Stream& stream) {
  Burst& burst = stream.burst;
  const Serving serving = std::move(stream.servings.queue.front());
  stream.servings.queue.pop_front();
  Refusal refusal = Refusal::none;
  auto held = shared_->regions->hold(serving.region, false);
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

void TcpEndpoint::burst_sent(Stream& stream) {
  const std::uint64_t number = stream.burst.op;
  const std::size_t payload = stream.burst.payload;
  stream.end_burst();
  Op* const found = number == 0 ? nullptr : find(number);
  if (found == nullptr) return;
  Op& op = *found;
  op.moved += payload;
  --op.in_flight;
  // The source is free; the op itself stays until the peer has said that it arrived.
  if (op.end_sent && op.in_flight == 0 && op.level == Complete::local && op.done != nullptr) {
    std::exchange(op.done, nullptr)->complete({});
  }
}

}  // namespace hmc::tcp
