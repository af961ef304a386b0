// TcpEndpoint: what goes out.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "transport/tcp/endpoint.h"

namespace hmc::tcp {
namespace {

constexpr std::size_t max_queued = 64 << 10;   // bytes of signals that wait for the socket
constexpr std::size_t posted_bytes = 1 << 20;  // written in the posting call

}  // namespace

Status TcpEndpoint::start(kit::Operation& operation) {
  turns_.add(static_cast<Op&>(operation));
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

bool TcpEndpoint::next_burst(Stream& stream) {
  Burst& burst = stream.burst;
  burst.head.swap(stream.small);  // both keep a capacity
  acknowledgements_.append_to(burst.head);
  turns_.fill(stream);
  return !burst.head.empty();
}

void TcpEndpoint::burst_sent(Stream& stream) {
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
