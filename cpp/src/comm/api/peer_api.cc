// The public Peer over PeerImpl.
#include "comm/buffers/importing.h"
#include "comm/context_impl.h"
#include "comm/routing/paths.h"

namespace hmc {
namespace {

PeerImpl& impl(const std::shared_ptr<PeerState>& state) { return static_cast<PeerImpl&>(*state); }
std::shared_ptr<PeerImpl> shared(const std::shared_ptr<PeerState>& state) { return std::static_pointer_cast<PeerImpl>(state); }
Status no_peer() { return Status(Code::invalid_argument, "this Peer handle is empty; get one from Context::connect or accept"); }

// Runs `read` on the peer under the lock; a forked child gets a value-initialised answer.
template <class F>
auto locked(const std::shared_ptr<PeerState>& state, F read) -> decltype(read(impl(state))) {
  if (!state || impl(state).impl().engine()->forked()) return {};
  const auto lock = impl(state).impl().engine()->lock();
  return read(impl(state));
}

// Plain Peer calls belong to no group.
Target target(const std::shared_ptr<PeerState>& state) { return {state, {}}; }

// One-sided calls name their peer by the RemoteBuffer; the Peer they are made on must be that one.
Status check_owner(const std::shared_ptr<PeerState>& state, const RemoteBuffer& remote) {
  if (!state) return no_peer();
  if (remote.valid() && remote.state()->peer.get() != state.get()) {
    return Status(Code::invalid_argument, "the RemoteBuffer belongs to another peer than the one that the call is made on");
  }
  return {};
}

Status check_owner(const std::shared_ptr<PeerState>& state, const BlockBatch& batch) {
  if (!state) return no_peer();
  if (batch.valid() && batch.state()->peer.get() != state.get()) {
    return Status(Code::invalid_argument, "the BlockBatch was prepared for another peer than the one that the call is made on");
  }
  return {};
}

template <class Handle = Work>
Result<Handle> to_work(Result<std::shared_ptr<WorkState>> made) {
  if (!made.ok()) return made.status();
  return Handle(std::move(*made));
}

}  // namespace

Peer::Peer(std::shared_ptr<PeerState> state) noexcept : state_(std::move(state)) {}

std::string Peer::name() const {
  return locked(state_, [](PeerImpl& peer) { return peer.identity().name; });
}
std::string Peer::address() const {
  return locked(state_, [](PeerImpl& peer) { return peer.identity().address; });
}
std::uint64_t Peer::epoch() const {
  return locked(state_, [](PeerImpl& peer) { return peer.identity().epoch; });
}
bool Peer::same_host() const {
  return locked(state_, [](PeerImpl& peer) { return peer.identity().same_host; });
}
bool Peer::alive() const {
  if (!state_ || !impl(state_).impl().usable().ok()) return false;
  return locked(state_, [](PeerImpl& peer) { return peer.phase() != PeerPhase::lost && peer.phase() != PeerPhase::closed; });
}

bool Peer::gone() const {
  return locked(state_, [](PeerImpl& peer) { return peer.closing().gone(); });
}

Result<RemoteBuffer> Peer::lookup(std::string_view name, Deadline deadline) const {
  if (!state_) return no_peer();
  return lookup_buffer(state_, name, deadline);
}

Result<RemoteBuffer> Peer::import(const Descriptor& descriptor, Deadline deadline) const {
  if (!state_) return no_peer();
  return import_buffer(state_, descriptor, deadline);
}

Result<WorkOf<RemoteBuffer>> Peer::ilookup(std::string_view name, Deadline deadline) const {
  if (!state_) return no_peer();
  return to_work<WorkOf<RemoteBuffer>>(ilookup_buffer(state_, name, deadline));
}

Result<WorkOf<RemoteBuffer>> Peer::iimport(const Descriptor& descriptor, Deadline deadline) const {
  if (!state_) return no_peer();
  return to_work<WorkOf<RemoteBuffer>>(iimport_buffer(state_, descriptor, deadline));
}

Result<Work> Peer::put(const ConnBuffer& source, const RemoteBuffer& target, const PutOptions& options) const {
  HMC_TRY(check_owner(state_, target));
  return to_work(impl(state_).impl().transfers().put(source, target, options, {}));
}

Result<Work> Peer::get(const ConnBuffer& target, const RemoteBuffer& source, StreamHandle stream) const {
  HMC_TRY(check_owner(state_, source));
  return to_work(impl(state_).impl().transfers().get(target, source, stream));
}

Result<BlockBatch> Peer::prepare_blocks(std::span<const BlockPair> pairs, std::size_t block) const {
  if (!state_) return no_peer();
  for (const auto& pair : pairs) HMC_TRY(check_owner(state_, pair.remote));
  return impl(state_).impl().transfers().prepare_blocks(pairs, block);
}

Result<Work> Peer::put_blocks(const BlockBatch& batch, const PutOptions& options) const {
  HMC_TRY(check_owner(state_, batch));
  return to_work(impl(state_).impl().transfers().put_blocks(batch, options, {}));
}

Result<Work> Peer::get_blocks(const BlockBatch& batch, StreamHandle stream) const {
  HMC_TRY(check_owner(state_, batch));
  return to_work(impl(state_).impl().transfers().get_blocks(batch, stream));
}

Status Peer::notify(const Notify& notify, Deadline deadline) const {
  if (!state_) return no_peer();
  return impl(state_).impl().notifier().notify(state_, notify, {}, deadline);
}

Result<Work> Peer::inotify(const Notify& notify, Deadline deadline) const {
  if (!state_) return no_peer();
  return to_work(impl(state_).impl().notifier().inotify(state_, notify, {}, deadline));
}

Status Peer::fence() const {
  if (!state_) return no_peer();
  return impl(state_).impl().notifier().fence(state_);
}

Status Peer::wait_notify(std::uint64_t id, std::uint64_t count, Deadline deadline) const {
  if (!state_) return no_peer();
  return impl(state_).impl().notifier().wait_notify(state_, {}, id, count, deadline);
}

Result<Work> Peer::iwait_notify(std::uint64_t id, std::uint64_t count, Deadline deadline) const {
  if (!state_) return no_peer();
  return to_work(impl(state_).impl().notifier().iwait_notify(state_, {}, id, count, deadline));
}

Result<WorkOf<std::vector<Notification>>> Peer::inotifications(Deadline deadline) const {
  if (!state_) return no_peer();
  return to_work<WorkOf<std::vector<Notification>>>(impl(state_).impl().notifier().inotifications(state_, {}, deadline));
}

Result<std::vector<Notification>> Peer::notifications(Deadline deadline) const {
  if (!state_) return no_peer();
  return impl(state_).impl().notifier().notifications(state_, {}, deadline);
}

Status Peer::send(const MemoryView& view, std::int64_t tag, Deadline deadline) const {
  if (!state_) return no_peer();
  return impl(state_).impl().messenger().send(target(state_), tag, view, deadline);
}

Result<MessageInfo> Peer::recv(const MemoryView& view, std::int64_t tag, Deadline deadline) const {
  if (!state_) return no_peer();
  return impl(state_).impl().messenger().recv(target(state_), tag, view, deadline);
}

Result<Work> Peer::isend(const MemoryView& view, std::int64_t tag) const {
  if (!state_) return no_peer();
  return to_work(impl(state_).impl().messenger().isend(target(state_), tag, view));
}

Result<Work> Peer::irecv(const MemoryView& view, std::int64_t tag) const {
  if (!state_) return no_peer();
  return to_work(impl(state_).impl().messenger().irecv(target(state_), tag, view));
}

Result<Path> Peer::path(Device source, Device target, Deadline deadline) const {
  if (!state_) return no_peer();
  return path_to(shared(state_), source, target, deadline);
}

void Peer::close() const {
  if (!state_) return;
  const auto peer = shared(state_);
  ContextImpl& context = peer->impl();
  if (!context.usable().ok() || peer->is_self()) return;
  const auto lock = context.engine()->lock();
  peer->closing().leave();
  context.engine()->kick();
}

}  // namespace hmc
