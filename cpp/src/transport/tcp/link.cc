// Link: its life, its operations' ends.
#include "transport/tcp/link.h"

#include <sys/epoll.h>

#include <limits>
#include <string>
#include <utility>

namespace hmc::tcp {
namespace {

// Polls for which a link is read without being asked to, after something moved on it.
constexpr int link_heat = 4096;
constexpr int stream_heat = 64;
// Between a connection's end and the verdict that the peer is lost: control, which knows a goodbye from a death, speaks first.
constexpr double grace_seconds = 0.2;

}  // namespace

std::shared_ptr<Link> Link::create(const std::shared_ptr<Shared>& shared, bool same_host, EndpointSink& sink) {
  return std::shared_ptr<Link>(new Link(shared, same_host, sink));
}

Link::~Link() { close(); }

Status Link::not_ready() const {
  if (!failure_.ok()) return failure_;
  if (closed_) return Status(Code::closed, "the tcp endpoint is closed");
  return Status(Code::invalid_argument, "the tcp endpoint is not connected yet");
}

void Link::warm(Stream& stream) noexcept {
  heat_ = link_heat;
  stream.heat = stream_heat;
}

bool Link::poll(std::size_t& budget) {
  bool moved = false;
  if (heat_ > 0) --heat_;
  for (std::size_t i = 0; i < count_ && ready_ && heat_ > 0 && budget != 0; ++i) {
    Stream& stream = *streams_[i];
    if (i != 0 && stream.heat == 0) continue;
    if (stream.heat > 0) --stream.heat;
    moved = read(stream, budget) || moved;
  }
  if (ready_ && has_output()) moved = write_all(budget) || moved;
  return moved;
}

void Link::on_ready(Stream& stream, std::uint32_t events) {
  if (!ready_) return;
  const auto keep = shared_from_this();
  std::size_t budget = 1 << 20;
  if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) read(stream, budget);
  if (!ready_) return;
  if (stream.watches_out && (events & EPOLLOUT) != 0) {
    stream.watches_out = false;
    shared_->engine->modify(stream.fd.get(), EPOLLIN);
    stream.blocked = false;
  }
  if (has_output()) write_all(budget);
}

bool Link::has_output() const noexcept {
  if (ack_count_ != 0) return true;
  for (const auto& stream : streams_) {
    if (stream->dead) continue;
    if (!stream->burst.head.empty() || !stream->small.empty() || can_build(*stream)) return true;
  }
  return false;
}

bool Link::arm() {
  if (!ready_ || !has_output()) return true;
  for (const auto& stream : streams_) {
    if (stream->dead || stream->watches_out) continue;
    if (!stream->blocked) {
      if (!stream->burst.head.empty() || !stream->small.empty() || ack_count_ != 0 || can_build(*stream)) return false;
      continue;
    }
    stream->watches_out = true;
    shared_->engine->modify(stream->fd.get(), EPOLLIN | EPOLLOUT);
  }
  return true;
}

Status Link::flush(Completion* done) {
  if (!ready_) [[unlikely]]
    return not_ready();
  flushes_.push_back({last_number_ + 1, done});
  end_flushes();
  return {};
}

void Link::end_flushes() {
  if (flushes_.empty()) return;
  std::uint64_t oldest_put = std::numeric_limits<std::uint64_t>::max();
  for (const auto& [number, op] : ops_) {
    if (!op->is_put) continue;
    oldest_put = number;
    break;
  }
  while (!flushes_.empty() && flushes_.front().before <= oldest_put) {
    Completion* done = flushes_.front().done;
    flushes_.pop_front();
    done->complete(std::exchange(late_failure_, {}));
  }
}

std::unique_ptr<Link::Op> Link::take(std::uint64_t number) {
  const auto place = ops_.find(number);
  std::unique_ptr<Op> op = std::move(place->second);
  ops_.erase(place);
  if (op->split) --split_;
  std::erase(turns_, number);
  return op;
}

