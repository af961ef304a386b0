#include "transport/ucx/endpoint.h"

#include <algorithm>
#include <utility>

namespace hmc::ucx {
namespace {

// A peer of another UCX, or one that no common way leads to, may say nothing at all.
constexpr double patience_seconds = 15;

}  // namespace

Result<std::shared_ptr<UcxEndpoint>> UcxEndpoint::create(std::shared_ptr<const LibraryContext> context,
                                                         std::shared_ptr<Regions> regions, EndpointSink& sink) {
  HMC_ASSIGN(auto worker, Worker::create(std::move(context)));
  auto endpoint = std::shared_ptr<UcxEndpoint>(new UcxEndpoint(std::move(worker), std::move(regions), sink));
  endpoint->worker_->serve(*endpoint);
  return endpoint;
}

UcxEndpoint::UcxEndpoint(std::shared_ptr<Worker> worker, std::shared_ptr<Regions> regions, EndpointSink& sink)
    : EndpointBase({"ucx", max_body, kit::operation_type<Op>()}, worker->context().shared_engine(), sink),
      worker_(std::move(worker)),
      server_(std::move(regions), channel_, requests_) {}

UcxEndpoint::~UcxEndpoint() { close(); }

Result<Blob> UcxEndpoint::address() {
  if (stopped()) return not_ready();
  Blob blob;
  blob.bytes = encode_address({token(), worker_->address()});
  return blob;
}

Status UcxEndpoint::connect(const Blob& peer_address, Completion* done) {
  HMC_ASSIGN(const Address peer, decode_address(peer_address.bytes));
  if (!peer_address.fds.empty()) return Status(Code::protocol, "malformed ucx address");
  HMC_TRY(begin_connect(done));
  channel_.peer_token = peer.token;
  if (Status made = worker_->connect(peer.worker); !made.ok()) {
    abandon_connect();
    return made;
  }
  patience_ = engine_->at(Deadline::after_seconds(patience_seconds), [this] {
    fail(Status(Code::transport, "the peer was not heard over UCX within " + std::to_string(static_cast<int>(patience_seconds)) +
                                     " s; do both sides' UCX_TLS and UCX_NET_DEVICES name a network that joins them?"));
  });
  if (channel_.send(Request::Kind::signal, {})) maybe_connected();  // hello
  engine_->kick();
  return {};
}

// Once the peer's hello is here there is a way in both directions, or UCX says so.
void UcxEndpoint::maybe_connected() {
  if (!connecting() || !channel_.heard()) return;
  engine_->cancel_timer(patience_);
  const std::vector<std::string> names = worker_->context().lanes(worker_->endpoint());
  transfers_.ways[0] = std::ranges::any_of(names, writes_memory);
  for (const MemoryKind kind : {MemoryKind::cuda, MemoryKind::rocm}) {
    transfers_.ways[static_cast<std::size_t>(kind)] = std::ranges::find(names, sharing_transport(kind)) != names.end();
  }
  if (worker_->context().long_segments(names)) requests_.piece = max_piece;
  lanes = joined(names);
  connected({});
}

Result<std::unique_ptr<RemoteRegion>> UcxEndpoint::import_region(const Blob& exported) {
  HMC_ASSIGN(const RegionKey key, decode_region(exported.bytes));
  if (!exported.fds.empty()) return Status(Code::protocol, "malformed ucx region");
  if (!ready()) return Status(Code::transport, "a ucx region is imported over a connection, and this one is not connected");
  const bool direct = transfers_.direct(key.kind);
  if (key.kind != MemoryKind::host && !direct) {
    return Status(Code::unsupported, "UCX (" + lanes + ") has no way for memory of devices to this peer");
  }
  return UcxRemoteRegion::create(key, worker_, direct);
}

Status UcxEndpoint::check(const Run& run, bool is_put) const {
  if (is_put && !remote_of(run).writable()) {
    return Status(Code::invalid_argument, "put into a region that its owner exported for reading only");
  }
  if (local_of(run).kind() == remote_of(run).kind()) return {};
  return Status(Code::unsupported, "ucx moves nothing between memory of a device and of the CPU");
}

Status UcxEndpoint::start(kit::Operation& operation) {
  bool reached = true;
  if (operation.after != nullptr) {
    HMC_ASSIGN(reached, operation.after->reached());
  }
  if (operation.cursor.at_end()) {
    finish(operation);
    return {};
  }
  transfers_.add(static_cast<Op&>(operation), reached);
  advance();
  if (due()) engine_->kick();
  return {};
}

Status UcxEndpoint::withdraw(kit::Operation& operation) {
  HMC_TRY(EndpointBase::withdraw(operation));
  transfers_.withdraw(static_cast<Op&>(operation));
  if (due()) engine_->kick();  // another has its place
  return {};
}

Status UcxEndpoint::signal(ByteSpan head, ByteSpan body) {
  if (!ready()) [[unlikely]]
    return not_ready();
  HMC_TRY(check_signal(head.size() + body.size()));
  if (!waiting_.empty() || !requests_.room_for(Request::Kind::signal)) {
    static const Status& full =
        *new Status(Code::would_block, "UCX has no room for another signal");  // never destroyed: threads send during exit
    return full;
  }
  MessageHead message;
  message.kind = MessageKind::signal;
  return channel_.send(Request::Kind::signal, message, head, body) ? Status() : not_ready();
}

// `put`: its end, which the peer answers.
bool UcxEndpoint::send(ByteSpan signal, std::uint64_t put) {
  if (!requests_.room_for(Request::Kind::signal)) return false;
  MessageHead head;
  head.kind = put != 0 ? MessageKind::put_signal : MessageKind::signal;
  head.op = put;
  return channel_.send(Request::Kind::signal, head, signal);
}

void UcxEndpoint::lost(ucs_status_t status) {
  fail(Status(Code::peer_lost, std::string("UCX lost the connection: ") + worker_->api().status_string(status), status));
}

void UcxEndpoint::stop() {
  worker_->close();  // first of all
  if (connecting()) engine_->cancel_timer(patience_);
  transfers_.stop();
  channel_.stop();
  server_.stop();
}

// What has come is found by UCX's progress alone.
void UcxEndpoint::receive_rest() {
  constexpr int most = 1024;  // polls, each of which UCX bounds
  for (int i = 0; i < most && busy() && poll(); ++i) {
  }
}

bool UcxEndpoint::poll() {
  bool moved = worker_->progress();
  if (transfers_.holds()) [[unlikely]]
    moved = transfers_.release_held() || moved;
  if (!worker_->has_news() && !due()) return moved;
  const auto keep = shared_from_this();
  if (worker_->has_news()) {
    worker_->deliver();
    moved = true;
  }
  return advance() || moved;
}

bool UcxEndpoint::advance() {
  if (advancing_) return false;  // posted by a completion: the call that it is within goes on
  const auto keep = shared_from_this();
  advancing_ = true;
  bool moved = send_waiting();
  if (ready()) moved = server_.send_answers() || moved;
  if (ready()) moved = transfers_.advance() || moved;
  advancing_ = false;
  return moved;
}

void UcxEndpoint::on_ended(Request& request) {
  const Request::Kind kind = request.kind;
  const ucs_status_t status = request.status;
  const std::uint64_t number = request.op, stamp = request.stamp;
  const std::size_t bytes = request.bytes;
  const bool passes = status == UCS_OK || request.refused();
  requests_.release(request);
  if (!ready() && !connecting()) return;
  if (!passes) return lost(status);
  if (kind == Request::Kind::flush) {
    transfers_.on_flushed(stamp);
  } else if (kind == Request::Kind::data) {
    transfers_.on_ended(number, bytes, status);
  }
}

bool UcxEndpoint::place(MessageHead& head, ByteSpan body) {
  if (stopped()) return true;
  head.bytes = static_cast<std::uint32_t>(body.size());
  return head.kind == MessageKind::got ? transfers_.place(head, body) : server_.place(head, body);
}

void UcxEndpoint::on_message(const MessageHead& head, ByteSpan body, bool sound) {
  if (stopped()) return;
  const Channel::Turn turn = sound ? channel_.turn_of(head, body) : Channel::Turn::cannot;
  if (turn == Channel::Turn::cannot) {
    return fail(Status(Code::protocol, "the peer sent a ucx message that this version cannot have sent"));
  }
  if (turn == Channel::Turn::later) return;
  take(head, body);
  while (const auto next = channel_.next_kept()) take(next->head, next->body);
}

void UcxEndpoint::take(const MessageHead& head, ByteSpan body) {
  if (head.kind == MessageKind::hello && head.number == 0) return maybe_connected();
  if (!ready() || head.kind == MessageKind::hello || head.number == 0) {
    return fail(Status(Code::protocol, "the peer sent a ucx message out of place"));
  }
  switch (head.kind) {
    case MessageKind::hello:
    case MessageKind::put:
      return;
    case MessageKind::signal:
      return sink_->on_signal(body);
    case MessageKind::put_last:
    case MessageKind::put_signal: {
      const auto in_place = server_.on_put(head);
      if (!in_place) return fail(Status(Code::protocol, "the peer leaves more puts unanswered than this version would"));
      if (*in_place && head.kind == MessageKind::put_signal && ready()) sink_->on_signal(body);
      return;
    }
    case MessageKind::put_done:
      return transfers_.on_put_done(head);
    case MessageKind::get:
      if (!server_.on_get(head)) fail(Status(Code::protocol, "the peer asks for more than this version would"));
      return;
    case MessageKind::got:
      return transfers_.on_got(head);
    case MessageKind::get_failed:
      return transfers_.on_get_failed(head);
  }
}

}  // namespace hmc::ucx
