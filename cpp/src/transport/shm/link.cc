#include "transport/shm/link.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/log.h"
#include "base/random.h"
#include "base/wire.h"

namespace hmc::shm {

namespace {

constexpr std::uint8_t address_version = 1;
constexpr int signals_per_poll = 64;
// What is no socket is never sent to; sends do not block.
Status take_doorbell(const UniqueFd& passed, UniqueFd& doorbell) {
  int domain = 0;
  socklen_t length = sizeof domain;
  if (getsockopt(passed.get(), SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 || domain != AF_UNIX) {
    return Status(Code::protocol, "the peer passed a doorbell that is not a Unix socket");
  }
  doorbell = passed.duplicate();
  return doorbell ? Status() : errno_status("duplicating a peer's doorbell", errno);
}

const Status& full() {
  static const Status status(Code::would_block, "the peer's signal ring is full");
  return status;
}

}  // namespace

void encode_address(const AddressInfo& info, Bytes& out) {
  WireWriter(out)
      .u8(address_version)
      .u64(info.key)
      .u64(info.sizes.signal_bytes)
      .u64(info.sizes.slot_bytes)
      .u64(info.probe_address)
      .u64(info.probe_word);
}

Result<AddressInfo> decode_address(ByteSpan bytes) {
  WireReader reader(bytes);
  const std::uint8_t version = reader.u8();
  AddressInfo info;
  info.key = reader.u64();
  info.sizes.signal_bytes = reader.u64();
  info.sizes.slot_bytes = reader.u64();
  info.probe_address = reader.u64();
  info.probe_word = reader.u64();
  if (!reader.finish()) return Status(Code::protocol, "malformed shm address");
  if (version != address_version) {
    return Status(Code::protocol,
                  "shm address of version " + std::to_string(version) + ", this is version " + std::to_string(address_version));
  }
  if (!info.sizes.valid()) return Status(Code::protocol, "shm address with impossible ring sizes");
  return info;
}

Result<std::shared_ptr<Link>> Link::create(std::shared_ptr<Shared> shared, int pid, EndpointSink& sink) {
  std::shared_ptr<Link> link(new Link(std::move(shared), pid, sink));
  HMC_ASSIGN(link->in_, ChannelMemory::create(link->shared_->sizes));
  link->key_ = random_u64();
  return link;
}

Status Link::Bell::open() {
  if (ours) return {};
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return errno_status("making a doorbell for shm", errno);
  }
  ours = UniqueFd(ends[0]);
  peers = UniqueFd(ends[1]);
  return {};
}

// That the engine woke up is all that was asked. A peer that goes on ringing does not keep it here.
void Link::Bell::on_ready(std::uint32_t) {
  constexpr int most = 16;
  char ring = 0;
  for (int i = 0; i < most && recv(ours.get(), &ring, sizeof ring, MSG_DONTWAIT) >= 0; ++i) continue;
}

Result<Blob> Link::address() {
  HMC_TRY(bell_.open());
  Blob blob;
  AddressInfo info;
  info.key = key_;
  info.sizes = in_.sizes();
  // Without it the peer leaves this process's memory alone, whatever its own HMC_SHM_PTRACE says.
  if (shared_->ptrace_wanted) {
    info.probe_address = reinterpret_cast<std::uintptr_t>(&shared_->probe_word);
    info.probe_word = shared_->probe_word;
  }
  encode_address(info, blob.bytes);
  UniqueFd ring = in_.fd().duplicate();
  UniqueFd doorbell = bell_.peers.duplicate();
  if (!ring || !doorbell) return errno_status("duplicating descriptors for a shm address", errno);
  blob.fds.push_back(std::move(ring));
  blob.fds.push_back(std::move(doorbell));
  return blob;
}

Status Link::connect(const Blob& peer_address) {
  if (closed_) return Status(Code::closed, "the shm endpoint is closed");
  if (ready_) return Status(Code::invalid_argument, "the shm endpoint is connected already");
  HMC_ASSIGN(const AddressInfo info, decode_address(peer_address.bytes));
  if (peer_address.fds.size() != 2) return Status(Code::protocol, "shm address without its two descriptors");
  HMC_ASSIGN(out_, ChannelMemory::attach(peer_address.fds[0], info.sizes));
  HMC_TRY(take_doorbell(peer_address.fds[1], doorbell_));
  HMC_TRY(bell_.open());
  HMC_TRY(shared_->engine->watch(bell_.ours.get(), EPOLLIN, bell_));
  bell_.watched = true;
  bell_.peers.reset();
  if (shared_->ptrace_wanted && info.probe_address != 0) {
    auto probed = PeerMemory::probe(pid_, info.probe_address, info.probe_word);
    shared_->ptrace_refused = !probed.ok();
    if (probed.ok()) {
      peer_memory_ = std::move(*probed);
    } else {
      warn_once("shm.ptrace", "memory not allocated by HMC goes through a shared ring: " + probed.status().str());
    }
  }
  in_.drop_fd();
  signals_in_ = SignalConsumer(in_.signals(), in_.sizes().signal_bytes, key_, &in_.control().signal_head);
  signals_out_ = SignalProducer(out_.signals(), out_.sizes().signal_bytes, info.key, &out_.control().signal_head);
  bulk_in_ = BulkConsumer(in_);
  bulk_out_ = BulkProducer(out_);
  ready_ = true;
  shared_->engine->kick();  // the peer may have sent before we connected, and nobody rang
  return {};
}

Status Link::not_ready() const {
  if (!failure_.ok()) return failure_;
  if (closed_) return Status(Code::closed, "the shm endpoint is closed");
  return Status(Code::invalid_argument, "the shm endpoint is not connected yet");
}

Status Link::signal(ByteSpan head, ByteSpan body) {
  if (!ready_) [[unlikely]]
    return not_ready();
  const std::size_t bytes = head.size() + body.size();
  if (bytes > max_signal) [[unlikely]] {
    return Status(Code::invalid_argument, "a signal of " + std::to_string(bytes) + " bytes; at most " + std::to_string(max_signal));
  }
  HMC_TRY(out_.reserve_signals());
  if (!waiting_signals_.empty() || !signals_out_.has_room(bytes)) [[unlikely]] {
    blocked_ = true;
    blocked_bytes_ = bytes;
    return full();
  }
  signals_out_.push(head, body);
  ring_peer();
  return {};
}

void Link::send_attached(ByteSpan signal) {
  if (waiting_signals_.empty() && signals_out_.has_room(signal.size())) {
    signals_out_.push(signal, {});
    ring_peer();
    return;
  }
  waiting_signals_.emplace_back(signal.begin(), signal.end());
  shared_->engine->kick();
}

bool Link::send_waiting() {
  bool moved = false;
  while (!waiting_signals_.empty() && signals_out_.has_room(waiting_signals_.front().size())) {
    signals_out_.push(waiting_signals_.front(), {});
    ring_peer();
    waiting_signals_.pop_front();
    moved = true;
  }
  if (blocked_ && waiting_signals_.empty() && signals_out_.has_room(blocked_bytes_)) {
    blocked_ = false;
    moved = true;  // whoever met the full ring can post again
  }
  return moved;
}

void Link::ring_doorbell() noexcept {
  if (out_.control().armed.exchange(0, std::memory_order_seq_cst) == 0) return;
  // Full (EAGAIN) means rung already; a peer whose end is gone is control's to notice.
  const char ring = 0;
  static_cast<void>(::send(doorbell_.get(), &ring, sizeof ring, MSG_DONTWAIT | MSG_NOSIGNAL));
}

bool Link::drain_signals(std::size_t& budget) {
  bool moved = false;
  for (int i = 0; i < signals_per_poll && ready_; ++i) {
    std::size_t size = 0;
    const auto next = signals_in_.take(shared_->incoming.data(), size);
    if (next == SignalConsumer::Next::none) break;
    if (next == SignalConsumer::Next::broken) {
      fail(Status(Code::protocol, "the peer wrote a malformed record into the signal ring"));
      return true;
    }
    if (signals_in_.publish()) ring_peer();
    moved = true;
    sink_->on_signal({shared_->incoming.data(), size});
    budget -= std::min(budget, size);
    if (budget == 0) break;
  }
  return moved;
}

bool Link::poll(std::size_t& budget) {
  if (!ready_) return false;
  bool moved = false;
  if (signals_in_.ready()) moved = drain_signals(budget);
  if (ready_ && bulk_in_.ready()) moved = drain_bulk(budget) || moved;
  if (!ready_ || !busy()) return moved;
  moved = take_acks() || moved;
  if (ready_) moved = send_waiting() || moved;
  if (ready_) moved = send_stops() || moved;
  serve_first_ = !serve_first_;  // replies and own operations share the slots
  for (int turn = 0; turn < 2 && ready_; ++turn) {
    moved = ((turn == 0) == serve_first_ ? serve(budget) : advance_ops(budget)) || moved;
  }
  return moved;
}

bool Link::can_work() {
  if (signals_in_.ready(std::memory_order_seq_cst) || bulk_in_.ready()) return true;
  if (bulk_out_.in_flight() && bulk_out_.has_ack()) return true;
  const bool room = waiting_signals_.empty() ? blocked_ && signals_out_.has_room(blocked_bytes_)
                                             : signals_out_.has_room(waiting_signals_.front().size());
  if (room) return true;
  if (bulk_out_.has_free() && (!serving_.empty() || !stops_.empty())) return true;
  for (const auto& [number, op] : ops_) {
    if (op->cursor.at_end() || !op->failure.ok() || op->awaiting != 0) continue;
    if (!uses_ring(op->cursor) || (op->is_put ? bulk_out_.has_free() : can_request())) return true;
  }
  return false;
}

bool Link::arm() {
  if (!ready_) return true;
  in_.control().armed.exchange(1, std::memory_order_seq_cst);
  return !can_work();
}

void Link::disarm() noexcept {
  if (ready_) in_.control().armed.exchange(0, std::memory_order_seq_cst);
}

void Link::end_all(const Status& reason) {
  ready_ = false;
  if (std::exchange(bell_.watched, false) && !shared_->engine->forked()) shared_->engine->unwatch(bell_.ours.get());
  // Now, not with the last reference: a failed endpoint may live as long as its Context, and descriptors are few.
  bell_.ours.reset();
  bell_.peers.reset();
  doorbell_.reset();
  in_.drop_fd();
  peer_memory_ = {};
  const auto ops = std::exchange(ops_, {});
  const auto flushes = std::exchange(flushes_, {});
  waiting_signals_.clear();
  serving_.clear();
  stops_.clear();
  for (const auto& [number, op] : ops) {
    if (op->done != nullptr) {
      op->done->complete(reason.with_context(std::to_string(op->moved) + " of " + std::to_string(op->bytes) + " bytes were moved"));
    }
  }
  for (const Flush& flush : flushes) flush.done->complete(reason);
}

void Link::fail(const Status& reason) {
  failure_ = reason;
  end_all(reason);
  if (!closed_) sink_->on_failed(reason);
}

void Link::close() {
  if (closed_) return;
  closed_ = true;
  end_all(Status(Code::closed, "the shm endpoint was closed"));
}

}  // namespace hmc::shm
