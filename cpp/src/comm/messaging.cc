// Posting, eager messages and credit.
#include "comm/messaging.h"

#include <cstring>
#include <utility>

#include "comm/messenger_impl.h"
#include "comm/transfer.h"
#include "device/runtime.h"

namespace hmc {

std::unique_ptr<Messenger> Messenger::create(ContextState& context) { return std::make_unique<messaging::MessengerImpl>(context); }

namespace messaging {
namespace {

constexpr std::int64_t largest_tag = std::int64_t{1} << 62;

}  // namespace

MessengerImpl::MessengerImpl(ContextState& context)
    : context_(context), matcher_([this](const Address& from) {
        return from.envelope.scope == 0 || context_.scope_has(from.envelope.scope, from.envelope.src, *from.peer);
      }) {}

MessengerImpl::~MessengerImpl() = default;

Status MessengerImpl::check(const std::shared_ptr<PeerState>& peer, std::int64_t tag, const MemoryView& view, bool receiving) {
  if ((tag < 0 || tag > largest_tag) && !(receiving && tag == any_tag)) {
    return Status(Code::invalid_argument,
                  "tag " + std::to_string(tag) + " is outside 0 .. 2^62" + (receiving ? " and not any_tag" : ""));
  }
  if (view.data == nullptr && view.bytes > 0) {
    return Status(Code::invalid_argument, "a null pointer for " + std::to_string(view.bytes) + " bytes");
  }
  if (view.stream != no_stream && view.device.is_cpu()) {
    return Status(Code::invalid_argument, "stream= orders memory of a device; this memory is the CPU's");
  }
  // What already came from a peer that is gone may still be received.
  if (peer != nullptr && !receiving && (peer->phase() == PeerPhase::lost || peer->phase() == PeerPhase::closed))
    return peer->failure();
  return {};
}

Status MessengerImpl::try_eager(Lane& lane, const Envelope& envelope, std::int64_t tag, const MemoryView& view) {
  if (lane.heads_out >= head_credit) return Status(Code::would_block, "no header credit");
  PeerState& peer = *lane.peer;
  const Capabilities& capabilities = peer.message_capabilities();
  const std::size_t limit = std::min(capabilities.max_signal, capabilities.eager_limit + head_bytes);
  if (view.bytes + head_bytes > limit || (!view.device.is_cpu() && view.bytes != 0) ||
      lane.payload_out + view.bytes > payload_credit) {
    return Status(Code::unsupported, "not eager");
  }
  std::array<std::byte, head_bytes> head;
  write_head(head, Kind::eager, {envelope, tag});
  const ByteSpan body(static_cast<const std::byte*>(view.data), view.bytes);
  HMC_TRY(peer.signal(head, body));
  lane.payload_out += view.bytes;
  ++lane.heads_out;
  return {};
}

Result<std::shared_ptr<WorkState>> MessengerImpl::isend_locked(const std::shared_ptr<PeerState>& peer, const Envelope& envelope,
                                                               std::int64_t tag, const MemoryView& view) {
  HMC_TRY(check(peer, tag, view, false));
  Lane& lane = lane_of(*peer);
  if (peer->phase() == PeerPhase::ready && lane.idle()) {
    const Status sent = try_eager(lane, envelope, tag, view);
    if (sent.ok()) return context_.done_work();
    if (sent.code() != Code::would_block && sent.code() != Code::unsupported) return sent;
  }
  HMC_ASSIGN(auto after, mark_stream(view.stream, view.device));
  auto send = std::make_shared<SendOperation>(*this, peer, envelope, tag, view);
  send->after = std::move(after);
  send->accepted();
  enqueue(lane, send);
  return std::shared_ptr<WorkState>(send);
}

Result<std::shared_ptr<WorkState>> MessengerImpl::irecv_locked(const std::shared_ptr<PeerState>& peer, const Envelope& envelope,
                                                               std::int64_t tag, const MemoryView& view) {
  HMC_TRY(check(peer, tag, view, true));
  HMC_ASSIGN(auto after, mark_stream(view.stream, view.device));
  auto receive = std::make_shared<ReceiveOperation>(*this, peer, envelope, tag, view);
  receive->after = std::move(after);
  const Address wanted{peer.get(), envelope};
  auto message = matcher_.match_receive(wanted, tag);
  if (message == nullptr && peer != nullptr && (peer->phase() == PeerPhase::lost || peer->phase() == PeerPhase::closed)) {
    return peer->failure();
  }
  receive->accepted();
  if (message == nullptr) {
    matcher_.post(wanted, tag, receive);
    // A named source may have to be connected before it can send; any source cannot be told.
    if (peer != nullptr && peer->phase() == PeerPhase::idle) peer->when_ready([](const Status&) {});
  } else {
    deliver(receive, std::move(message));
  }
  return std::shared_ptr<WorkState>(receive);
}

Result<std::shared_ptr<WorkState>> MessengerImpl::isend(const std::shared_ptr<PeerState>& peer, const Envelope& envelope,
                                                        std::int64_t tag, const MemoryView& view) {
  HMC_TRY(context_.usable());
  const Engine::Lock lock = engine()->lock();
  return isend_locked(peer, envelope, tag, view);
}

Result<std::shared_ptr<WorkState>> MessengerImpl::irecv(const std::shared_ptr<PeerState>& peer, const Envelope& envelope,
                                                        std::int64_t tag, const MemoryView& view) {
  HMC_TRY(context_.usable());
  const Engine::Lock lock = engine()->lock();
  return irecv_locked(peer, envelope, tag, view);
}

namespace {

// After a timeout of a blocking call the caller takes its memory back: withdraw, or say that it is still in use.
Status give_up(WorkState& work, const char* what) {
  const Status stopped = work.cancel();
  if (stopped.ok())
    return Status(Code::timeout, std::string(what) + ": the deadline passed; it was withdrawn, nothing more is read or written");
  if (work.done()) return work.status();
  return Status(Code::timeout, std::string(what) + ": the deadline passed; it is under way and the memory may still be used: " +
                                   std::string(stopped.message()));
}

}  // namespace

Status MessengerImpl::send(const std::shared_ptr<PeerState>& peer, const Envelope& envelope, std::int64_t tag,
                           const MemoryView& view, Deadline deadline) {
  HMC_TRY(context_.usable());
  std::shared_ptr<WorkState> work;
  {
    const Engine::Lock lock = engine()->lock();
    HMC_TRY(check(peer, tag, view, false));
    Lane& lane = lane_of(*peer);
    if (peer->phase() == PeerPhase::ready && lane.idle() && try_eager(lane, envelope, tag, view).ok()) return {};
    HMC_ASSIGN(work, isend_locked(peer, envelope, tag, view));
  }
  const Status status = work->wait(deadline);
  if (status.code() != Code::timeout || work->done()) return status;
  return give_up(*work, "send");
}

Result<MessageInfo> MessengerImpl::recv(const std::shared_ptr<PeerState>& peer, const Envelope& envelope, std::int64_t tag,
                                        const MemoryView& view, Deadline deadline) {
  HMC_TRY(context_.usable());
  std::shared_ptr<WorkState> work;
  if (peer != nullptr && view.stream == no_stream) {
    DirectReceive direct{{peer.get(), envelope}, tag, view, {}, {}, {}, {}};
    Engine::Lock lock = engine()->lock();
    HMC_TRY(check(peer, tag, view, true));
    if (install(direct)) {
      lock.unlock();
      if (!engine()->drive_flag(deadline, direct.done)) {
        lock = engine()->lock();
        if (direct.done.load(std::memory_order_relaxed) == 0) {
          direct_ = nullptr;
          return Status(Code::timeout, "recv: the deadline passed; it was withdrawn, nothing more is read or written");
        }
        lock.unlock();
      }
      if (!direct.operation) {
        if (!direct.status.ok()) return std::move(direct.status);
        return direct.info;
      }
      work = std::move(direct.operation);
    }
  }
  if (!work) {
    HMC_ASSIGN(work, irecv(peer, envelope, tag, view));
  }
  Status status = work->wait(deadline);
  if (status.code() == Code::timeout && !work->done()) status = give_up(*work, "recv");
  if (!status.ok()) return status;
  return work->info();
}

bool MessengerImpl::install(DirectReceive& receive) noexcept {
  const bool open = direct_ == nullptr && receive.wanted.peer->phase() == PeerPhase::ready && matcher_.posted().size() == 0 &&
                    matcher_.unexpected().size() == 0 && !engine()->forked();
  if (open) direct_ = &receive;
  return open;
}

void MessengerImpl::end_direct(Status status) {
  DirectReceive& receive = *std::exchange(direct_, nullptr);
  receive.status = std::move(status);
  receive.done.store(1, std::memory_order_release);
  engine()->wake_waiters();
}

void MessengerImpl::on_signal(PeerState& peer, ByteSpan signal) {
  const auto kind = kind_of(signal);
  if (!kind) return peer.fail(Status(Code::protocol, "unknown kind of message signal"));
  switch (*kind) {
    case Kind::eager:
      return on_eager(peer, signal);
    case Kind::announce:
      return on_announce(peer, signal);
    case Kind::answer:
      return on_answer(peer, signal);
    case Kind::finish:
      return on_finish(peer, signal);
    case Kind::refuse:
      return on_refuse(peer, signal);
    case Kind::withdraw:
      return on_withdraw(peer, signal);
    case Kind::credit:
      return on_credit(lane_of(peer), signal);
  }
}

void MessengerImpl::on_eager(PeerState& peer, ByteSpan signal) {
  const auto head = decode_head(signal);
  if (!head) return peer.fail(Status(Code::protocol, "malformed eager message"));
  const ByteSpan payload = signal.subspan(head_bytes);
  Lane& lane = lane_of(peer);
  const Address from{&peer, head->envelope};
  if (direct_ != nullptr && direct_->fits(from, head->tag)) {
    direct_->info = info_of(*head, payload.size());
    Status status = copy_in(direct_->view, payload);
    consumed(lane, payload.size());
    return end_direct(std::move(status));
  }
  if (const auto receive = matcher_.match_message(from, head->tag)) {
    receive->deliver(*head, payload.size());
    take_eager(lane, receive, payload);
    return consumed(lane, payload.size());
  }
  lane.payload_held += payload.size();
  ++lane.heads_held;
  if (lane.payload_held > payload_credit || lane.heads_held > head_credit) {
    return peer.fail(Status(Code::protocol, "the peer sent more unexpected messages than it had credit for"));
  }
  auto message = std::make_unique<Unexpected>();
  message->peer = lane.peer;
  message->head = *head;
  message->payload.assign(payload.begin(), payload.end());
  matcher_.stash(from, head->tag, std::move(message));
  give_credit(lane);
}

void MessengerImpl::take_eager(Lane& lane, const std::shared_ptr<ReceiveOperation>& receive, ByteSpan payload) {
  if (!receive->after) return receive->complete(copy_in(receive->view, payload));
  receive->peer = lane.peer;
  receive->matched = true;
  start_routed(lane, {receive, Bytes(payload.begin(), payload.end())});
}

Status MessengerImpl::copy_in(const MemoryView& view, ByteSpan payload) {
  if (payload.size() > view.bytes) {
    return Status(Code::invalid_argument, "a message of " + std::to_string(payload.size()) + " bytes does not fit a receive of " +
                                              std::to_string(view.bytes) + " bytes; nothing was written");
  }
  if (payload.empty()) return {};
  if (view.device.is_cpu()) {
    std::memcpy(view.data, payload.data(), payload.size());
    return {};
  }
  return copy_blocking({view.data, payload.size(), view.device},
                       {const_cast<std::byte*>(payload.data()), payload.size(), Device::cpu()});
}

void MessengerImpl::deliver(const std::shared_ptr<ReceiveOperation>& receive, std::unique_ptr<Unexpected> message) {
  Lane& lane = lane_of(*message->peer);
  if (message->announce != nullptr) {
    --lane.heads_held;
    consumed(lane, 0);
    return accept(receive, *message);
  }
  lane.payload_held -= message->payload.size();
  --lane.heads_held;
  consumed(lane, message->payload.size());
  receive->deliver(message->head, message->payload.size());
  take_eager(lane, receive, message->payload);
}

void MessengerImpl::consumed(Lane& lane, std::uint64_t payload) {
  lane.owed.payload += payload;
  ++lane.owed.heads;
  give_credit(lane);
}

// Given back at half, so that a stream of messages costs one more signal in thousands; earlier when a sender may be waiting because
// the rest of its credit lies here unread.
void MessengerImpl::give_credit(Lane& lane) {
  const bool needed = lane.owed.heads >= head_credit / 16 && lane.owed.heads + lane.heads_held >= head_credit;
  if (lane.owed.payload < payload_credit / 2 && lane.owed.heads < head_credit / 2 && !needed) return;
  if (lane.peer->phase() == PeerPhase::ready) emit(lane, encode(lane.owed));
  lane.owed = {};
}

void MessengerImpl::on_credit(Lane& lane, ByteSpan signal) {
  const auto credit = decode_credit(signal);
  if (!credit || credit->payload > lane.payload_out || credit->heads > lane.heads_out) {
    return lane.peer->fail(Status(Code::protocol, "credit for messages that were never sent"));
  }
  lane.payload_out -= credit->payload;
  lane.heads_out -= credit->heads;
  if (!lane.idle()) want_poll();
}

}  // namespace messaging
}  // namespace hmc
