// TcpEndpoint: what comes in. Nothing a peer sends is believed before it was checked; payload goes straight to where it belongs,
// and only while that is still there.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "transport/tcp/endpoint.h"

namespace hmc::tcp {
namespace {

constexpr std::size_t max_backlog = 16 << 20;  // bytes of answers that a peer does not read; far more than honest peers let gather
constexpr std::size_t max_serving = 64;        // gets per stream; honest peers ask for 4
constexpr std::size_t max_pieces = 512;        // of one read

}  // namespace

bool TcpEndpoint::read(Stream& stream, std::size_t& budget) {
  if (stream.reading || stream.dead) return false;
  stream.reading = true;
  bool moved = false;
  while (ready() && !stream.dead && budget != 0) {
    vectors_.clear();
    const std::size_t expected = stream.payload.left;
    if (expected != 0) targets(stream, vectors_);
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
    warm(stream);
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
bool TcpEndpoint::parse(Stream& stream) {
  while (ready()) {
    const std::span<std::byte> unread = stream.received.unread();
    if (stream.payload.left != 0) {
      if (unread.empty()) return true;
      vectors_.clear();
      targets(stream, vectors_);
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
      broken("a malformed header");
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
      if (ready()) broken("a frame out of place");
      return false;
    }
  }
  return false;
}

bool TcpEndpoint::on_frame(Stream& stream, const Header& header, ByteSpan inline_part) {
  switch (header.type) {
    case FrameType::signal:
      if (!draining_) sink_->on_signal(inline_part);
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

bool TcpEndpoint::begin_payload(Stream& stream, const Header& header, ByteSpan extents) {
  Payload& payload = stream.payload;
  payload.header = header;
  payload.piece = 0;
  payload.offset = 0;
  payload.left = header.length;
  if (header.type == FrameType::get_data) {
    return !stream.requests.queue.empty() && stream.requests.queue.front().id == header.op &&
           stream.requests.queue.front().length == header.length && std::exchange(stream.requests.answered, true) == false;
  }
  if (!decode_extents(header, extents, payload.extents)) return false;
  const auto [place, fresh] = incoming_.try_emplace(header.op);
  if (fresh && incoming_.size() > max_incoming) return false;
  Incoming& incoming = place->second;
  // The whole range is checked before the first byte is written.
  if (const ServedRegion* region = shared_->regions->find(header.a); region != nullptr && incoming.refusal == Refusal::none) {
    if (!region->writable()) incoming.refusal = Refusal::access;
    if (!inside(payload.extents, region->bytes())) incoming.refusal = Refusal::range;
  }
  return true;
}

// Where the rest of the payload goes, as of now: a region may have been closed, a get cancelled, since the frame began.
void TcpEndpoint::targets(Stream& stream, std::vector<iovec>& out) {
  Payload& payload = stream.payload;
  std::byte* base = nullptr;
  if (payload.header.type == FrameType::put) {
    const auto incoming =
        incoming_.find(payload.header.op);  // not there: the peer ended it early, and is told so once this is read
    const ServedRegion* region = shared_->regions->find(payload.header.a);
    if (incoming != incoming_.end()) {
      Refusal& refusal = incoming->second.refusal;
      if (region == nullptr && refusal == Refusal::none) refusal = Refusal::stale;
      if (refusal == Refusal::none) base = region->data();
    }
  }
  const Request* request = payload.header.type == FrameType::get_data ? &stream.requests.queue.front() : nullptr;
  if (base == nullptr && (request == nullptr || request->op == 0)) {
    out.push_back({shared_->scratch.data(), std::min(payload.left, shared_->scratch.size())});
    return;
  }
  std::size_t piece = payload.piece;
  std::size_t offset = payload.offset;
  for (std::size_t left = payload.left; left != 0 && out.size() < max_pieces; ++piece, offset = 0) {
    const iovec whole =
        request != nullptr ? request->pieces[piece] : iovec{base + payload.extents[piece].offset, payload.extents[piece].length};
    out.push_back({static_cast<std::byte*>(whole.iov_base) + offset, whole.iov_len - offset});
    left -= whole.iov_len - offset;
  }
}

void TcpEndpoint::payload_arrived(Stream& stream, std::size_t bytes) {
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

void TcpEndpoint::payload_ended(Stream& stream) {
  const Header& header = stream.payload.header;
  if (header.type != FrameType::put) return;  // get_end follows
  const auto incoming = incoming_.find(header.op);
  if (incoming != incoming_.end()) incoming->second.received += header.length;
  if (incoming == incoming_.end() || !put_maybe_done(header.op)) broken("more bytes than a put has, or answers left unread");
}

bool TcpEndpoint::on_put_end(const Header& header, ByteSpan signal) {
  const auto [place, fresh] = incoming_.try_emplace(header.op);
  if (fresh && incoming_.size() > max_incoming) return false;
  Incoming& incoming = place->second;
  if (incoming.ended) return false;
  incoming.ended = true;
  incoming.total = header.a;
  incoming.signal.assign(signal.begin(), signal.end());
  return put_maybe_done(header.op);
}

// False: the peer sent more than it said, or reads nothing of what we answer.
bool TcpEndpoint::put_maybe_done(std::uint64_t number) {
  const auto place = incoming_.find(number);
  const Incoming& incoming = place->second;
  if (!incoming.ended) return true;
  if (incoming.received != incoming.total) return incoming.received < incoming.total;
  const Refusal refusal = incoming.refusal;
  const Bytes signal = std::move(place->second.signal);
  incoming_.erase(place);
  if (streams_[0]->small.size() > max_backlog) return false;
  if (refusal != Refusal::none) {
    Header header;
    header.type = FrameType::refuse;
    header.op = number;
    header.a = static_cast<std::uint64_t>(refusal);
    Bytes& out = streams_[0]->small;
    out.resize(out.size() + header_bytes);
    encode_header(out.data() + out.size() - header_bytes, header);
    return true;
  }
  if (ack_count_ != 0 && ack_first_ + ack_count_ == number) {
    ++ack_count_;
  } else {
    if (ack_count_ != 0) append_acks(streams_[0]->small);
    ack_first_ = number;
    ack_count_ = 1;
  }
  if (!signal.empty() && !draining_) sink_->on_signal(signal);
  return true;
}

bool TcpEndpoint::on_ack(std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    Op* const op = find(first + i);
    if (op == nullptr || !op->is_put || !op->end_sent || op->in_flight != 0) return false;
    end(*op);
    if (!ready()) return true;
  }
  return true;
}

bool TcpEndpoint::on_refuse(std::uint64_t number, Refusal refusal) {
  Op* const op = find(number);
  if (op == nullptr || !op->is_put || !op->end_sent || op->in_flight != 0) return false;
  op->failure = to_status(refusal);
  end(*op);
  return true;
}

bool TcpEndpoint::on_get(Stream& stream, const Header& header, ByteSpan extents) {
  Serving serving;
  if (!decode_extents(header, extents, serving.extents) || stream.servings.queue.size() >= max_serving) return false;
  serving.id = header.op;
  serving.region = header.a;
  serving.length = header.length;
  stream.servings.queue.push_back(std::move(serving));
  return true;
}

bool TcpEndpoint::on_get_end(Stream& stream, const Header& header) {
  if (stream.requests.queue.empty() || stream.requests.queue.front().id != header.op) return false;
  const auto refusal = static_cast<Refusal>(header.a);
  if ((refusal == Refusal::none) != std::exchange(stream.requests.answered, false)) return false;
  const Request request = std::move(stream.requests.queue.front());
  stream.requests.queue.pop_front();
  Op* const found = request.op == 0 ? nullptr : find(request.op);
  if (found == nullptr) return true;
  Op& op = *found;
  --op.in_flight;
  if (refusal == Refusal::none) {
    op.moved += request.length;
  } else if (op.failure.ok()) {
    op.failure = to_status(refusal);
    std::erase(turns_, &op);
  }
  if (op.ended()) end(op);
  return true;
}

}  // namespace hmc::tcp
