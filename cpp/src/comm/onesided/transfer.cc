#include "comm/onesided/transfer.h"

#include "comm/context_impl.h"

namespace hmc {

EncodedNotify::EncodedNotify(const Notify& notify, const Envelope& envelope) {
  if (notify.id) {
    const auto signal = number_signal(NotifyKind::counted, envelope, *notify.id);
    std::memcpy(inline_.data(), signal.data(), signal.size());
    size_ = signal.size();
  } else if (!notify.payload.empty()) {
    const auto head = signal_head(NotifyKind::payload, envelope);
    size_ = head.size() + notify.payload.size();
    cost_ = notify_cost(notify.payload.size());
    if (size_ > inline_.size()) heap_.resize(size_);
    std::byte* const out = size_ > inline_.size() ? heap_.data() : inline_.data();
    std::memcpy(out, head.data(), head.size());
    std::memcpy(out + head.size(), notify.payload.data(), notify.payload.size());
  }
}

void EncodedNotify::attach(bool with_put) noexcept {
  if (size_ == 0) return;
  std::byte& first = size_ <= inline_.size() ? inline_[0] : heap_[0];
  first = with_put ? first | std::byte{attached_bit} : first & ~std::byte{attached_bit};
}

Status check_notify(const Notify& notify) {
  if (notify.id && !notify.payload.empty()) {
    return Status(Code::invalid_argument, "a notification has an id or a payload, not both");
  }
  if (notify.id && (*notify.id >> 63) != 0) {
    return Status(Code::invalid_argument, "notification id " + std::to_string(*notify.id) + "; ids are below 2^63");
  }
  if (notify.payload.size() > max_notify_payload) {
    return Status(Code::invalid_argument, "a notification payload of " + std::to_string(notify.payload.size()) +
                                              " bytes; at most " + std::to_string(max_notify_payload) +
                                              ", send the rest by send or put");
  }
  return {};
}

Result<std::shared_ptr<StreamPoint>> mark_stream(StreamHandle stream, const Device& device) {
  if (stream == no_stream) return std::shared_ptr<StreamPoint>();
  if (device.is_cpu()) return Status(Code::invalid_argument, "stream= orders memory of a device; this memory is the CPU's");
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(device));
  return runtime->streams().mark(device.index(), stream);
}

TransferWork::TransferWork(bool is_put, std::shared_ptr<BufferState> local, std::uint64_t local_offset,
                           std::shared_ptr<RemoteBufferState> remote, std::uint64_t remote_offset, std::size_t bytes,
                           Complete level, EncodedNotify notify)
    : WorkState(local->context->engine()),
      is_put_(is_put),
      level_(level),
      bytes_(bytes),
      peer_(remote->peer),
      local_(std::move(local)),
      remote_(std::move(remote)),
      notify_(std::move(notify)),
      offsets_{local_offset, remote_offset} {}

TransferWork::TransferWork(bool is_put, std::shared_ptr<BlockBatchState> batch, std::size_t bytes, Complete level,
                           EncodedNotify notify)
    : WorkState(batch->context->engine()),
      is_put_(is_put),
      level_(level),
      bytes_(bytes),
      peer_(batch->peer),
      batch_(std::move(batch)),
      notify_(std::move(notify)) {}

void TransferWork::begin() {
  begun_ = true;
  accepted();
  peer_->works().link(*this);
  if (batch_) {
    for (BufferState* local : batch_->locals) {
      ++local->exposure->local_operations;
      local->exposure->touched = true;
    }
    for (RemoteBufferState* remote : batch_->remotes) ++remote->record->operations;
  } else {
    ++local_->exposure->local_operations;
    local_->exposure->touched = true;
    ++remote_->record->operations;
  }
}

PendingOp::Outcome TransferWork::post() {
  if (finished_ || undecided_) return Outcome::posted;
  if (!posted_ && !notify_.empty() && notify_.cost() != 0 && !notified_) {
    if (!peer_->notify_slot()->has_credit(notify_.cost())) return Outcome::no_credit;
  }
  bool blocked = false;
  Status status = bytes_ == 0 ? post_notify(blocked) : batch_ ? post_parts(blocked) : post_single(blocked);
  if (status.ok() && !blocked && !finished_ && !undecided_ && bytes_ != 0 && open_parts_ == 0 && !notified_)
    status = post_notify(blocked);
  if (!status.ok()) {
    if (open_parts_ != 0) {  // the parts under way end first
      if (failure_.ok()) failure_ = status;
      return Outcome::posted;
    }
    if (awaits_proof_of_life(status)) {
      failure_ = status;
      return Outcome::posted;
    }
    post_error_ = status;
    finish(status);
    return Outcome::posted;
  }
  if (blocked) return preparing_ ? Outcome::waits : Outcome::blocked;
  if (bytes_ == 0) finish({});
  return Outcome::posted;
}

