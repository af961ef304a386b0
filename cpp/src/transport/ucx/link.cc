// Link: its life, its requests, and what comes in.
#include "transport/ucx/link.h"

#include <algorithm>
#include <utility>

#include "base/random.h"

namespace hmc::ucx {
namespace {

// A peer of another UCX, or one that no common way leads to, may say nothing at all.
constexpr double patience_seconds = 15;

}  // namespace

Result<std::shared_ptr<Link>> Link::create(std::shared_ptr<const LibraryContext> context, std::shared_ptr<Regions> regions,
                                           EndpointSink& sink) {
  HMC_ASSIGN(auto worker, Worker::create(std::move(context)));
  auto link = std::shared_ptr<Link>(new Link(std::move(worker), std::move(regions), sink));
  link->worker_->serve(*link);
  return link;
}

Link::~Link() { close(); }

Result<Blob> Link::address() {
  if (closed_) return Status(Code::closed, "the ucx endpoint is closed");
  Blob blob;
  blob.bytes = encode_address({token_, worker_->address()});
  return blob;
}

Status Link::connect(const Blob& peer_address, Completion* done) {
  if (closed_) return Status(Code::closed, "the ucx endpoint is closed");
  if (worker_->endpoint() != nullptr || !failure_.ok()) {
    return Status(Code::invalid_argument, "the ucx endpoint was connected before");
  }
  HMC_ASSIGN(const Address peer, decode_address(peer_address.bytes));
  if (!peer_address.fds.empty()) return Status(Code::protocol, "malformed ucx address");
  peer_token_ = peer.token;
  HMC_TRY(worker_->connect(peer.worker));
  connecting_ = done;
  Engine& engine = worker_->context().engine();
  patience_ = engine.at(Deadline::after_seconds(patience_seconds), [this] {
    fail(Status(Code::transport, "the peer was not heard over UCX within " + std::to_string(static_cast<int>(patience_seconds)) +
                                     " s; do both sides' UCX_TLS and UCX_NET_DEVICES name a network that joins them?"));
  });
  if (send(Request::Kind::signal, {}, {}, {})) maybe_connected();  // hello
  engine.kick();
  return {};
}

// Once the peer's hello is here there is a way in both directions, or UCX says so.
void Link::maybe_connected() {
  if (connecting_ == nullptr || next_taken_ == 0) return;
  worker_->context().engine().cancel_timer(patience_);
  const std::vector<std::string> lanes = worker_->context().lanes(worker_->endpoint());
  direct_[0] = std::ranges::any_of(lanes, writes_memory);
  for (const MemoryKind kind : {MemoryKind::cuda, MemoryKind::rocm}) {
    direct_[static_cast<std::size_t>(kind)] = std::ranges::find(lanes, sharing_transport(kind)) != lanes.end();
  }
  if (worker_->context().long_segments(lanes)) piece_ = max_piece;
  lanes_ = joined(lanes);
  ready_ = true;
  std::exchange(connecting_, nullptr)->complete({});
}

Result<std::unique_ptr<RemoteRegion>> Link::import_region(const Blob& exported) {
  HMC_ASSIGN(const RegionKey key, decode_region(exported.bytes));
  if (!exported.fds.empty()) return Status(Code::protocol, "malformed ucx region");
  if (!ready_) return not_ready();
  if (key.kind != MemoryKind::host && !direct(key.kind)) {
    return Status(Code::unsupported, "UCX (" + lanes_ + ") has no way for memory of devices to this peer");
  }
  return UcxRemoteRegion::create(key, worker_, direct(key.kind));
}

Status Link::not_ready() const {
  if (!failure_.ok()) return failure_;
  if (closed_) return Status(Code::closed, "the ucx endpoint is closed");
  return Status(Code::invalid_argument, "the ucx endpoint is not connected yet");
}

Status Link::loss(ucs_status_t status) const {
  return Status(Code::peer_lost, std::string("UCX lost the connection: ") + worker_->api().status_string(status), status);
}

void Link::lost(ucs_status_t status) { fail(loss(status)); }

void Link::fail(const Status& reason) {
  if (closed_ || !failure_.ok()) return;
  const auto keep = shared_from_this();
  failure_ = reason;
  const bool was_ready = ready_;
  end_all(reason);
  if (was_ready && !closed_) sink_->on_failed(reason);
}

void Link::close() {
  if (closed_) return;
  closed_ = true;
  end_all(Status(Code::closed, "the ucx endpoint was closed"));
}

void Link::end_all(const Status& reason) {
  ready_ = false;
  worker_->close();  // first of all
  const auto ops = std::exchange(ops_, {});
  const auto flushes = std::exchange(flushes_, {});
  turns_.clear();
  handed_.clear();
  held_.clear();
  device_ops_ = 0;
  waiting_signals_.clear();
  early_.clear();
  asks_.clear();
  answers_.clear();
  serving_.clear();
  failed_puts_.clear();
  if (connecting_ != nullptr) {
    worker_->context().engine().cancel_timer(patience_);
    std::exchange(connecting_, nullptr)->complete(reason);
  }
  for (const auto& [number, op] : ops) {
    if (op->done == nullptr) continue;
    op->done->complete(reason.with_context(std::to_string(op->moved) + " of " + std::to_string(op->bytes) + " bytes were moved"));
  }
  for (const Flush& flush : flushes) flush.done->complete(reason);
}

bool Link::poll() {
  bool moved = worker_->progress();
  if (!held_.empty()) [[unlikely]]
    moved = release_held() || moved;
  if (!worker_->has_news() && !due()) return moved;
  const auto keep = shared_from_this();
  if (worker_->has_news()) {
    worker_->deliver();
    moved = true;
  }
  return advance() || moved;
}

Request& Link::request(Request::Kind kind) {
  const bool message = kind == Request::Kind::signal || kind == Request::Kind::answer;
  auto& free = message ? free_messages_ : free_requests_;
  if (free.empty()) {
    free.push_back(requests_.emplace_back(std::make_unique<Request>()).get());
    free.back()->worker = worker_.get();
  }
  Request& taken = *free.back();
  free.pop_back();
  if (message && taken.room < piece_) {  // the first went before it was known how large they may be
    taken.body = std::make_unique_for_overwrite<std::byte[]>(piece_);
    taken.room = piece_;
  }
  taken.kind = kind;
  taken.status = UCS_OK;
  ++under_way(kind);
  return taken;
}

void Link::release(Request& request) {
  const bool message = request.kind == Request::Kind::signal || request.kind == Request::Kind::answer;
  if (request.kind == Request::Kind::data) data_bytes_ -= request.bytes;
  request.on_device = false;
  --under_way(request.kind);
  (message ? free_messages_ : free_requests_).push_back(&request);
}

unsigned& Link::under_way(Request::Kind kind) noexcept {
  switch (kind) {
    case Request::Kind::data:
      return data_requests_;
    case Request::Kind::flush:
      return flush_requests_;
    case Request::Kind::signal:
      return signal_requests_;
    case Request::Kind::answer:
      break;
  }
  return answer_requests_;
}

ucp_request_param_t Link::reporting_to(Request& request) noexcept {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = Worker::on_ended;
  params.user_data = &request;
  return params;
}

bool Link::over(Request& request, ucs_status_ptr_t result) noexcept {
  if (UCS_PTR_IS_PTR(result)) return false;
  request.status = UCS_PTR_STATUS(result);
  return true;
}

// UCX promises no order among active messages: large ones may take several ways.
void Link::on_message(const MessageHead& head, ByteSpan body, bool sound) {
  if (closed_ || !failure_.ok()) return;
  if (!sound || head.number < next_taken_ || (head.number != next_taken_ && early_.size() >= max_early)) {
    return fail(Status(Code::protocol, "the peer sent a ucx message that this version cannot have sent"));
  }
  if (head.number != next_taken_) {
    early_.try_emplace(head.number, Early{head, Bytes(body.begin(), body.end())});
    return;
  }
  take(head, body);
  while (!early_.empty() && early_.begin()->first == next_taken_) {
    const auto next = early_.extract(early_.begin());
    take(next.mapped().head, next.mapped().body);
  }
}

void Link::take(const MessageHead& head, ByteSpan body) {
  ++next_taken_;
  if (head.kind == MessageKind::hello && head.number == 0) return maybe_connected();
  if (!ready_ || head.kind == MessageKind::hello || head.number == 0) {
    return fail(Status(Code::protocol, "the peer sent a ucx message out of place"));
  }
  switch (head.kind) {
    case MessageKind::hello:
      return;
    case MessageKind::signal:
      return sink_->on_signal(body);
    case MessageKind::put:
    case MessageKind::put_last:
    case MessageKind::put_signal:
      return on_put(head, body);
    case MessageKind::put_done:
      return on_put_done(head);
    case MessageKind::get:
      return on_get(head);
    case MessageKind::got:
      return on_got(head);
    case MessageKind::get_failed:
      return on_get_failed(head);
  }
}

}  // namespace hmc::ucx