void Link::finish(std::unique_ptr<Op> op) {
  if (op->done != nullptr) {
    op->done->complete(std::move(op->failure));
  } else if (!op->failure.ok() && late_failure_.ok()) {
    late_failure_ = std::move(op->failure);
  }
  end_flushes();
}

Status Link::cancel(Completion* done) {
  auto place = ops_.begin();
  while (place != ops_.end() && place->second->done != done) ++place;
  if (place == ops_.end()) return Status(Code::unsupported, "the operation has been handed over already and completes by itself");
  const Op& op = *place->second;
  // What is in a socket lands, sooner or later; nobody can say when. What comes in is ours to drop.
  if (op.is_put && op.begun) return Status(Code::unsupported, "part of the put is on its way already; it goes on");
  for (const auto& stream : streams_) {
    for (Request& request : stream->requests) {
      if (request.op == op.number) request.op = 0;
    }
  }
  const std::unique_ptr<Op> owned = take(op.number);
  owned->done->complete(Status(Code::cancelled, "cancelled; " + std::to_string(owned->moved) + " of " +
                                                    std::to_string(owned->bytes) + " bytes were written to the target"));
  end_flushes();
  return {};
}

void Link::region_gone(std::uint64_t id) {
  for (const auto& stream : streams_) {
    if (!stream || stream->burst.region != id) continue;
    Burst& burst = stream->burst;
    Bytes copy;
    copy.reserve(burst.payload);
    for (const iovec& piece : burst.pieces) {
      const auto* bytes = static_cast<const std::byte*>(piece.iov_base);
      copy.insert(copy.end(), bytes, bytes + piece.iov_len);
    }
    burst.copy = std::move(copy);
    burst.pieces.assign(1, {burst.copy.data(), burst.copy.size()});
    burst.region = 0;
  }
}

void Shared::region_gone(std::uint64_t id) {
  for (const auto& link : open) link->region_gone(id);
}

void Link::lost(Stream& stream, const Status& reason) {
  if (stream.dead) return;
  stream.dead = true;
  stream.heat = 0;
  if (std::exchange(stream.watched, false)) shared_->engine->unwatch(stream.fd.get());
  if (std::exchange(lost_, true)) return;
  timer_ = shared_->engine->at(Deadline::after_seconds(grace_seconds), [this, reason] {
    timer_ = 0;
    const auto keep = shared_from_this();
    fail(reason);
  });
}

void Link::broken(const std::string& what) { fail(Status(Code::protocol, "the peer broke the tcp protocol: " + what)); }

void Link::end_all(const Status& reason) {
  ready_ = false;
  if (timer_ != 0) shared_->engine->cancel_timer(std::exchange(timer_, 0));
  if (deadline_ != 0) shared_->engine->cancel_timer(std::exchange(deadline_, 0));
  for (const auto& stream : streams_) {
    if (!stream) continue;
    if (std::exchange(stream->watched, false)) shared_->engine->unwatch(stream->fd.get());
    stream->dead = true;
    stream->fd.reset();
    stream->burst.clear();
  }
  const auto ops = std::exchange(ops_, {});
  const auto flushes = std::exchange(flushes_, {});
  turns_.clear();
  incoming_.clear();
  ack_count_ = 0;
  for (const auto& [number, op] : ops) {
    if (op->done != nullptr) {
      op->done->complete(reason.with_context(std::to_string(op->moved) + " of " + std::to_string(op->bytes) + " bytes were moved"));
    }
  }
  for (const Flush& flush : flushes) flush.done->complete(reason);
}

void Link::fail(const Status& reason) {
  if (!ready_) return;
  failure_ = reason;
  end_all(reason);
  if (!closed_) sink_->on_failed(reason);
}

void Link::close() {
  if (closed_) return;
  closed_ = true;
  give_up_dialling();
  if (id_ != 0) shared_->links.erase(id_);
  const Status reason(Code::closed, "the tcp endpoint was closed");
  if (connected_ != nullptr) std::exchange(connected_, nullptr)->complete(reason);
  end_all(reason);
}

}  // namespace hmc::tcp