// The hot path: one range on one endpoint, the notification riding on it.
Status TransferWork::post_single(bool& blocked) {
  if (!remote_->record->alive.load(std::memory_order_relaxed)) return remote_->record->dead;
  Route* known = std::exchange(known_route_, nullptr);
  if (known == nullptr) {
    if (!preparation_error_.ok()) return preparation_error_;
    const auto found = peer_->routes().find(*local_, *remote_);
    if (!found.ok()) {
      return found.status().code() == Code::would_block ? move(blocked) : found.status();
    }
    known = *found;
  }
  Route& route = *known;
  const auto* region = local_->registration->find(route.transport);
  RemoteImport::Entry* entry = remote_->record->find(route.slot);
  if (region == nullptr || entry == nullptr || !entry->prepared_for(local_->exposure->device)) {
    return move(blocked);
  }
  run_ = Run{region->get(), entry->region.get(), &offsets_[0], &offsets_[1], 1, bytes_};
  TransferOp op;
  op.runs = {&run_, 1};
  op.bytes = bytes_;
  op.level = level_;
  op.signal = notify_.span();
  op.after = after_.get();
  notify_.attach(true);
  slot_ = route.slot;
  ++slot_->operations;
  ++open_parts_;
  posted_ = true;
  const bool had_notify = notified_;
  notified_ = true;
  const Status status = is_put_ ? route.endpoint->put(op, this) : route.endpoint->get(op, this);
  if (!status.ok()) {
    --slot_->operations;
    --open_parts_;
    posted_ = false;
    notified_ = had_notify;
    blocked = status.code() == Code::would_block;
    return blocked ? Status() : status;
  }
  went_with_put(*route.slot);
  route.count(is_put_, bytes_);
  return {};
}

// A batch: one part per endpoint. The notification rides on the only part, or follows when all parts are in place.
Status TransferWork::post_parts(bool& blocked) {
  for (const RemoteBufferState* remote : batch_->remotes) {
    if (!remote->record->alive.load(std::memory_order_relaxed)) return remote->record->dead;
  }
  if (parts_.empty()) {
    if (batch_->resolved_epoch != peer_->routes().epoch()) return move(blocked);
    groups_ = batch_->groups;
    parts_ = std::vector<Part>(groups_->size());
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      parts_[i].work = this;
      parts_[i].slot = (*groups_)[i].slot;
    }
  }
  const auto groups = groups_;  // the last part may complete inside its post and let go of it
  const bool single = parts_.size() == 1;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    if (part.posted) continue;
    const BlockBatchState::Group& group = (*groups)[i];
    if (part.slot->state != EndpointSlot::State::ready) {
      if (posted_) return part.slot->failure;
      parts_.clear();
      if (peer_->imports().withdrawing()) peer_->imports().settle_withdrawn();
      return move(blocked);
    }
    TransferOp op;
    op.runs = group.runs;
    op.bytes = group.bytes;
    op.level = single ? level_ : Complete::remote;
    notify_.attach(single);
    if (single) op.signal = notify_.span();
    op.after = after_.get();
    ++part.slot->operations;
    ++open_parts_;
    part.posted = posted_ = true;
    if (single) notified_ = true;
    Endpoint& endpoint = *part.slot->endpoint;
    const Status status = is_put_ ? endpoint.put(op, &part) : endpoint.get(op, &part);
    if (!status.ok()) {
      --part.slot->operations;
      --open_parts_;
      part.posted = false;
      if (single) posted_ = notified_ = false;
      blocked = status.code() == Code::would_block;
      return blocked ? Status() : status;
    }
    if (single) went_with_put(*part.slot);
    group.route->count(is_put_, group.bytes);
    if (finished_ || undecided_) return {};
  }
  return {};
}

Status TransferWork::post_notify(bool& blocked) {
  if (notify_.empty()) {
    notified_ = true;
    if (bytes_ != 0) finish({});
    return {};
  }
  if (notify_.cost() != 0 && !peer_->notify_slot()->has_credit(notify_.cost())) {
    blocked = true;
    return {};
  }
  notify_.attach(false);
  const Status status = peer_->signal(notify_.span(), {});
  if (status.code() == Code::would_block) {
    blocked = true;
    return {};
  }
  HMC_TRY(status);
  peer_->messages().notified();
  if (notify_.cost() != 0) peer_->notify_slot()->spend(notify_.cost());
  notified_ = true;
  if (bytes_ != 0) finish({});
  return {};
}

void TransferWork::went_with_put(EndpointSlot& slot) {
  if (notify_.empty()) return;
  slot.notified = true;
  if (notify_.cost() == 0) return;
  peer_->notify_slot()->spend(notify_.cost());
  slot.credit_out += notify_.cost();
}

// Blocked until the buffers are known to the connection that takes over.
Status TransferWork::move(bool& blocked) {
  if (!preparation_error_.ok()) return preparation_error_;
  blocked = true;
  if (preparing_) return {};
  peer_->impl().counters().add("operations.moved", 1);
  prepare();
  return {};
}

void TransferWork::prepare() {
  preparing_ = true;
  const auto self = std::static_pointer_cast<TransferWork>(shared_from_this());
  batch_ ? Transfers::prepare(self, batch_) : Transfers::prepare(self, local_, remote_);
}

void TransferWork::prepared(Status status) {
  preparing_ = false;
  preparation_error_ = std::move(status);
  if (peer_->carries()) peer_->impl().peers().pump_soon(*peer_);
}

bool TransferWork::decide() {
  if (!std::exchange(undecided_, false)) return false;
  finish(failure_);
  return true;
}

PendingOp::Outcome post_notify(PeerImpl& peer, const EncodedNotify& notify, Status& failure) {
  if (notify.cost() != 0 && !peer.notify_slot()->has_credit(notify.cost())) return PendingOp::Outcome::no_credit;
  Status status = peer.signal(notify.span(), {});
  if (status.code() == Code::would_block) return PendingOp::Outcome::blocked;
  if (status.ok()) peer.messages().notified();
  if (status.ok() && notify.cost() != 0) peer.notify_slot()->spend(notify.cost());
  failure = std::move(status);
  return PendingOp::Outcome::posted;
}

PendingOp::Outcome NotifyOp::post() {
  Status failure;  // ends the peer, which its user learns by other means
  return post_notify(peer_, notify_, failure);
}

}  // namespace hmc
