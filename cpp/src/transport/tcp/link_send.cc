// Link: what goes out. Streams pull: whichever has room takes the next slice.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "transport/tcp/link.h"

namespace hmc::tcp {
namespace {

constexpr std::size_t slice_bytes = 256 << 10;
constexpr std::size_t max_pieces = 500;        // per slice; with what goes around them within one system call
constexpr std::size_t max_requests = 4;        // gets under way per stream
constexpr std::size_t max_queued = 64 << 10;   // bytes of signals that wait for the socket
constexpr std::size_t posted_bytes = 1 << 20;  // written in the posting call
constexpr std::size_t max_begun = 64;          // puts whose slices alternate

const TcpRemoteRegion& remote_of(const Run& run) noexcept { return static_cast<const TcpRemoteRegion&>(*run.remote); }
std::byte* local_data(const Run& run) noexcept { return static_cast<std::byte*>(run.local->view().span.data); }

void append(Bytes& out, const Header& header) {
  const std::size_t at = out.size();
  out.resize(at + header_bytes);
  encode_header(out.data() + at, header);
}

void append(Bytes& out, ByteSpan bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); }

// The next slice of an operation: pieces of local memory, and the ranges of one remote region that they belong to.
struct Slice {
  const TcpRemoteRegion* remote = nullptr;
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

Status Link::post(const TransferOp& transfer, Completion* done, bool is_put) {
  if (!ready_) [[unlikely]]
    return not_ready();
  HMC_ASSIGN(const std::size_t bytes, check_runs(transfer.runs));
  if (is_put) {
    for (const Run& run : transfer.runs) {
      if (run.count != 0 && run.block != 0 && !remote_of(run).writable()) {
        return Status(Code::invalid_argument, "put into a region that its owner exported for reading only");
      }
    }
    if (transfer.signal.size() > max_signal_bytes) {
      return Status(Code::invalid_argument, "an attached signal of " + std::to_string(transfer.signal.size()) + " bytes; at most " +
                                                std::to_string(max_signal_bytes));
    }
  }
  auto op = std::make_unique<Op>();
  op->cursor = RunCursor(transfer.runs);
  op->done = done;
  op->number = ++last_number_;
  op->bytes = bytes;
  op->level = transfer.level;
  op->is_put = is_put;
  if (op->cursor.at_end() && transfer.signal.empty()) {
    finish(std::move(op));
    return {};
  }
  op->signal.assign(transfer.signal.begin(), transfer.signal.end());
  turns_.push_back(op->number);
  ops_.emplace(op->number, std::move(op));
  warm(*streams_[0]);
  std::size_t budget = posted_bytes;
  write_all(budget);
  if (ready_ && has_output()) shared_->engine->kick();
  return {};
}

Status Link::signal(ByteSpan head, ByteSpan body) {
  if (!ready_) [[unlikely]]
    return not_ready();
  const std::size_t bytes = head.size() + body.size();
  if (bytes > max_signal_bytes) [[unlikely]] {
    return Status(Code::invalid_argument,
                  "a signal of " + std::to_string(bytes) + " bytes; at most " + std::to_string(max_signal_bytes));
  }
  Stream& stream = *streams_[0];
  warm(stream);
  if (stream.small.size() >= max_queued) {
    blocked_signal_ = true;
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
    shared_->engine->kick();
    return {};
  }
  std::size_t budget = posted_bytes;
  write(stream, budget);
  if (ready_ && has_output()) shared_->engine->kick();
  return {};
}

bool Link::write_all(std::size_t& budget) {
  bool moved = false;
  // A slice each in turn, so that all streams carry.
  bool again = true;
  while (again && ready_ && budget != 0) {
    again = false;
    for (std::size_t i = 0; i < count_ && ready_ && budget != 0; ++i) {
      next_stream_ = next_stream_ + 1 >= count_ ? 0 : next_stream_ + 1;
      again = write(*streams_[next_stream_], budget) || again;
    }
    moved = moved || again;
  }
  return moved;
}

// One burst of the stream. True if anything moved.
bool Link::write(Stream& stream, std::size_t& budget) {
  if (stream.writing || stream.dead) return false;
  if (stream.blocked && stream.watches_out) return false;  // the engine says when
  if (stream.burst.head.empty() && !next_burst(stream)) return false;
  stream.writing = true;
  const std::size_t before = stream.burst.sent;
  const Stream::Io io = stream.send_burst();
  const std::size_t sent = stream.burst.sent - before;
  budget -= std::min(budget, sent);
  stream.blocked = io == Stream::Io::blocked;
  if (io == Stream::Io::failed) {
    lost(stream, Status(Code::peer_lost, std::string("the data connection broke: ") + std::strerror(errno), errno));
  } else if (stream.burst.done()) {
    burst_sent(stream);
  }
  stream.writing = false;
  return sent != 0;
}

bool Link::can_build(const Stream& stream) const noexcept {
  if (!stream.serving.empty()) return true;
  if (turns_.empty()) return false;
  if (stream.requests.size() < max_requests) return true;
  return std::any_of(turns_.begin(), turns_.end(), [&](std::uint64_t number) {
    const Op& op = *ops_.at(number);
    return op.is_put && may_send(op);
  });
}

bool Link::next_burst(Stream& stream) {
  Burst& burst = stream.burst;
  burst.head.swap(stream.small);  // both keep a capacity
  if (blocked_signal_ && &stream == streams_[0].get()) blocked_signal_ = false;
  append_acks(burst.head);
  // Requests are small and join; a slice or a reply ends the burst.
  while (can_build(stream) && burst.payload == 0 && burst.op == 0) {
    if (!build_slice(stream)) break;
  }
  return !burst.head.empty();
}

void Link::append_acks(Bytes& out) {
  if (ack_count_ == 0) return;
  Header header;
  header.type = FrameType::ack;
  header.op = ack_first_;
  header.a = std::exchange(ack_count_, 0);
  append(out, header);
}

bool Link::build_slice(Stream& stream) {
  // Replies and own operations alternate.
  if (!stream.serving.empty() && (turns_.empty() || stream.serve_first)) {
    stream.serve_first = false;
    build_reply(stream);
    return true;
  }
  stream.serve_first = true;
  const std::size_t looks = std::min(turns_.size(), max_begun);
  for (std::size_t i = 0; i < looks; ++i) {
    const std::uint64_t number = turns_.front();
    turns_.pop_front();
    Op& op = *ops_.at(number);
    const bool built = op.is_put ? build_put(stream, op) : build_request(stream, op);
    const bool more = op.is_put ? !op.end_sent : !op.cursor.at_end();
    // Behind the others whose turn it is, not behind those that have not begun.
    if (more) turns_.insert(turns_.begin() + static_cast<std::ptrdiff_t>(std::min(turns_.size(), max_begun - 1)), number);
    if (built) return true;
  }
  if (stream.serving.empty()) return false;
  build_reply(stream);
  return true;
}

bool Link::build_put(Stream& stream, Op& op) {
  if (!may_send(op)) return false;
  Burst& burst = stream.burst;
  const bool first = !std::exchange(op.begun, true);
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
  ++op.under_way;
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
  }
  return true;
}

bool Link::build_request(Stream& stream, Op& op) {
  if (stream.requests.size() >= max_requests) return false;
  op.begun = true;
  cut(op.cursor, scratch_slice);
  Request request;
  request.id = ++last_request_;
  request.op = op.number;
  request.length = static_cast<std::uint32_t>(scratch_slice.bytes);
  append_request(stream.burst.head, FrameType::get, request.id, scratch_slice);
  request.pieces = scratch_slice.pieces;
  stream.requests.push_back(std::move(request));
  ++op.under_way;
  return true;
}

void Link::build_reply(Stream& stream) {
  Burst& burst = stream.burst;
  const Serving serving = std::move(stream.serving.front());
  stream.serving.pop_front();
  Refusal refusal = Refusal::none;
  if (TcpLocalRegion* region = find(serving.region); region == nullptr) {
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
    burst.region = serving.region;
  }
  Header end;
  end.type = FrameType::get_end;
  end.op = serving.id;
  end.a = static_cast<std::uint64_t>(refusal);
  append(refusal == Refusal::none ? burst.tail : burst.head, end);
}

void Link::burst_sent(Stream& stream) {
  const std::uint64_t number = stream.burst.op;
  const std::size_t payload = stream.burst.payload;
  stream.burst.clear();
  const auto place = number == 0 ? ops_.end() : ops_.find(number);
  if (place == ops_.end()) return;
  Op& op = *place->second;
  op.moved += payload;
  --op.under_way;
  // The source is free; the op itself stays until the peer has said that it arrived.
  if (op.end_sent && op.under_way == 0 && op.level == Complete::local && op.done != nullptr) {
    std::exchange(op.done, nullptr)->complete({});
  }
}

}  // namespace hmc::tcp
