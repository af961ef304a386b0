#include "transport/tcp/stream_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "transport/tcp/endpoint.h"
#include "transport/tcp/stream_writer.h"

namespace hmc::tcp {
namespace {

// Polls for which a link is read without being asked to, after something moved on it.
constexpr int link_heat = 4096;
constexpr int stream_heat = 64;
constexpr std::size_t max_serving = 64;       // gets per stream; honest peers ask for 4
constexpr std::size_t max_read_pieces = 512;  // of one read

}  // namespace

void StreamReader::warm_up(Stream& stream) noexcept {
  heat_ = link_heat;
  stream.heat = stream_heat;
}

bool StreamReader::poll(std::size_t& budget) {
  bool moved = false;
  if (heat_ > 0) --heat_;
  for (std::size_t i = 0; i < streams_.size() && heat_ > 0 && budget != 0; ++i) {
    Stream& stream = *streams_[i];
    if (i != 0 && stream.heat == 0) continue;
    if (stream.heat > 0) --stream.heat;
    moved = read(stream, budget) || moved;
  }
  return moved;
}

void StreamReader::lost(Stream& stream, const Status& reason) {
  if (stream.dead) return;
  stream.shut = stream.dead = true;
  stream.heat = 0;
  if (std::exchange(stream.watch, Stream::Watch::none) != Stream::Watch::none) shared_->engine->unwatch(stream.fd.get());
  endpoint_.fail_soon(reason);
}

// Nothing behind it is read, also where the endpoint drains.
void StreamReader::broken(Stream& stream, const char* what) {
  stream.dead = true;
  endpoint_.broken(what);
}

bool StreamReader::read(Stream& stream, std::size_t& budget) {
  if (stream.reading || stream.dead) return false;
  stream.reading = true;
  bool moved = false;
  while (!stream.dead && budget != 0) {
    const std::size_t expected = stream.payload.left;
    vectors_.clear();
    if (expected != 0) targets(stream);
    std::size_t bytes = 0;
    const Io io = stream.received.receive(stream.fd.get(), vectors_, expected, bytes);
    if (io == Io::blocked) break;
    if (io == Io::failed || bytes == 0) {
      const int code = io == Io::failed ? errno : 0;
      lost(stream, Status(Code::peer_lost,
                          code == 0 ? "the peer closed the data connection"
                                    : std::string("the data connection broke: ") + std::strerror(code),
                          code));
      break;
    }
    moved = true;
    warm_up(stream);
    budget -= std::min(budget, bytes);
    const std::size_t direct = std::min(bytes, expected);
    if (direct != 0) payload_arrived(stream, direct);
    if (!parse(stream)) break;
    // A short read has emptied the socket: the next poll looks again, this one need not.
    if (expected == 0 ? bytes < (4U << 10) : direct < expected) break;
  }
  stream.reading = false;
  return moved;
}

// Frames in the buffer. False when the link is over.
bool StreamReader::parse(Stream& stream) {
  while (!stream.dead) {
    const std::span<std::byte> unread = stream.received.unread();
    if (stream.payload.left != 0) {
      if (unread.empty()) return true;
      vectors_.clear();
      targets(stream);
      std::size_t copied = 0;
      for (const iovec& target : vectors_) {
        const std::size_t step = std::min(target.iov_len, unread.size() - copied);
        std::memcpy(target.iov_base, unread.data() + copied, step);
        copied += step;
        if (copied == unread.size()) break;
      }
      stream.received.consume(copied);
      payload_arrived(stream, copied);
      continue;
    }
    if (unread.size() < header_bytes) {
      stream.received.make_room(header_bytes);
      return true;
    }
    Header header;
    if (!decode_header(unread.data(), header)) {
      broken(stream, "a malformed header");
      return false;
    }
    const std::size_t whole = header_bytes + inline_bytes(header);
    if (unread.size() < whole) {
      stream.received.make_room(whole);
      return true;
    }
    // Consumed first: what the frame causes may not look at the buffer, nor move it.
    const ByteSpan inline_part(unread.data() + header_bytes, whole - header_bytes);
    stream.received.consume(whole);
    if (!on_frame(stream, header, inline_part)) {
      broken(stream, "a frame out of place");
      return false;
    }
  }
  return false;
}

bool StreamReader::on_frame(Stream& stream, const Header& header, ByteSpan inline_part) {
  switch (header.type) {
    case FrameType::signal:
      endpoint_.deliver(inline_part);
      return true;
    case FrameType::put:
    case FrameType::get_data:
      return begin_payload(stream, header, inline_part);
    case FrameType::put_end:
      return on_put_end(header, inline_part);
    case FrameType::ack:
      return on_ack(header.op, header.a);
    case FrameType::refuse:
      return on_refuse(header.op, static_cast<Refusal>(header.a));
    case FrameType::get:
      return on_get(stream, header, inline_part);
    case FrameType::get_end:
      return on_get_end(stream, header);
  }
  return false;
}

bool StreamReader::begin_payload(Stream& stream, const Header& header, ByteSpan extents) {
  Payload& payload = stream.payload;
  payload.header = header;
  payload.piece = 0;
  payload.offset = 0;
  payload.left = header.length;
  if (header.type == FrameType::get_data) {
    return !stream.requests.queue.empty() && stream.requests.queue.front().id == header.op &&
           stream.requests.queue.front().length == header.length && std::exchange(stream.requests.answered, true) == false;
  }
  return decode_extents(header, extents, payload.extents) && puts_.begin(header, payload.extents);
}

// Appends where the rest of the payload goes, as of now: a region may have been closed, a get cancelled, since the frame began.
void StreamReader::targets(Stream& stream) {
  Payload& payload = stream.payload;
  std::byte* const base = payload.header.type == FrameType::put ? puts_.target(payload.header) : nullptr;
  const Request* request = payload.header.type == FrameType::get_data ? &stream.requests.queue.front() : nullptr;
  if (base == nullptr && (request == nullptr || request->op == 0)) {
    vectors_.push_back({shared_->scratch.data(), std::min(payload.left, shared_->scratch.size())});
    return;
  }
  std::size_t piece = payload.piece;
  std::size_t offset = payload.offset;
  for (std::size_t left = payload.left; left != 0 && vectors_.size() < max_read_pieces; ++piece, offset = 0) {
    const iovec whole =
        request != nullptr ? request->pieces[piece] : iovec{base + payload.extents[piece].offset, payload.extents[piece].length};
    vectors_.push_back({static_cast<std::byte*>(whole.iov_base) + offset, whole.iov_len - offset});
    left -= whole.iov_len - offset;
  }
}

void StreamReader::payload_arrived(Stream& stream, std::size_t bytes) {
  Payload& payload = stream.payload;
  payload.left -= bytes;
  if (payload.left == 0) return payload_ended(stream);
  const Request* request = payload.header.type == FrameType::get_data ? &stream.requests.queue.front() : nullptr;
  while (bytes != 0) {
    const std::size_t length = request != nullptr ? request->pieces[payload.piece].iov_len : payload.extents[payload.piece].length;
    const std::size_t step = std::min(bytes, length - payload.offset);
    bytes -= step;
    payload.offset += step;
    if (payload.offset == length) {
      payload.offset = 0;
      ++payload.piece;
    }
  }
}

void StreamReader::payload_ended(Stream& stream) {
  const Header& header = stream.payload.header;
  if (header.type != FrameType::put) return;  // get_end follows
  std::optional<IncomingPuts::Arrived> arrived;
  if (!puts_.received(header, arrived) || (arrived && !put_arrived(*arrived))) {
    broken(stream, "more bytes than a put has, or answers left unread");
  }
}

bool StreamReader::on_put_end(const Header& header, ByteSpan signal) {
  std::optional<IncomingPuts::Arrived> arrived;
  return puts_.ended(header, signal, arrived) && (!arrived || put_arrived(*arrived));
}

bool StreamReader::put_arrived(const IncomingPuts::Arrived& put) {
  if (!writer_.answer(put.number, put.refusal)) return false;
  if (put.refusal == Refusal::none && !put.signal.empty()) endpoint_.deliver(put.signal);
  return true;
}

bool StreamReader::on_ack(std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    Op* const op = find(operations_, first + i);
    if (op == nullptr || !op->is_put || !op->end_sent || op->in_flight != 0) return false;
    endpoint_.end(*op);
  }
  return true;
}

