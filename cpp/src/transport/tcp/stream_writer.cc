#include "transport/tcp/stream_writer.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "transport/tcp/endpoint.h"

namespace hmc::tcp {
namespace {

constexpr std::size_t max_queued = 64 << 10;   // bytes of signals that wait for the socket
constexpr std::size_t max_backlog = 16 << 20;  // bytes of answers that a peer does not read; far more than honest peers let gather

}  // namespace

bool StreamWriter::has_output(const Stream& stream) const noexcept {
  return !stream.burst.head.empty() || !stream.small.empty() || turns_.can_fill(stream);
}

bool StreamWriter::has_output() const noexcept {
  if (!acknowledgements_.empty()) return true;
  return std::ranges::any_of(streams_, [this](const auto& stream) { return !stream->shut && has_output(*stream); });
}

bool StreamWriter::arm() {
  if (!has_output()) return true;
  for (const auto& stream : streams_) {
    if (stream->shut || stream->watch == Stream::Watch::input_and_room) continue;
    if (!stream->blocked) {
      if (!acknowledgements_.empty() || has_output(*stream)) return false;
      continue;
    }
    stream->watch = Stream::Watch::input_and_room;
    engine_.modify(stream->fd.get(), EPOLLIN | EPOLLOUT);
  }
  return true;
}

void StreamWriter::has_room(Stream& stream) {
  if (stream.watch != Stream::Watch::input_and_room) return;
  stream.watch = Stream::Watch::input;
  engine_.modify(stream.fd.get(), EPOLLIN);
  stream.blocked = false;
}

bool StreamWriter::signal(ByteSpan head, ByteSpan body) {
  Stream& stream = *streams_[0];
  if (stream.small.size() >= max_queued) return false;
  Header header;
  header.type = FrameType::signal;
  header.length = static_cast<std::uint32_t>(head.size() + body.size());
  append(stream.small, header);
  append(stream.small, head);
  append(stream.small, body);
  if (stream.burst.head.empty()) write_burst(stream);
  return true;
}

bool StreamWriter::answer(std::uint64_t put, Refusal refusal) {
  Bytes& out = streams_[0]->small;
  if (out.size() > max_backlog) return false;
  if (refusal == Refusal::none) {
    acknowledgements_.add(put, out);
    return true;
  }
  Header header;
  header.type = FrameType::refuse;
  header.op = put;
  header.a = static_cast<std::uint64_t>(refusal);
  append(out, header);
  return true;
}

// Stays on a stream until its socket is full: a transfer that fits into one does not pay for the others' system calls and wakeups.
bool StreamWriter::write(std::size_t& budget) {
  const auto next_stream = [this] { next_stream_ = next_stream_ + 1 == streams_.size() ? 0 : next_stream_ + 1; };
  bool moved = false;
  for (std::size_t refused = 0; refused < streams_.size() && budget != 0;) {
    Stream& stream = *streams_[next_stream_];
    if (const std::size_t sent = write_burst(stream); sent != 0) {
      budget -= std::min(budget, sent);
      moved = true;
      refused = 0;
      if (!stream.blocked) continue;
    } else {
      ++refused;
    }
    next_stream();
  }
  if (budget == 0 && has_output()) next_stream();  // its turn comes, too
  return moved;
}

std::size_t StreamWriter::write_burst(Stream& stream) {
  if (stream.writing || stream.shut) return 0;
  if (stream.blocked && stream.watch == Stream::Watch::input_and_room) return 0;  // the engine says when
  if (stream.burst.head.empty() && !next_burst(stream)) return 0;
  stream.writing = true;
  const std::size_t before = stream.burst.sent;
  const Io io = stream.send_burst();
  const std::size_t sent = stream.burst.sent - before;
  stream.blocked = io == Io::blocked || (io == Io::moved && !stream.burst.done());
  if (io == Io::failed) {
    stream.shut = true;  // what has come in is still read
    endpoint_.fail_soon(Status(Code::peer_lost, std::string("the data connection broke: ") + std::strerror(errno), errno));
  } else if (stream.burst.done()) {
    burst_sent(stream);
  }
  stream.writing = false;
  return sent;
}

bool StreamWriter::next_burst(Stream& stream) {
  Burst& burst = stream.burst;
  burst.head.swap(stream.small);  // both keep a capacity
  acknowledgements_.append_to(burst.head);
  turns_.fill(stream);
  return !burst.head.empty();
}

void StreamWriter::burst_sent(Stream& stream) {
  const std::uint64_t number = stream.burst.op;
  const std::size_t payload = stream.burst.payload;
  stream.end_burst();
  Op* const found = number == 0 ? nullptr : find(operations_, number);
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
