// TransferWork: one put, get or batch under way, and NotifyOp: a notification that found no room.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/buffers/buffers.h"
#include "comm/connection/signals.h"
#include "comm/onesided/pending.h"
#include "comm/peer_impl.h"
#include "progress/work_state.h"

namespace hmc {

// Errors: invalid_argument, with the limit that is not kept.
Status check_notify(const Notify& notify);

// What is queued on the stream now, or null for none. Errors: invalid_argument for CPU memory, device.
Result<std::shared_ptr<StreamPoint>> mark_stream(StreamHandle stream, const Device& device);

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

// Engine lock held, but for construction.
class TransferWork final : public WorkState, public PendingOp {
 public:
  // One range. Offsets are in the registrations.
  TransferWork(bool is_put, std::shared_ptr<BufferState> local, std::uint64_t local_offset,
               std::shared_ptr<RemoteBufferState> remote, std::uint64_t remote_offset, std::size_t bytes, Complete level,
               EncodedNotify notify);
  TransferWork(bool is_put, std::shared_ptr<BlockBatchState> batch, std::size_t bytes, Complete level, EncodedNotify notify);

  [[nodiscard]] PeerImpl& peer() noexcept { return *peer_; }
  [[nodiscard]] bool is_put() const noexcept { return is_put_; }

  // Counts itself on the buffers and takes its place among the peer's operations.
  void begin();
  // Before begin(): comes first; may be null.
  void start_after(std::shared_ptr<StreamPoint> point) noexcept { after_ = std::move(point); }
  // The route that was found for it under the present locking; spares post() the look.
  void use_route(Route* route) noexcept { known_route_ = route; }
  // Posts what is not posted yet. When it fails, the Work completes with the reason, and `post_error` has it.
  Outcome post() override;  // the caller holds a reference
  void abandon(const Status& reason) override { finish(reason); }
  void complete(Status status) noexcept override;  // of a part; the Work's own completion is finish()
  Status cancel_locked() override;
  // Stops what can be stopped, completing with `reason`; the rest completes by itself.
  void stop(const Status& reason);
  [[nodiscard]] bool touches(const RemoteImport* record) const noexcept;
  // Whether a part of it is, or will be, posted with that region.
  [[nodiscard]] bool uses(const RemoteRegion* region) const noexcept;
  // Once posted: would it stand still if nobody polled?
  [[nodiscard]] bool needs_polling() const noexcept { return slot_ == nullptr || !slot_->transport().capabilities.rings; }
  [[nodiscard]] const Status& post_error() const noexcept { return post_error_; }
  // Prepares the way that it lacks (first use of two buffers); it is posted after that, and other operations behind it.
  void prepare();
  // What it lacked is there, or is not to be had.
  void prepared(Status status);
  // ---- its connection failed ----
  // The peer is known to live. True: it ended here, where only the peer's silence had failed it.
  bool decide();

 private:
  friend class WorkList;
  // One TransferOp on one endpoint. A batch over several endpoints has several, and then its notification is sent once all are
  // done.
  class Part final : public Completion {
   public:
    void complete(Status status) noexcept override;
    TransferWork* work = nullptr;
    EndpointSlot* slot = nullptr;
    bool posted = false;
    bool done = false;
  };

  Status post_single(bool& blocked);
  Status post_parts(bool& blocked);
  Status post_notify(bool& blocked);
  Status move(bool& blocked);
  void went_with_put(EndpointSlot& slot);
  void part_done(EndpointSlot& slot, Status status);
  // Its transport learned only now that it does not reach the memory here: all of it goes by the next. Errors: there is none.
  Status go_another_way(EndpointSlot& slot);
  void finish(const Status& status);
  bool awaits_proof_of_life(const Status& status);
  Status explain(const Status& status) const;
  std::string describe() const;
  void released() noexcept override;

  const bool is_put_;
  const Complete level_;
  bool begun_ = false;
  bool posted_ = false;    // at least one part
  bool notified_ = false;  // the notification went out, or rides on the only part
  bool finished_ = false;
  const std::size_t bytes_;
  std::shared_ptr<PeerImpl> peer_;
  std::shared_ptr<BufferState> local_;
  std::shared_ptr<RemoteBufferState> remote_;
  std::shared_ptr<BlockBatchState> batch_;
  EncodedNotify notify_;
  std::uint64_t offsets_[2] = {0, 0};
  Run run_;
  std::shared_ptr<StreamPoint> after_;
  EndpointSlot* slot_ = nullptr;  // of the single part
  Route* known_route_ = nullptr;
  std::vector<Part> parts_;
  std::shared_ptr<const std::vector<BlockBatchState::Group>> groups_;  // of parts_
  bool preparing_ = false;                                             // what it lacks to be posted
  bool undecided_ = false;                                             // over, but for whether its peer is lost
  Status preparation_error_;
  std::size_t open_parts_ = 0;
  Status failure_;  // first of the parts
  Status post_error_;
  Status stop_reason_;  // what a cancelled part means
  TransferWork* next_ = nullptr;
  TransferWork* previous_ = nullptr;
};

// A notification without data.
class NotifyOp final : public PendingOp {
 public:
  NotifyOp(PeerImpl& peer, EncodedNotify notify) : peer_(peer), notify_(std::move(notify)) {}
  Outcome post() override;
  void abandon(const Status&) override {}

 private:
  PeerImpl& peer_;
  EncodedNotify notify_;
};

}  // namespace hmc
