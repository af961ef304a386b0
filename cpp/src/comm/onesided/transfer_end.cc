// TransferWork: how its parts end, and what follows of it.
#include <algorithm>

#include "comm/context_impl.h"
#include "comm/onesided/transfer.h"

namespace hmc {

void TransferWork::Part::complete(Status status) noexcept {
  done = true;
  work->part_done(*slot, std::move(status));
}

void TransferWork::complete(Status status) noexcept { part_done(*slot_, std::move(status)); }

void TransferWork::part_done(EndpointSlot& slot, Status status) {
  PeerImpl& peer = *peer_;  // outlives its endpoints, not this Work, which may end in finish()
  --open_parts_;
  if (status.ok() && is_put_ && level_ == Complete::local) slot.unflushed = true;
  const bool breaks = slot.transport().capabilities.breaks && !peer.is_self();
  const bool silent = breaks && status.code() == Code::peer_lost && peer.phase() == PeerPhase::ready && !slot.peer_stopped;
  if (status.code() == Code::closed && !slot.failure.ok()) status = status.with_context(slot.failure.message());
  if (!status.ok() && failure_.ok()) failure_ = peer.meaning_of(std::move(status), breaks);
  if (open_parts_ == 0 && failure_.code() == Code::unsupported && stop_reason_.ok() && peer.phase() == PeerPhase::ready) {
    failure_ = go_another_way(slot);
    if (failure_.ok()) return peer.connections().operation_done(slot);
  }
  if (open_parts_ == 0) {
    bool all = true;
    for (const Part& part : parts_) all = all && part.done;
    if (silent) {
      undecided_ = true;  // the peer's word of the connection's end, or its own end, decides
    } else if (awaits_proof_of_life(failure_)) {
      return peer.connections().operation_done(slot);
    } else if (!failure_.ok() || (all && notified_) || (all && notify_.empty())) {
      finish(failure_);
    } else if (all) {
      peer.posts().add_first(std::static_pointer_cast<TransferWork>(shared_from_this()));  // the notification, before any fence
    }
  }
  peer.connections().operation_done(slot);
}

Status TransferWork::go_another_way(EndpointSlot& slot) {
  const auto leave = [&](BufferState& local, const RemoteBufferState& remote) -> Status {
    HMC_ASSIGN(const Route* failed, peer_->routes().find(local, remote));
    if (failed->slot != &slot) return {};
    local.registration->refused |= failed->bit;
    const TransportSet refused = local.registration->refused | remote.record->refused(local.exposure->device);
    const Status next = peer_->routes().next(*failed, refused, failure_).status();
    return next.code() == Code::would_block ? Status() : next;
  };
  if (batch_) {
    for (const auto& pair : batch_->pairs) HMC_TRY(leave(*pair.local, *pair.remote));
    batch_->resolved_epoch = 0;
    groups_.reset();
    parts_.clear();
  } else {
    HMC_TRY(leave(*local_, *remote_));
  }
  if (notified_ && notify_.cost() != 0) {
    slot.credit_out -= notify_.cost();
    peer_->notify_slot()->refund(notify_.cost());
  }
  posted_ = notified_ = false;
  slot_ = nullptr;
  peer_->posts().add_first(std::static_pointer_cast<TransferWork>(shared_from_this()));
  return {};
}

// True: the peer's answer, or its end, will finish this.
bool TransferWork::awaits_proof_of_life(const Status& status) {
  if (status.code() != Code::device || !stop_reason_.ok()) return false;
  const auto keep = std::static_pointer_cast<TransferWork>(shared_from_this());
  undecided_ = peer_->liveness().ask([keep] { keep->decide(); });
  return undecided_;
}

std::string TransferWork::describe() const {
  return std::string(is_put_ ? "put" : "get") + " of " + std::to_string(bytes_) + " bytes";
}

// What went wrong, for the user: which operation, which peer, and what may have been written.
Status TransferWork::explain(const Status& status) const {
  if (status.ok()) return status;
  if (status.code() == Code::cancelled && stop_reason_.ok()) return status;
  const bool ended = peer_->phase() == PeerPhase::lost || peer_->phase() == PeerPhase::closed;
  const Status& cause = status.code() == Code::cancelled ? stop_reason_ : ended ? peer_->failure() : status;
  std::string text = describe() + (is_put_ ? " to " : " from ") + peer_->describe();
  if (slot_ != nullptr) text += " by " + slot_->transport().name;
  text += ": " + std::string(cause.message());
  text += !posted_  ? "; nothing was written"
          : is_put_ ? "; part of the target may have been written"
                    : "; part of the local buffer may have been written";
  return Status(cause.code(), std::move(text), cause.native());
}

void TransferWork::finish(const Status& status) {
  if (finished_) return;
  finished_ = true;
  undecided_ = false;
  groups_.reset();
  if (begun_) peer_->works().unlink(*this);
  if (peer_->imports().withdrawing()) [[unlikely]]
    peer_->imports().settle_withdrawn();
  WorkState::complete(explain(status));
}

void TransferWork::released() noexcept {
  if (!begun_) return;
  begun_ = false;
  ContextImpl& context = peer_->impl();
  const auto end = [&](BufferState& buffer) {
    Exposure& exposure = *buffer.exposure;
    if (--exposure.local_operations == 0 && exposure.closed.load(std::memory_order_relaxed))
      context.exports().settle(buffer.exposure);
  };
  const auto end_remote = [&](RemoteBufferState& buffer) {
    RemoteImport& record = *buffer.record;
    if (--record.operations == 0 && record.retiring) peer_->imports().settle(buffer.record);
  };
  // A Work that the user keeps does not keep its buffers.
  const auto batch = std::move(batch_);
  const auto local = std::move(local_);
  const auto remote = std::move(remote_);
  if (batch) {
    for (BufferState* each : batch->locals) end(*each);
    for (RemoteBufferState* each : batch->remotes) end_remote(*each);
  } else {
    end(*local);
    end_remote(*remote);
  }
}

Status TransferWork::cancel_locked() {
  const auto keep = shared_from_this();
  if (!posted_) {
    peer_->posts().remove(this);
    finish(Status(Code::cancelled, describe() + " was cancelled before it was posted; nothing was written"));
    return {};
  }
  if (parts_.empty())
    return slot_->state == EndpointSlot::State::ready ? slot_->endpoint->cancel(this)
                                                      : Status(Code::unsupported, "its endpoint is going down");
  if (parts_.size() == 1 && parts_[0].slot->state == EndpointSlot::State::ready)
    return parts_[0].slot->endpoint->cancel(&parts_[0]);
  return Status(Code::unsupported,
                describe() + " is under way on several transports; it completes by itself, its target will be written");
}

bool TransferWork::touches(const RemoteImport* record) const noexcept {
  if (finished_) return false;
  if (!batch_) return remote_->record.get() == record;
  for (const RemoteBufferState* remote : batch_->remotes) {
    if (remote->record.get() == record) return true;
  }
  return false;
}

bool TransferWork::uses(const RemoteRegion* region) const noexcept {
  if (finished_) return false;
  if (!batch_) return open_parts_ != 0 && run_.remote == region;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].done) continue;
    if (std::ranges::any_of((*groups_)[i].runs, [&](const Run& run) { return run.remote == region; })) return true;
  }
  return false;
}

void TransferWork::stop(const Status& reason) {
  if (finished_) return;
  const auto keep = shared_from_this();
  stop_reason_ = reason;
  if (open_parts_ == 0) {
    peer_->posts().remove(this);
    finish(reason);
    return;
  }
  if (!cancel_locked().ok()) stop_reason_ = {};
}

}  // namespace hmc
