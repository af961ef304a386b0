#include "comm/onesided/transfer.h"

#include "comm/context_impl.h"

namespace hmc {

Result<std::shared_ptr<StreamPoint>> mark_stream(StreamHandle stream, const Device& device) {
  if (stream == no_stream) return std::shared_ptr<StreamPoint>();
  if (device.is_cpu()) return Status(Code::invalid_argument, "stream= orders memory of a device; this memory is the CPU's");
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(device));
  return runtime->streams().mark(device.index(), stream);
}

TransferWork::TransferWork(TransferRequest&& request, EncodedNotify&& notify)
    : WorkState(request.peer().impl().engine()),
      request_(std::move(request)),
      notify_(request_.peer(), std::move(notify)),
      parts_(*this, request_, notify_) {}

void TransferWork::begin() {
  accepted();
  peer().works().link(*this);
  request_.hold();
}

PendingOp::Outcome TransferWork::post() {
  if (end_.over()) return Outcome::posted;
  if (!parts_.posted() && notify_.lacks_credit()) return Outcome::no_credit;
  bool blocked = false;
  Status status = request_.bytes() == 0 ? Status() : post_data(blocked);
  const bool data_over = request_.bytes() == 0 || (parts_.posted() && parts_.open() == 0);  // not: it goes another way
  if (status.ok() && !blocked && !end_.over() && data_over && !notify_.sent()) {
    status = notify_.post_alone(blocked);
    if (status.ok() && !blocked) finish({});
  }
  if (!status.ok()) {
    if (parts_.open() != 0) {  // they complete first
      end_.fail(status);
      return Outcome::posted;
    }
    if (awaits_proof_of_life(status)) {
      end_.fail(status);
      return Outcome::posted;
    }
    end_.fail_post(status);
    finish(status);
    return Outcome::posted;
  }
  if (blocked) return preparing_ ? Outcome::waits : Outcome::blocked;
  return Outcome::posted;
}

Status TransferWork::post_data(bool& blocked) {
  HMC_TRY(request_.check_alive());
  const auto done = request_.batch() ? parts_.post_batch() : post_range();
  if (!done.ok()) return done.status();
  const TransferParts::Posting posting = *done;
  if (posting == TransferParts::Posting::unprepared) return move(blocked);
  blocked = posting == TransferParts::Posting::no_room;
  return {};
}

Result<TransferParts::Posting> TransferWork::post_range() {
  if (Route* const known = std::exchange(known_route_, nullptr); known != nullptr) [[likely]]
    return parts_.post_range(*known);
  HMC_TRY(preparation_error_);
  const auto found = peer().routes().find(*request_.local(), *request_.remote());
  if (found.ok()) return parts_.post_range(**found);
  if (found.status().code() == Code::would_block) return TransferParts::Posting::unprepared;
  return found.status();
}

Status TransferWork::move(bool& blocked) {
  HMC_TRY(preparation_error_);
  blocked = true;
  if (preparing_) return {};
  peer().impl().counters().add("operations.moved", 1);
  prepare();
  return {};
}

void TransferWork::prepare() {
  preparing_ = true;
  const auto self = std::static_pointer_cast<TransferWork>(shared_from_this());
  request_.batch() ? Transfers::prepare(self, request_.batch()) : Transfers::prepare(self, request_.local(), request_.remote());
}

void TransferWork::prepared(Status status) {
  preparing_ = false;
  preparation_error_ = std::move(status);
  if (peer().carries()) peer().impl().peers().pump_soon(peer());
}

// ---- how its parts end, and what follows of it ----

void TransferWork::complete(Status status) noexcept { part_done(*parts_.slot(), std::move(status)); }

void TransferWork::part_done(EndpointSlot& slot, Status status) {
  PeerImpl& peer = request_.peer();  // outlives its endpoints, not this Work, which may end in finish()
  parts_.one_complete();
  if (status.ok() && is_put() && request_.level() == Complete::local) slot.unflushed = true;
  const bool breaks = slot.transport().capabilities.breaks && !peer.is_self();
  const bool silent = breaks && status.code() == Code::peer_lost && peer.phase() == PeerPhase::ready && !slot.peer_stopped;
  if (status.code() == Code::closed && !slot.failure.ok()) status = status.with_context(slot.failure.message());
  if (!status.ok() && end_.failure().ok()) end_.fail(peer.meaning_of(std::move(status), breaks));
  if (parts_.open() == 0 && end_.failure().code() == Code::unsupported && !end_.stopped() && peer.phase() == PeerPhase::ready) {
    end_.failed_over(parts_.fail_over(slot, end_.failure()));
    if (end_.failure().ok()) {
      notify_.recall(slot);
      peer.posts().add_first(std::static_pointer_cast<TransferWork>(shared_from_this()));
      return peer.connections().operation_done(slot);
    }
  }
  if (parts_.open() == 0) {
    const bool all = parts_.done();
    if (silent) {
      end_.leave_undecided();  // the peer's word of the connection's end, or its own end, decides
    } else if (awaits_proof_of_life(end_.failure())) {
      return peer.connections().operation_done(slot);
    } else if (!end_.failure().ok() || (all && !notify_.outstanding())) {
      finish(end_.failure());
    } else if (all) {
      peer.posts().add_first(std::static_pointer_cast<TransferWork>(shared_from_this()));  // the notification, before any fence
    }
  }
  peer.connections().operation_done(slot);
}

bool TransferWork::awaits_proof_of_life(const Status& status) {
  if (status.code() != Code::device || end_.stopped()) return false;
  const auto keep = std::static_pointer_cast<TransferWork>(shared_from_this());
  if (!peer().liveness().ask([keep] { keep->decide(); })) return false;
  end_.leave_undecided();
  return true;
}

bool TransferWork::decide() {
  if (!end_.decide()) return false;
  finish(end_.failure());
  return true;
}

void TransferWork::finish(const Status& status) {
  if (!end_.finish()) return;
  parts_.release();
  if (request_.held()) peer().works().unlink(*this);
  if (peer().imports().withdrawing()) [[unlikely]]
    peer().imports().settle_withdrawn();
  WorkState::complete(end_.explain(status, request_, parts_));
}

Status TransferWork::cancel_locked() {
  const auto keep = shared_from_this();
  if (parts_.posted()) return parts_.cancel();
  peer().posts().remove(this);
  finish(Status(Code::cancelled, request_.describe() + " was cancelled before it was posted; nothing was written"));
  return {};
}

void TransferWork::stop(const Status& reason) {
  if (end_.finished()) return;
  const auto keep = shared_from_this();
  end_.stop(reason);
  if (parts_.open() == 0) {
    peer().posts().remove(this);
    finish(reason);
    return;
  }
  if (!cancel_locked().ok()) end_.stop({});
}

}  // namespace hmc