bool StreamReader::on_refuse(std::uint64_t number, Refusal refusal) {
  Op* const op = find(operations_, number);
  if (op == nullptr || !op->is_put || !op->end_sent || op->in_flight != 0) return false;
  op->failure = to_status(refusal);
  endpoint_.end(*op);
  return true;
}

bool StreamReader::on_get(Stream& stream, const Header& header, ByteSpan extents) {
  Serving serving;
  if (!decode_extents(header, extents, serving.extents) || stream.servings.queue.size() >= max_serving) return false;
  serving.id = header.op;
  serving.region = header.a;
  serving.length = header.length;
  stream.servings.queue.push_back(std::move(serving));
  return true;
}

bool StreamReader::on_get_end(Stream& stream, const Header& header) {
  if (stream.requests.queue.empty() || stream.requests.queue.front().id != header.op) return false;
  const auto refusal = static_cast<Refusal>(header.a);
  if ((refusal == Refusal::none) != std::exchange(stream.requests.answered, false)) return false;
  const Request request = std::move(stream.requests.queue.front());
  stream.requests.queue.pop_front();
  Op* const found = request.op == 0 ? nullptr : find(operations_, request.op);
  if (found == nullptr) return true;
  Op& op = *found;
  --op.in_flight;
  if (refusal == Refusal::none) {
    op.moved += request.length;
  } else if (op.failure.ok()) {
    op.failure = to_status(refusal);
    turns_.remove(op);
  }
  if (op.ended()) endpoint_.end(op);
  return true;
}

}  // namespace hmc::tcp
