// PostQueue: what one peer still has to post: operations that found no room, payload notifications out of credit, fences. Owned by
// PeerImpl. Engine lock held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>

#include "comm/onesided/pending.h"
#include "comm/onesided/receipts.h"

namespace hmc {

class PostQueue {
 public:
  explicit PostQueue(PeerImpl& peer) noexcept : peer_(peer), receipts_(peer) {}

  [[nodiscard]] std::size_t size() const noexcept { return pending_.size() + credit_wait_.size(); }
  [[nodiscard]] bool empty() const noexcept { return pending_.empty() && credit_wait_.empty(); }
  // Whether nothing is pending that other operations must stay behind.
  [[nodiscard]] bool passable() const noexcept { return pending_.empty(); }
  // Queues `op` behind the operations and fences that are pending. It is posted once, or abandoned when the peer ends.
  void add(std::shared_ptr<PendingOp> op);
  // Again, before what has been posted since.
  void add_first(std::shared_ptr<PendingOp> op);
  // An operation is pending whose loss only a close can report.
  [[nodiscard]] bool has_unreported() const noexcept;
  // False: it is not queued (any more).
  bool remove(const PendingOp* op);
  Status fence();
  [[nodiscard]] Receipts& receipts() noexcept { return receipts_; }
  // Tells the peer soon that payloads of cost `total` have been consumed.
  void grant(std::uint64_t total);

  // Sends again the signals that were lost, then posts what can be posted. True if anything moved.
  bool pump();
  void abandon(const Status& reason);
  // Those of which nothing was sent and that end when this side begins to close.
  void abandon_unsent(const Status& reason);

 private:
  bool post(bool& blocked);  // `blocked`: an endpoint has no room for the next

  PeerImpl& peer_;  // its phase, messages, closing, and its Context's list of peers to pump
  Receipts receipts_;
  bool pumping_ = false;
  std::list<std::shared_ptr<PendingOp>> pending_;      // no room, or behind a fence
  std::list<std::shared_ptr<PendingOp>> credit_wait_;  // out of payload credit
  std::uint64_t credit_to_send_ = 0;
};

}  // namespace hmc
