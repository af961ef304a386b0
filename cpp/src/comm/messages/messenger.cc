#include "comm/messages/messenger.h"

#include <algorithm>
#include <utility>

#include "comm/messages/messenger_impl.h"

namespace hmc {

std::unique_ptr<Messenger> Messenger::create(ContextState& context) { return std::make_unique<messaging::MessengerImpl>(context); }

namespace messaging {
namespace {

constexpr std::int64_t largest_tag = std::int64_t{1} << 62;

// Receives from that peer; null: all.
Receives::Concerns of_peer(const PeerState* peer) {
  return [peer](const Address& wanted) { return peer == nullptr || wanted.peer == peer; };
}

// How a blocking call ends. After its deadline the caller takes its memory back: withdraw, or say that it is still in use. What
// ended meanwhile has ended as it did, unless by this withdrawal.
Status wait_or_withdraw(WorkState& work, Deadline deadline, const char* what) {
  Status waited = work.wait(deadline);
  if (waited.code() != Code::timeout) return waited;
  const Status stopped = work.cancel();
  const bool over = work.done();
  if (over && !stopped.ok() && work.status().code() != Code::cancelled) return work.status();
  if (over || stopped.ok()) {
    return Status(Code::timeout, std::string(what) + ": the deadline passed; it was withdrawn, nothing more is read or written");
  }
  return Status(Code::timeout, std::string(what) + ": the deadline passed; it is under way and the memory may still be used: " +
                                   std::string(stopped.message()));
}

}  // namespace

Status check_message(const Target& target, std::int64_t tag, const MemoryView& view, bool receiving) {
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
  if (!receiving && peer_ended(target))
    return target.peer->failure().with_context(Operation::describe(true, target, tag, view.bytes));
  if (!receiving && has_left(*target.peer, target.envelope.scope))
    return left_status(*target.peer, target.envelope.dst).with_context(Operation::describe(true, target, tag, view.bytes));
  return {};
}

MessengerImpl::MessengerImpl(ContextState& context)
    : context_(context),
      lanes_(*context.engine(), sends_),
      rendezvous_(context, lanes_),
      sends_(*this, context, lanes_, rendezvous_),
      receives_(*this, context, lanes_, rendezvous_),
      withdrawals_(lanes_, rendezvous_, sends_, receives_) {}

Result<std::shared_ptr<WorkState>> MessengerImpl::isend_locked(const Target& to, std::int64_t tag, const MemoryView& view) {
  return sends_.post(to, tag, view);
}

Result<std::shared_ptr<WorkState>> MessengerImpl::irecv_locked(const Target& from, std::int64_t tag, const MemoryView& view) {
  return receives_.post(from, tag, view);
}

Result<std::shared_ptr<WorkState>> MessengerImpl::isend(const Target& to, std::int64_t tag, const MemoryView& view) {
  HMC_TRY(context_.usable());
  const Engine::Lock lock = engine()->lock();
  return sends_.post(to, tag, view);
}

Result<std::shared_ptr<WorkState>> MessengerImpl::irecv(const Target& from, std::int64_t tag, const MemoryView& view) {
  HMC_TRY(context_.usable());
  const Engine::Lock lock = engine()->lock();
  HMC_TRY(context_.usable());  // the end of the Context ends what was posted before it
  return receives_.post(from, tag, view);
}

Status MessengerImpl::send(const Target& to, std::int64_t tag, const MemoryView& view, Deadline deadline) {
  HMC_TRY(context_.usable());
  std::shared_ptr<WorkState> work;
  {
    const Engine::Lock lock = engine()->lock();
    HMC_TRY(check_message(to, tag, view, false));
    if (sends_.send_now(to, tag, view)) return {};
    HMC_ASSIGN(work, sends_.post(to, tag, view));
  }
  return wait_or_withdraw(*work, deadline, "send");
}

Result<MessageInfo> MessengerImpl::recv(const Target& from, std::int64_t tag, const MemoryView& view, Deadline deadline) {
  const auto& peer = from.peer;
  HMC_TRY(context_.usable());
  std::shared_ptr<WorkState> work;
  if (peer != nullptr && view.stream == no_stream) {
    DirectReceive direct{{peer.get(), from.envelope}, tag, view, {}, {}, {}, {}};
    Engine::Lock lock = engine()->lock();
    HMC_TRY(check_message(from, tag, view, true));
    if (receives_.install(direct)) {
      lock.unlock();
      if (!engine()->drive_flag(deadline, direct.done)) {
        lock = engine()->lock();
        if (receives_.withdraw(direct)) {
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
    HMC_ASSIGN(work, irecv(from, tag, view));
  }
  const Status waited = wait_or_withdraw(*work, deadline, "recv");
  if (waited.code() == Code::timeout) {
    const Engine::Lock lock = engine()->lock();
    if (work->done() && work->status().ok()) return work->info();
    if (!work->done()) withdrawals_.abandon(static_cast<ReceiveOperation&>(*work));
  }
  HMC_TRY(waited);
  return work->info();
}

bool MessengerImpl::on_signal(PeerState& peer, ByteSpan signal, bool stable) {
  const auto kind = kind_of(signal);
  if (kind != Kind::eager && !stable) return false;
  if (!kind) {
    peer.fail(Status(Code::protocol, "unknown kind of message signal"));
    return true;
  }
  switch (*kind) {
    case Kind::eager:
      receives_.on_eager(peer, signal);
      break;
    case Kind::announce:
      receives_.on_announce(peer, signal);
      break;
    case Kind::answer:
      rendezvous_.on_answer(peer, signal);
      break;
    case Kind::finish:
      rendezvous_.on_finish(peer, signal);
      break;
    case Kind::refuse:
      rendezvous_.on_refuse(peer, signal);
      break;
    case Kind::halt:
      withdrawals_.on_halt(peer, signal);
      break;
    case Kind::withdraw:
      receives_.on_withdraw(peer, signal);
      break;
    case Kind::credit:
      lanes_.on_credit(lanes_.of(peer), signal);
      break;
  }
  return true;
}

bool MessengerImpl::quiet(const PeerState& peer, bool heard) const {
  if (const Lane* const lane = lanes_.find(&peer); lane != nullptr && !lane->idle()) return false;
  return !rendezvous_.operations().any(
      [&](const Operation& operation) { return operation.peer.get() == &peer && (!heard || operation.ends.moving()); });
}

bool MessengerImpl::receives_into(const DeviceSpan& memory) const {
  const auto* begin = static_cast<const std::byte*>(memory.data);
  const auto lands = [&](const Operation& operation) {
    const MemoryView& view = operation.view;
    const auto* to = static_cast<const std::byte*>(view.data);
    return !operation.sending && view.device == memory.device && to < begin + memory.bytes && begin < to + view.bytes;
  };
  return rendezvous_.operations().any(lands) || std::ranges::any_of(lanes_.all(), [&](const auto& item) {
           return std::ranges::any_of(item.second.unrouted, [&](const auto& waiting) { return lands(*waiting.operation); });
         });
}

bool MessengerImpl::holds(const PeerState& peer) const {
  return rendezvous_.operations().any(
      [&](const Operation& operation) { return operation.peer.get() == &peer && operation.ends.exposed; });
}

void MessengerImpl::on_peer_let_go(PeerState& peer) {
  for (const auto& operation : rendezvous_.operations().of(&peer)) {
    operation->ends.exposed = false;
    operation->settle();
  }
}

void MessengerImpl::abandon(PeerState& peer, std::vector<std::shared_ptr<const void>>& kept) {
  for (const auto& operation : rendezvous_.operations().of(&peer)) {
    if (operation->ends.exposed && operation->view.owner) kept.push_back(operation->view.owner);
    if (operation->ends.exposed) {
      operation->ends.outcome = Status(Code::timeout, operation->describe() + ": the Context was ended, and " +
                                                          peer.identity().name + " may still access the memory");
    }
  }
  on_peer_let_go(peer);
}

void MessengerImpl::add_counters(std::map<std::string, std::uint64_t>& counters) const {
  std::uint64_t messages = 0, bytes = 0;
  for (const auto& [peer, lane] : lanes_.all()) {
    messages += lane.held.held().heads + lane.put_back;
    bytes += lane.held.held().payload;
  }
  counters["messages.unread"] = messages;
  counters["messages.unread_bytes"] = bytes;
}

void MessengerImpl::end_operations(const PeerState* peer, const Status& reason) {
  sends_.end_queued(peer, reason);
  receives_.end_posted(of_peer(peer), reason);
  rendezvous_.end(peer, reason);
}

void MessengerImpl::on_peer_closing(PeerState& peer, const Status& reason) {
  sends_.end_queued(&peer, reason);
  receives_.end_posted(of_peer(&peer), reason);
  receives_.drop_announcements(peer, Status(Code::closed, "the receiver has closed; nothing was read"), reason);
  rendezvous_.withdraw_announced(peer);
}

void MessengerImpl::on_peer_gone(PeerState& peer, const Status& reason) {
  end_operations(&peer, reason);
  receives_.on_peer_gone(peer, reason);
}

void MessengerImpl::on_context_closing(const Status& reason) {
  sends_.end_queued(nullptr, reason);
  receives_.end_posted(of_peer(nullptr), reason);
}

void MessengerImpl::on_context_over(const Status& reason) {
  end_operations(nullptr, reason);
  receives_.discard_all();
  lanes_.clear();
}

}  // namespace messaging

void leave_scope(PeerState& peer, std::uint32_t scope) {
  static_cast<messaging::MessengerImpl&>(peer.context().messenger()).sends().leave_scope(peer.shared_from_this(), scope);
}

}  // namespace hmc
