// TransferParts: the operations of one transfer on endpoints: one for a range, one per endpoint for a batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/onesided/transfer_notify.h"
#include "comm/onesided/transfer_request.h"

namespace hmc {

class TransferWork;

// Engine lock held. `work` owns it and gets the completion of each part.
class TransferParts {
 public:
  enum class Posting : std::uint8_t {
    posted,
    no_room,     // for all that is left
    unprepared,  // a route, registration or mapping is missing
  };

  TransferParts(TransferWork& work, const TransferRequest& request, TransferNotify& notify) noexcept
      : work_(work), request_(request), notify_(notify) {}

  void start_after(std::shared_ptr<StreamPoint> point) noexcept { after_ = std::move(point); }
  // The hot path: one range on one endpoint, the notification with it.
  Result<Posting> post_range(Route& route);
  // What is not posted yet, one part per endpoint. The notification is sent with a single part, else once all are complete.
  Result<Posting> post_batch();

  [[nodiscard]] bool posted() const noexcept { return posted_; }       // at least one
  [[nodiscard]] std::size_t open() const noexcept { return open_; }    // posted and not complete
  [[nodiscard]] bool done() const noexcept;                            // all parts of a batch; a range has none
  [[nodiscard]] EndpointSlot* slot() const noexcept { return slot_; }  // of a range; null for a batch
  // Whether a part is, or will be, posted with that region.
  [[nodiscard]] bool uses(const RemoteRegion* region) const noexcept;
  [[nodiscard]] bool needs_polling() const noexcept { return slot_ == nullptr || !slot_->transport().capabilities.rings; }
  Status cancel();

  void one_complete() noexcept { --open_; }
  // None is open, and the transport of `slot` does not reach the memory here: all are to be posted by the next transport.
  // Errors: there is none.
  Status fail_over(EndpointSlot& slot, const Status& failure);
  // The transfer has ended.
  void release() noexcept { groups_.reset(); }

 private:
  // Part of a batch: one TransferOp on one endpoint.
  class Part final : public Completion {
   public:
    void complete(Status status) noexcept override;
    TransferWork* work = nullptr;
    EndpointSlot* slot = nullptr;
    bool posted = false;
    bool done = false;
  };

  TransferWork& work_;
  const TransferRequest& request_;
  TransferNotify& notify_;
  bool posted_ = false;
  std::size_t open_ = 0;
  Run run_;  // of a range
  EndpointSlot* slot_ = nullptr;
  std::shared_ptr<StreamPoint> after_;
  std::vector<Part> parts_;
  std::shared_ptr<const std::vector<BlockBatchState::Group>> groups_;  // of parts_
};

}  // namespace hmc
