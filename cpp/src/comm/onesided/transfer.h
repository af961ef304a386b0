// TransferWork: one put, get or batch, from its post to its end.
#pragma once

#include <memory>
#include <utility>

#include "comm/onesided/pending.h"
#include "comm/onesided/transfer_end.h"
#include "comm/onesided/transfer_notify.h"
#include "comm/onesided/transfer_parts.h"
#include "comm/onesided/transfer_request.h"
#include "comm/peer_impl.h"
#include "progress/work_state.h"

namespace hmc {

// What is queued on the stream now, or null for none. Errors: invalid_argument for CPU memory, device.
Result<std::shared_ptr<StreamPoint>> mark_stream(StreamHandle stream, const Device& device);

// Engine lock held, but for construction.
class TransferWork final : public WorkState, public PendingOp {
 public:
  TransferWork(TransferRequest&& request, EncodedNotify&& notify);

  [[nodiscard]] PeerImpl& peer() const noexcept { return request_.peer(); }
  [[nodiscard]] bool is_put() const noexcept { return request_.is_put(); }

  // Counts itself on the buffers and takes its place among the peer's operations.
  void begin();
  // Before begin(): comes first; may be null.
  void start_after(std::shared_ptr<StreamPoint> point) noexcept { parts_.start_after(std::move(point)); }
  // The route that was found for it under the present locking; spares post() the look.
  void use_route(Route* route) noexcept { known_route_ = route; }
  // Posts what is not posted yet. When it fails, the Work completes with the reason, and `post_error` has it.
  Outcome post() override;  // the caller holds a reference
  void abandon(const Status& reason) override { finish(reason); }
  void complete(Status status) noexcept override;  // of a range's part; the Work's own completion is finish()
  void part_done(EndpointSlot& slot, Status status);
  Status cancel_locked() override;
  // Stops what can be stopped, completing with `reason`; the rest completes by itself.
  void stop(const Status& reason);
  [[nodiscard]] bool touches(const RemoteImport* record) const noexcept { return !end_.finished() && request_.touches(record); }
  // Whether a part of it is, or will be, posted with that region.
  [[nodiscard]] bool uses(const RemoteRegion* region) const noexcept { return !end_.finished() && parts_.uses(region); }
  // Once posted: would it stand still if nobody polled?
  [[nodiscard]] bool needs_polling() const noexcept { return parts_.needs_polling(); }
  [[nodiscard]] bool over() const noexcept { return end_.over(); }
  [[nodiscard]] const Status& post_error() const noexcept { return end_.post_error(); }
  // Prepares the way that it lacks (first use of two buffers); it is posted after that, and other operations behind it.
  void prepare();
  // What it lacked is there, or is not to be had.
  void prepared(Status status);
  // ---- its connection failed ----
  // The peer is known to live. True: it ended here, where only the peer's silence had failed it.
  bool decide();

 private:
  friend class WorkList;

  Status post_data(bool& blocked);
  Result<TransferParts::Posting> post_range();
  // Blocked until the buffers are known to the connection that takes over.
  Status move(bool& blocked);
  // True: the peer's answer, or its end, will finish this.
  bool awaits_proof_of_life(const Status& status);
  void finish(const Status& status);
  void released() noexcept override { request_.release(); }

  TransferRequest request_;
  TransferNotify notify_;
  TransferParts parts_;
  TransferEnd end_;
  Route* known_route_ = nullptr;
  bool preparing_ = false;  // what it lacks to be posted
  Status preparation_error_;
  TransferWork* next_ = nullptr;
  TransferWork* previous_ = nullptr;
};

}  // namespace hmc
