#include "comm/onesided/transfer_notify.h"

#include <cstring>
#include <string>

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

void TransferNotify::attach_to(TransferOp& op) noexcept {
  encoded_.attach(true);
  op.signal = encoded_.span();
  sent_ = true;
}

void TransferNotify::count_on(EndpointSlot& slot) {
  slot.notified = true;
  if (encoded_.cost() == 0) return;
  peer_.notify_slot()->spend(encoded_.cost());
  slot.credit.out += encoded_.cost();
}

void TransferNotify::recall(EndpointSlot& slot) {
  if (sent_ && encoded_.cost() != 0) {
    slot.credit.out -= encoded_.cost();
    peer_.notify_slot()->refund(encoded_.cost());
  }
  sent_ = false;
}

Status TransferNotify::post_alone(bool& blocked) {
  if (!encoded_.empty()) {
    encoded_.attach(false);
    Status failure;
    blocked = post_notify(peer_, encoded_, failure) != PendingOp::Outcome::posted;
    if (blocked) return {};
    HMC_TRY(failure);
  }
  sent_ = true;
  return {};
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
