// TransferNotify: the notification of one put. EncodedNotify: its bytes. NotifyOp: a notification without data that found no room.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "comm/connection/signals.h"
#include "comm/onesided/pending.h"
#include "comm/peer_impl.h"

namespace hmc {

// Errors: invalid_argument, with the limit that is not kept.
Status check_notify(const Notify& notify);

class EncodedNotify;
// Signals `notify` to `peer`, spending its credit. `failure` is set when it was refused for good.
PendingOp::Outcome post_notify(PeerImpl& peer, const EncodedNotify& notify, Status& failure);

// The notification of a put, encoded: small ones in place.
class EncodedNotify {
 public:
  EncodedNotify() noexcept = default;
  EncodedNotify(const Notify& notify, const Envelope& envelope);
  [[nodiscard]] ByteSpan span() const noexcept {
    return size_ <= inline_.size() ? ByteSpan(inline_.data(), size_) : ByteSpan(heap_);
  }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] std::uint64_t cost() const noexcept { return cost_; }  // of payload credit; 0 for counted ids
  // Whether it travels with a put, or alone and in order.
  void attach(bool with_put) noexcept;

 private:
  std::array<std::byte, number_signal_bytes> inline_;
  Bytes heap_;
  std::size_t size_ = 0;
  std::uint64_t cost_ = 0;
};

// The notification of one transfer, perhaps empty. It travels with the data, or is posted alone when the data is in place.
// Engine lock held, but for construction.
class TransferNotify {
 public:
  TransferNotify(PeerImpl& peer, EncodedNotify&& encoded) noexcept : peer_(peer), encoded_(std::move(encoded)) {}

  [[nodiscard]] bool sent() const noexcept { return sent_; }
  [[nodiscard]] bool outstanding() const noexcept { return !sent_ && !encoded_.empty(); }
  [[nodiscard]] bool lacks_credit() const noexcept {
    return encoded_.cost() != 0 && !sent_ && !peer_.notify_slot()->has_credit(encoded_.cost());
  }
  // Adds it to `op`, which is to be posted: sent, unless detach() follows.
  void attach_to(TransferOp& op) noexcept;
  void detach() noexcept { sent_ = false; }  // the post was refused
  // The operation with it was posted on `slot`: spends its credit.
  void posted_on(EndpointSlot& slot) {
    if (!encoded_.empty()) count_on(slot);
  }
  // The operation with it failed on `slot` and is posted again: refunds its credit.
  void recall(EndpointSlot& slot);
  // `blocked`: no room or no credit now.
  Status post_alone(bool& blocked);

 private:
  void count_on(EndpointSlot& slot);

  PeerImpl& peer_;
  EncodedNotify encoded_;
  bool sent_ = false;  // alone, or with the data
};

// A notification without data.
class NotifyOp final : public PendingOp {
 public:
  NotifyOp(PeerImpl& peer, EncodedNotify notify) : peer_(peer), notify_(std::move(notify)) {}
  Outcome post() override;
  void abandon(const Status&) override {}
  [[nodiscard]] bool is_unreported() const noexcept override { return true; }

 private:
  PeerImpl& peer_;
  EncodedNotify notify_;
};

}  // namespace hmc
