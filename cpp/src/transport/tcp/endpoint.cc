#include "transport/tcp/endpoint.h"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include <string>
#include <utility>

namespace hmc::tcp {
namespace {

// Between a connection's end and the verdict that the peer is lost: control, which knows a goodbye from a death, speaks first.
constexpr double grace_seconds = 0.2;
constexpr std::size_t posted_bytes = 1 << 20;  // moved in the posting call, or for one report of a descriptor
// Moved by each stream before an end: as much as its socket may hold.
constexpr std::size_t drain_bytes = 8 << 20;

}  // namespace

TcpEndpoint::TcpEndpoint(std::shared_ptr<Shared> shared, bool same_host, EndpointSink& sink)
    : EndpointBase({"tcp", max_signal_bytes, kit::operation_type<Op>()}, shared->engine, sink),
      shared_(std::move(shared)),
      meeting_(shared_, same_host, *this),
      turns_(shared_->regions),
      writer_(*this, *engine_, streams_, turns_, operations_),
      reader_(*this, shared_, streams_, writer_, turns_, operations_) {}

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

Status TcpEndpoint::start(kit::Operation& operation) {
  turns_.add(static_cast<Op&>(operation));
  reader_.warm_up(*streams_[0]);
  std::size_t budget = posted_bytes;
  writer_.write(budget);
  if (ready() && writer_.has_output()) engine_->kick();
  return {};
}

// A put's signal goes with its end.
bool TcpEndpoint::send(ByteSpan signal_bytes, std::uint64_t) { return signal(signal_bytes, {}).ok(); }

Status TcpEndpoint::signal(ByteSpan head, ByteSpan body) {
  if (!ready()) [[unlikely]]
    return not_ready();
  HMC_TRY(check_signal(head.size() + body.size()));
  reader_.warm_up(*streams_[0]);
  if (!writer_.signal(head, body)) {
    static const Status& full =
        *new Status(Code::would_block, "the data connection takes no more signals");  // never destroyed: threads send during exit
    return full;
  }
  if (ready() && writer_.has_output()) engine_->kick();
  return {};
}

bool TcpEndpoint::poll(std::size_t& budget) {
  bool moved = reader_.poll(budget);
  if (ready() && writer_.has_output()) moved = writer_.write(budget) || moved;
  return moved;
}

void TcpEndpoint::on_ready(Stream& stream, std::uint32_t events) {
  if (!ready()) return;
  const auto keep = shared_from_this();
  std::size_t budget = posted_bytes;
  if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) reader_.read(stream, budget);
  if (!ready()) return;
  if ((events & EPOLLOUT) != 0) writer_.has_room(stream);
  if (writer_.has_output()) writer_.write(budget);
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

void TcpEndpoint::fail_soon(const Status& reason) {
  if (draining_ || std::exchange(lost_, true)) return;
  grace_timer_ = engine_->at(Deadline::after_seconds(grace_seconds), [this, reason] {
    grace_timer_ = 0;
    const auto keep = shared_from_this();
    drain();
    fail(reason);
  });
}

// What is in the sockets, once: a peer that has only said that it ended may go on writing.
void TcpEndpoint::receive_rest() {
  const auto keep = shared_from_this();
  for (std::size_t i = 0; i < streams_.size() && ready(); ++i) {
    int here = 0;
    if (ioctl(streams_[i]->fd.get(), SIOCINQ, &here) != 0) continue;
    auto budget = static_cast<std::size_t>(here);
    while (ready() && reader_.read(*streams_[i], budget)) {
    }
  }
}

bool TcpEndpoint::has_unsent() const {
  int queued = 0;
  return ready() && (writer_.has_output() || (ioctl(streams_[0]->fd.get(), SIOCOUTQ, &queued) == 0 && queued != 0));
}

// Acknowledgements in the sockets' buffers tell of operations that were delivered: they complete before the others fail. The sink
// receives nothing any more.
void TcpEndpoint::drain() {
  if (!ready()) return;
  draining_ = true;
  turns_.clear();
  std::size_t budget = drain_bytes;
  if (writer_.has_output()) writer_.write(budget);
  for (const auto& stream : streams_) {
    budget = drain_bytes;
    while (!operations_.empty() && ready() && reader_.read(*stream, budget)) {
    }
  }
  budget = drain_bytes;
  if (ready() && writer_.has_output()) writer_.write(budget);
}

void TcpEndpoint::broken(const std::string& what) {
  if (!draining_) fail(Status(Code::protocol, "the peer broke the tcp protocol: " + what));
}

void TcpEndpoint::stop() {
  if (grace_timer_ != 0) engine_->cancel_timer(std::exchange(grace_timer_, 0));
  for (const auto& stream : streams_) stream->stop(*engine_);
  turns_.clear();
  reader_.stop();
  writer_.stop();
}

void TcpEndpoint::close() {
  if (closed()) return;
  drain();
  meeting_.close();
  EndpointBase::close();
}

}  // namespace hmc::tcp
