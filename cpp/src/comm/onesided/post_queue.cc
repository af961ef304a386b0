#include "comm/onesided/post_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "comm/connection/signals.h"
#include "comm/context_impl.h"
#include "comm/peer_impl.h"

namespace hmc {
namespace {

class FenceOp final : public PendingOp {
 public:
  explicit FenceOp(PeerState& peer) noexcept : peer_(peer) { peer_.add_fence(); }
  Outcome post() override { return Outcome::blocked; }
  void abandon(const Status&) override { peer_.remove_fence(); }
  [[nodiscard]] bool is_fence() const noexcept override { return true; }

 private:
  PeerState& peer_;
};

}  // namespace

void PostQueue::add(std::shared_ptr<PendingOp> op) {
  pending_.push_back(std::move(op));
  if (peer_.phase() == PeerPhase::ready) peer_.impl().peers().pump_soon(peer_);
}

void PostQueue::add_first(std::shared_ptr<PendingOp> op) {
  pending_.push_front(std::move(op));
  peer_.impl().peers().pump_soon(peer_);
}

bool PostQueue::remove(const PendingOp* op) {
  const auto is_it = [op](const auto& p) { return p.get() == op; };
  if (pending_.remove_if(is_it) == 0 && credit_wait_.remove_if(is_it) == 0) return false;
  if (peer_.carries()) peer_.impl().peers().pump_soon(peer_);  // what waited behind it
  return true;
}

bool PostQueue::has_unreported() const noexcept {
  const auto is_unreported = [](const auto& op) { return op->is_unreported(); };
  return std::ranges::any_of(pending_, is_unreported) || std::ranges::any_of(credit_wait_, is_unreported);
}

void PostQueue::grant(std::uint64_t total) {
  credit_to_send_ = total;
  peer_.impl().peers().pump_soon(peer_);
}

bool PostQueue::pump() {
  if (pumping_ || !peer_.carries()) return false;
  const auto keep = peer_.shared_from_this();
  pumping_ = true;
  bool moved = peer_.messages().pump();
  bool blocked = false;
  if (post(blocked)) moved = true;
  pumping_ = false;
  const bool owes = peer_.messages().owes() || (credit_to_send_ != 0 && peer_.messages().has_connection());
  if (peer_.carries() && (owes || blocked)) peer_.impl().peers().pump_with_room(peer_);
  peer_.closing().advance();
  return moved;
}

// A blocked endpoint blocks all behind it; an operation out of credit lets those behind it pass (a fence does not).
bool PostQueue::post(bool& blocked) {
  bool moved = false;
  if (credit_to_send_ != 0 && peer_.carries() &&
      peer_.signal(number_signal(NotifyKind::credit, {}, credit_to_send_), {}).code() != Code::would_block) {
    credit_to_send_ = 0;
    moved = true;
  }
  while (peer_.carries() && !credit_wait_.empty()) {
    const auto op = credit_wait_.front();
    credit_wait_.pop_front();
    const auto outcome = op->post();
    if (outcome == PendingOp::Outcome::posted) {
      moved = true;
    } else {
      if (peer_.carries()) {
        credit_wait_.push_front(op);
      } else {
        op->abandon(peer_.failure());
      }
      blocked = outcome == PendingOp::Outcome::blocked;
      break;
    }
  }
  while (!blocked && peer_.carries() && !pending_.empty()) {
    const auto op = pending_.front();
    if (op->is_fence()) {
      if (!credit_wait_.empty() || !receipts_.complete()) break;
      pending_.pop_front();
      peer_.remove_fence();
      moved = true;
      continue;
    }
    pending_.pop_front();
    const auto outcome = op->post();
    if (outcome == PendingOp::Outcome::posted) {
      moved = true;
    } else if (!peer_.carries()) {
      op->abandon(peer_.failure());
    } else if (outcome == PendingOp::Outcome::no_credit) {
      credit_wait_.push_back(op);
    } else {
      pending_.push_front(op);
      blocked = outcome == PendingOp::Outcome::blocked;
      break;
    }
  }
  return moved;
}

Status PostQueue::fence() {
  if (peer_.phase() == PeerPhase::lost || peer_.phase() == PeerPhase::closed) return peer_.failure();
  if (empty() && !receipts_.outstanding()) return {};
  add(std::make_shared<FenceOp>(peer_));
  pump();
  return {};
}

void PostQueue::abandon(const Status& reason) {
  for (const auto& op : std::exchange(pending_, {})) op->abandon(reason);
  for (const auto& op : std::exchange(credit_wait_, {})) op->abandon(reason);
}

void PostQueue::abandon_unsent(const Status& reason) {
  std::vector<std::shared_ptr<PendingOp>> unsent;
  std::ranges::copy_if(pending_, std::back_inserter(unsent), [](const auto& op) { return op->ends_at_close(); });
  for (const auto& op : unsent) {
    pending_.remove(op);
    op->abandon(reason);
  }
}

}  // namespace hmc
