// Member: what is addressed to one rank.
#include <string>
#include <utility>

#include "collective/batch.h"
#include "collective/communicator_state.h"
#include "collective/member_calls.h"
#include "comm/buffers/buffers.h"
#include "comm/messages/messenger.h"
#include "comm/onesided/notifier.h"
#include "comm/onesided/transfers.h"

namespace hmc {
namespace {

// Errors: invalid_argument, closed.
Status check(const std::shared_ptr<CommunicatorState>& state, const char* what, int rank) {
  HMC_TRY(check(state));
  const Group& group = *state->group;
  if (rank < 0 || static_cast<std::uint32_t>(rank) >= group.size()) return no_such_rank(what, rank, group);
  return {};
}

// A message from `src` to `dst`, as both ends name it.
Envelope envelope(const Group& group, int src, int dst) {
  return {group.scope(), src == any_source ? any_rank : static_cast<std::uint32_t>(src), static_cast<std::uint32_t>(dst)};
}

const std::shared_ptr<PeerState>& peer_of(const Group& group, int rank) {
  return group.rank(static_cast<std::uint32_t>(rank)).peer;
}

// What `rank` sends to `dst`.
Target target(const Group& group, int rank, int dst) { return {peer_of(group, dst), envelope(group, rank, dst)}; }

// What `rank` receives from `src`.
Target source(const Group& group, int src, int rank) {
  static const std::shared_ptr<PeerState> anyone;
  return {src == any_source ? anyone : peer_of(group, src), envelope(group, src, rank)};
}

Status check_source(const std::shared_ptr<CommunicatorState>& state, int src) {
  return src == any_source ? check(state) : check(state, "source rank", src);
}

Result<Work> as_work(Result<std::shared_ptr<WorkState>> posted) {
  if (!posted) return posted.status();
  return Work(std::move(posted).value());
}

// A message in a batch belongs to it as well.
Result<Work> noted(const Group& group, Result<std::shared_ptr<WorkState>> posted) {
  if (const auto batch = BatchState::on(group); batch && posted) batch->add(posted.value());
  return as_work(std::move(posted));
}

}  // namespace

Member::Member(std::shared_ptr<CommunicatorState> state, int rank) noexcept : state_(std::move(state)), rank_(rank) {}

int Member::size() const noexcept { return state_ ? static_cast<int>(state_->group->size()) : 0; }

Device Member::device() const { return state_ ? state_->group->rank(static_cast<std::uint32_t>(rank_)).device : Device::cpu(); }

Result<ConnBuffer> Member::buffer(std::size_t bytes) const {
  if (!state_) return Status(Code::invalid_argument, "the Member is empty; take one from Communicator::local()");
  HMC_TRY(state_->group->open());
  return state_->context.buffer(bytes, device());
}

Status Member::send(const MemoryView& view, int dst, std::int64_t tag, Deadline deadline) const {
  HMC_TRY(check(state_, "target rank", dst));
  const Group& group = *state_->group;
  HMC_TRY(BatchState::refuse(group, "send", "call isend"));
  return group.messenger().send(target(group, rank_, dst), tag, view, deadline);
}

Result<MessageInfo> Member::recv(const MemoryView& view, int src, std::int64_t tag, Deadline deadline) const {
  HMC_TRY(check_source(state_, src));
  const Group& group = *state_->group;
  HMC_TRY(BatchState::refuse(group, "recv", "call irecv"));
  return group.messenger().recv(source(group, src, rank_), tag, view, deadline);
}

Result<Work> Member::isend(const MemoryView& view, int dst, std::int64_t tag) const {
  HMC_TRY(check(state_, "target rank", dst));
  const Group& group = *state_->group;
  return noted(group, group.messenger().isend(target(group, rank_, dst), tag, view));
}

Result<Work> Member::irecv(const MemoryView& view, int src, std::int64_t tag) const {
  HMC_TRY(check_source(state_, src));
  const Group& group = *state_->group;
  return noted(group, group.messenger().irecv(source(group, src, rank_), tag, view));
}

Result<Work> Member::put(const ConnBuffer& source, const RemoteBuffer& target, const PutOptions& options) const {
  HMC_TRY(check(state_));
  Group& group = *state_->group;
  HMC_ASSIGN(const std::uint32_t dst, group.owners().rank_of(target));
  return as_work(group.context().transfers().put(source, target, options, envelope(group, rank_, static_cast<int>(dst))));
}

Result<Work> Member::get(const ConnBuffer& target, const RemoteBuffer& source, StreamHandle stream) const {
  HMC_TRY(check(state_));
  return as_work(state_->group->context().transfers().get(target, source, stream));
}

Result<BlockBatch> Member::prepare_blocks(std::span<const BlockPair> pairs, std::size_t block) const {
  HMC_TRY(check(state_));
  return state_->group->context().transfers().prepare_blocks(pairs, block);
}

Result<Work> Member::put_blocks(const BlockBatch& batch, const PutOptions& options) const {
  HMC_TRY(check(state_));
  if (!batch.valid()) return Status(Code::invalid_argument, "the BlockBatch is empty; make it with prepare_blocks()");
  Group& group = *state_->group;
  Envelope notified = envelope(group, rank_, rank_);
  if (!options.notify.empty()) {
    if (batch.state()->pairs.empty())
      return Status(Code::invalid_argument, "a batch without pairs names no rank to notify; use notify()");
    HMC_ASSIGN(notified.dst, group.owners().rank_of(RemoteBuffer(batch.state()->pairs.front().remote, 0, 0)));
  }
  return as_work(group.context().transfers().put_blocks(batch, options, notified));
}

Result<Work> Member::get_blocks(const BlockBatch& batch, StreamHandle stream) const {
  HMC_TRY(check(state_));
  if (!batch.valid()) return Status(Code::invalid_argument, "the BlockBatch is empty; make it with prepare_blocks()");
  return as_work(state_->group->context().transfers().get_blocks(batch, stream));
}

Status Member::notify(int dst, const Notify& notify, Deadline deadline) const {
  HMC_TRY(check(state_, "target rank", dst));
  const Group& group = *state_->group;
  return group.context().notifier().notify(peer_of(group, dst), notify, envelope(group, rank_, dst), deadline);
}

Result<Work> Member::inotify(int dst, const Notify& notify, Deadline deadline) const {
  HMC_TRY(check(state_, "target rank", dst));
  const Group& group = *state_->group;
  return as_work(group.context().notifier().inotify(peer_of(group, dst), notify, envelope(group, rank_, dst), deadline));
}

Status Member::fence(int dst) const {
  HMC_TRY(check(state_, "target rank", dst));
  return state_->group->context().notifier().fence(peer_of(*state_->group, dst));
}

Status Member::wait_notify(int src, std::uint64_t id, std::uint64_t count, Deadline deadline) const {
  HMC_TRY(check(state_, "source rank", src));
  const Group& group = *state_->group;
  return group.context().notifier().wait_notify(peer_of(group, src), envelope(group, src, rank_), id, count, deadline);
}

Result<Work> Member::iwait_notify(int src, std::uint64_t id, std::uint64_t count, Deadline deadline) const {
  HMC_TRY(check(state_, "source rank", src));
  const Group& group = *state_->group;
  return as_work(group.context().notifier().iwait_notify(peer_of(group, src), envelope(group, src, rank_), id, count, deadline));
}

Result<WorkOf<std::vector<Notification>>> Member::inotifications(Deadline deadline) const {
  HMC_TRY(check(state_));
  const Group& group = *state_->group;
  HMC_ASSIGN(auto work, group.context().notifier().inotifications(nullptr, envelope(group, any_source, rank_), deadline));
  return WorkOf<std::vector<Notification>>(std::move(work));
}

Result<std::vector<Notification>> Member::notifications(Deadline deadline) const {
  HMC_TRY(check(state_));
  const Group& group = *state_->group;
  return group.context().notifier().notifications(nullptr, envelope(group, any_source, rank_), deadline);
}

Result<Path> Member::path(int dst, Deadline deadline) const {
  HMC_TRY(check(state_, "target rank", dst));
  HMC_ASSIGN(const Peer peer, Communicator(state_).peer(dst, deadline));
  return peer.path(device(), state_->group->rank(static_cast<std::uint32_t>(dst)).device, deadline);
}

}  // namespace hmc
