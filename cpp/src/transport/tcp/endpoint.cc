// TcpEndpoint: its life, its operations' ends.
#include "transport/tcp/endpoint.h"

#include <sys/epoll.h>

#include <string>
#include <utility>

namespace hmc::tcp {
namespace {

// Polls for which a link is read without being asked to, after something moved on it.
constexpr int link_heat = 4096;
constexpr int stream_heat = 64;
// Between a connection's end and the verdict that the peer is lost: control, which knows a goodbye from a death, speaks first.
constexpr double grace_seconds = 0.2;
// Moved by each stream before an end: as much as its socket may hold.
constexpr std::size_t drain_bytes = 8 << 20;

}  // namespace

TcpEndpoint::TcpEndpoint(std::shared_ptr<Shared> shared, bool same_host, EndpointSink& sink)
    : EndpointBase({"tcp", max_signal_bytes, kit::operation_type<Op>()}, shared->engine, sink),
      shared_(std::move(shared)),
      meeting_(shared_, same_host, *this),
      turns_(shared_->regions),
      puts_(shared_->regions) {}

Status TcpEndpoint::connect(const Blob& peer_address, Completion* done) {
  HMC_TRY(begin_connect(done));
  Status connecting = meeting_.connect(peer_address);
  if (!connecting.ok()) abandon_connect();
  return connecting;
}

void TcpEndpoint::met(Result<std::vector<UniqueFd>> sockets) {
  if (!sockets.ok()) return connected(sockets.status());
  for (UniqueFd& socket : *sockets) {
    Stream& stream = *streams_.emplace_back(std::make_unique<Stream>(*this, std::move(socket)));
    if (const Status watched = engine_->watch(stream.fd.get(), EPOLLIN, stream); !watched.ok()) {
      for (const auto& made : streams_) made->stop(*engine_);
      streams_.clear();
      return connected(watched);
    }
    stream.watch = Stream::Watch::input;
  }
  connected({});
}

Status TcpEndpoint::check(const Run& run, bool is_put) const {
  return is_put && !static_cast<const ServedRemoteRegion&>(*run.remote).writable() ? read_only_target() : Status();
}

void TcpEndpoint::warm(Stream& stream) noexcept {
  heat_ = link_heat;
  stream.heat = stream_heat;
}

bool TcpEndpoint::poll(std::size_t& budget) {
  bool moved = false;
  if (heat_ > 0) --heat_;
  for (std::size_t i = 0; i < streams_.size() && ready() && heat_ > 0 && budget != 0; ++i) {
    Stream& stream = *streams_[i];
    if (i != 0 && stream.heat == 0) continue;
    if (stream.heat > 0) --stream.heat;
    moved = read(stream, budget) || moved;
  }
  if (ready() && has_output()) moved = write_all(budget) || moved;
  return moved;
}

void TcpEndpoint::on_ready(Stream& stream, std::uint32_t events) {
  if (!ready()) return;
  const auto keep = shared_from_this();
  std::size_t budget = 1 << 20;
  if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) read(stream, budget);
  if (!ready()) return;
  if (stream.watch == Stream::Watch::input_and_room && (events & EPOLLOUT) != 0) {
    stream.watch = Stream::Watch::input;
    engine_->modify(stream.fd.get(), EPOLLIN);
    stream.blocked = false;
  }
  if (has_output()) write_all(budget);
}

bool TcpEndpoint::has_output() const noexcept {
  if (!acknowledgements_.empty()) return true;
  for (const auto& stream : streams_) {
    if (stream->shut) continue;
    if (!stream->burst.head.empty() || !stream->small.empty() || turns_.can_fill(*stream)) return true;
  }
  return false;
}

bool TcpEndpoint::arm() {
  if (!ready() || !has_output()) return true;
  for (const auto& stream : streams_) {
    if (stream->shut || stream->watch == Stream::Watch::input_and_room) continue;
    if (!stream->blocked) {
      if (!stream->burst.head.empty() || !stream->small.empty() || !acknowledgements_.empty() || turns_.can_fill(*stream))
        return false;
      continue;
    }
    stream->watch = Stream::Watch::input_and_room;
    engine_->modify(stream->fd.get(), EPOLLIN | EPOLLOUT);
  }
  return true;
}

void TcpEndpoint::end(Op& op) {
  turns_.ended(op);
  finish(op);
}

// What is in a socket lands, sooner or later. What comes in can be discarded.
Status TcpEndpoint::withdraw(kit::Operation& operation) {
  if (operation.is_put) HMC_TRY(EndpointBase::withdraw(operation));
  for (const auto& stream : streams_) {
    for (Request& request : stream->requests.queue) {
      if (request.op == operation.number) request.op = 0;
    }
  }
  turns_.remove(static_cast<Op&>(operation));
  return {};
}

void TcpEndpoint::lost(Stream& stream, const Status& reason) {
  if (stream.dead) return;
  stream.shut = stream.dead = true;
  stream.heat = 0;
  if (std::exchange(stream.watch, Stream::Watch::none) != Stream::Watch::none) engine_->unwatch(stream.fd.get());
  fail_soon(reason);
}

void TcpEndpoint::fail_soon(const Status& reason) {
  if (draining_ || std::exchange(lost_, true)) return;
  grace_timer_ = engine_->at(Deadline::after_seconds(grace_seconds), [this, reason] {
    grace_timer_ = 0;
    const auto keep = shared_from_this();
    drain();
    fail(reason);
  });
}

// Acknowledgements in the sockets' buffers tell of operations that were delivered: they complete before the others fail. The sink
// receives nothing any more.
void TcpEndpoint::drain() {
  if (!ready()) return;
  draining_ = true;
  turns_.clear();
  std::size_t budget = drain_bytes;
  if (has_output()) write_all(budget);
  for (const auto& stream : streams_) {
    budget = drain_bytes;
    while (!operations_.empty() && ready() && read(*stream, budget)) {
    }
  }
  budget = drain_bytes;
  if (ready() && has_output()) write_all(budget);
}

void TcpEndpoint::broken(const std::string& what) {
  if (!draining_) fail(Status(Code::protocol, "the peer broke the tcp protocol: " + what));
}

void TcpEndpoint::stop() {
  if (grace_timer_ != 0) engine_->cancel_timer(std::exchange(grace_timer_, 0));
  for (const auto& stream : streams_) stream->stop(*engine_);
  turns_.clear();
  puts_.clear();
  acknowledgements_.clear();
}

void TcpEndpoint::close() {
  if (closed()) return;
  drain();
  meeting_.close();
  EndpointBase::close();
}

}  // namespace hmc::tcp
