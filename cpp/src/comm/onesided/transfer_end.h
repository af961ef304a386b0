// TransferEnd: how one transfer ends: its first failure, what stopped it, and whether the state of its peer decides.
#pragma once

#include <utility>

#include "hmc/status.h"

namespace hmc {

class TransferParts;
class TransferRequest;

// Engine lock held.
class TransferEnd {
 public:
  // Nothing of it is posted any more: it has ended, or waits for the state of its peer.
  [[nodiscard]] bool over() const noexcept { return finished_ || undecided_; }
  [[nodiscard]] bool finished() const noexcept { return finished_; }
  [[nodiscard]] const Status& failure() const noexcept { return failure_; }
  // The first failure counts.
  void fail(const Status& status) {
    if (failure_.ok()) failure_ = status;
  }
  // The failed part is posted by another transport, or `outcome` is why not.
  void failed_over(Status outcome) noexcept { failure_ = std::move(outcome); }

  // What the caller of the post gets.
  [[nodiscard]] const Status& post_error() const noexcept { return post_error_; }
  void fail_post(const Status& status) { post_error_ = status; }

  // Cancelled parts mean `reason`; ok: they were cancelled by the user.
  void stop(const Status& reason) { stop_reason_ = reason; }
  [[nodiscard]] bool stopped() const noexcept { return !stop_reason_.ok(); }

  // All parts have ended, but only the state of the peer tells what the failure means.
  void leave_undecided() noexcept { undecided_ = true; }
  // The state of the peer is known. False: nothing was undecided.
  bool decide() noexcept { return std::exchange(undecided_, false); }

  // False: it had ended before.
  bool finish() noexcept;
  // `status` for the user: which operation, which peer, and what may have been written.
  [[nodiscard]] Status explain(const Status& status, const TransferRequest& request, const TransferParts& parts) const;

 private:
  bool undecided_ = false;
  bool finished_ = false;
  Status failure_;
  Status post_error_;
  Status stop_reason_;
};

}  // namespace hmc
