#include "collective/fused/calls.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "collective/execute.h"
#include "collective/group.h"
#include "collective/world.h"
#include "comm/counters.h"

namespace hmc::fused {
namespace {

// Bytes that one look moves, about: as long as the engine lock may be held.
constexpr std::size_t bytes_per_poll = 256 << 10;

CollectiveBuffers without_owners(CollectiveBuffers buffers) {
  buffers.in.owner = nullptr;
  buffers.out.owner = nullptr;
  return buffers;
}

}  // namespace

Call::Call(Calls& calls, std::uint32_t rank, const Announced& own, std::shared_ptr<const Plan> plan,
           const CollectiveBuffers& buffers)
    : WorkState(calls.group_.engine()),
      calls_(calls),
      rank_(rank),
      own_(own),
      plan_(std::move(plan)),
      buffers_(without_owners(buffers)) {}

Status Call::cancel_locked() {
  if (done()) return {Code::invalid_argument, "the fused call is already complete"};
  const auto self = std::static_pointer_cast<Call>(shared_from_this());
  calls_.give_up(rank_, own_.sequence);
  calls_.end(self, Status(Code::cancelled, "cancelled"));
  return {};
}

bool Call::awaits(std::uint32_t rank) const noexcept {
  if (pass_) return pass_->needs(rank);
  const auto theirs = latest_fused(calls_.slots().board(rank));
  return rank != rank_ && (!theirs || theirs->sequence < own_.sequence);
}

void Calls::use(std::shared_ptr<Segment> segment) {
  const auto lock = group_.engine()->lock();
  segment_ = std::move(segment);
  next_chunk_.assign(group_.size(), 0);
  reserved_.assign(group_.size(), false);
  group_.engine()->add(*this);
}

void Calls::announce(std::uint32_t rank, std::uint64_t sequence, std::uint32_t call) {
  if (!segment_) return;
  announce_other(slots().board(rank), sequence, call);
  wake_others();
}

std::shared_ptr<Call> Calls::post(std::uint32_t rank, std::uint64_t sequence, std::uint32_t call, std::shared_ptr<const Plan> plan,
                                  const CollectiveBuffers& buffers) {
  if (!reserved_[rank]) reserved_[rank] = segment_->reserve(rank).ok();
  const bool takes_part = reserved_[rank] && buffers.in.device.is_cpu() && buffers.out.device.is_cpu();
  std::uint64_t bytes = 0;
  for (const Part& part : plan->parts) bytes += part.bytes;
  auto posted = std::make_shared<Call>(*this, rank, Announced{sequence, bytes, call, takes_part}, std::move(plan), buffers);
  posted->accepted();
  under_way_.push_back(posted);
  if (first_of_its_rank(under_way_.size() - 1)) announce(*posted);
  group_.engine()->kick();
  return posted;
}

void Calls::announce(Call& call) {
  announce_fused(slots().board(call.rank_), call.own_);
  call.announced_ = true;
  wake_others();
}

Calls::Agreement Calls::agreement(const Call& call) {
  const Announced& own = call.own_;
  bool declined = !own.takes_part, awaited = false;
  for (std::uint32_t r = 0; r < slots().ranks(); ++r) {
    if (r == call.rank_) continue;
    const auto theirs = latest_fused(slots().board(r));
    auto other = other_call(slots().board(r), own.sequence);
    if (theirs && theirs->sequence == own.sequence && (different_calls(own.call, theirs->call) || own.bytes != theirs->bytes))
      other = theirs->call;
    if (other) {
      if (CollectiveWork* const work = group_.running().find(call.rank_, own.sequence)) work->mismatch(r, *other);
      return Agreement::broken;
    }
    if (!theirs || theirs->sequence < own.sequence) {
      awaited = true;
    } else if (theirs->sequence > own.sequence || !theirs->takes_part) {
      declined = true;
    }
  }
  return declined ? Agreement::declined : awaited ? Agreement::awaited : Agreement::reached;
}

bool Calls::advance(const std::shared_ptr<Call>& call) {
  // Looked at first: whoever has given up because of another collective has seen that one announced, so it is seen here as well.
  const bool is_abandoned = abandoned(*call);
  if (!call->announced_) announce(*call);
  if (!call->pass_) {
    const Agreement agreed = agreement(*call);
    if (agreed == Agreement::broken) return false;
    if (agreed == Agreement::declined) {
      end(call, Status(Code::unsupported, "a rank cannot take part in a fused call"));
      return true;
    }
    if (agreed == Agreement::reached)
      call->pass_.emplace(slots(), call->rank_, call->plan_, call->buffers_, next_chunk_[call->rank_]);
  }
  const bool moved = call->pass_ && call->pass_->advance(bytes_per_poll);
  if (moved) wake_others();
  if (call->pass_ && call->pass_->done()) {
    next_chunk_[call->rank_] = call->pass_->end();
    Counters& counters = group_.context().counters();
    counters.add("fused.count", 1);
    counters.add("fused.bytes", call->pass_->bytes_taken());
    end(call, {});
    return true;
  }
  if (!moved && is_abandoned) {
    end(call, Status(Code::closed, "another rank has given up"));
    return true;
  }
  return moved;
}

bool Calls::abandoned(const Call& call) const noexcept {
  for (std::uint32_t r = 0; r < slots().ranks(); ++r) {
    const std::uint64_t from = slots().board(r).gave_up.load(std::memory_order_seq_cst);
    if (from != 0 && from - 1 <= call.own_.sequence && call.needs(r)) return true;
  }
  return false;
}

void Calls::end(const std::shared_ptr<Call>& call, const Status& status) {
  std::erase(under_way_, call);
  call->complete(status);
}

void Calls::give_up(std::uint32_t rank, std::uint64_t from) {
  std::atomic<std::uint64_t>& gave_up = slots().board(rank).gave_up;
  const std::uint64_t before = gave_up.load(std::memory_order_relaxed);
  if (before == 0 || from + 1 < before) gave_up.store(from + 1, std::memory_order_seq_cst);
  wake_others();
}

void Calls::leave() {
  if (!segment_) return;
  for (const std::uint32_t rank : group_.local()) give_up(rank, 0);
  group_.engine()->remove(*this);
}

bool Calls::first_of_its_rank(std::size_t index) const noexcept {
  return std::none_of(under_way_.begin(), under_way_.begin() + static_cast<std::ptrdiff_t>(index),
                      [&](const auto& earlier) { return earlier->rank_ == under_way_[index]->rank_; });
}

// Ends run code that may post and cancel calls. At worst one is looked at twice, or at the next poll.
bool Calls::poll() {
  bool moved = false;
  for (std::size_t i = 0; i < under_way_.size();) {
    const auto call = under_way_[i];
    if (first_of_its_rank(i) && advance(call)) moved = true;
    if (i < under_way_.size() && under_way_[i] == call) ++i;
  }
  return moved;
}

bool Calls::arm() {
  if (under_way_.empty()) return true;
  armed_ = true;
  for (const std::uint32_t rank : group_.local()) slots().board(rank).armed.exchange(1, std::memory_order_seq_cst);
  for (std::size_t i = 0; i < under_way_.size(); ++i) {
    Call& call = *under_way_[i];
    if (!first_of_its_rank(i)) continue;
    if (abandoned(call) || !call.announced_ || (call.pass_ ? call.pass_->can_advance() : agreement(call) != Agreement::awaited))
      return false;
  }
  return true;
}

void Calls::disarm() {
  if (!std::exchange(armed_, false)) return;
  for (const std::uint32_t rank : group_.local()) slots().board(rank).armed.exchange(0, std::memory_order_seq_cst);
}

void Calls::wake_others() {
  for (std::uint32_t r = 0; r < slots().ranks(); ++r) {
    std::atomic<std::uint32_t>& armed = slots().board(r).armed;
    if (armed.load(std::memory_order_seq_cst) == 0) continue;
    const auto& peer = group_.rank(r).peer;
    if (peer->is_self() || armed.exchange(0, std::memory_order_seq_cst) == 0) continue;
    // Its engine looks at everything when something comes; what it is does not matter. A peer that is gone sleeps no more.
    peer->when_ready([peer](const Status& ready) {
      if (ready.ok()) static_cast<void>(peer->send_control(control_look, {}));
    });
  }
}

}  // namespace hmc::fused
