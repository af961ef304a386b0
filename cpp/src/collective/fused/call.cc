#include "collective/fused/call.h"

#include <algorithm>
#include <utility>

#include "collective/fused/calls.h"
#include "collective/fused/pass.h"
#include "collective/fused/spread.h"
#include "collective/group.h"
#include "comm/counters.h"

namespace hmc::fused {
namespace {

MemoryView without_owner(const MemoryView& view) noexcept { return {view.data, view.bytes, view.device}; }

// What a Call uses of them. CollectiveWork keeps the rest.
CollectiveBuffers used_of(const CollectiveBuffers& buffers) {
  return {without_owner(buffers.in), without_owner(buffers.out), buffers.reduction, buffers.after};
}

}  // namespace

Call::Call(Calls& calls, std::uint32_t rank, const Announced& own, Way way, const CollectiveBuffers& buffers)
    : WorkState(calls.group_.engine()), calls_(calls), rank_(rank), own_(own), way_(std::move(way)), buffers_(used_of(buffers)) {}

Status Call::cancel_locked() {
  if (done()) return {Code::invalid_argument, "the fused call is already complete"};
  const auto self = std::static_pointer_cast<Call>(shared_from_this());
  const Status cancelled(Code::cancelled, "cancelled");
  calls_.give_up(rank_, own_.sequence);
  if (by_library_ && !device_work_) calls_.natives_.abort(rank_);  // it connects
  if (device_work_) {
    end_on_device(cancelled);
  } else {
    calls_.end(self, cancelled);
  }
  return {};
}

std::chrono::microseconds Call::patience() const {
  using namespace std::chrono_literals;
  // With several of the group's ranks in this process, the caller may be the thread that is to make the other ranks' calls.
  const bool alone = calls_.group_.local().size() == 1;
  if (alone && calls_.devices_.may_map_next(rank_)) return 10s;
  // Not longer than the host takes to release a stream; some calls last as long as the longer one.
  return alone || is_queued() ? 1ms : 150us;
}

bool Call::is_queued() const noexcept {
  if (announced_ || done()) return false;
  const auto first = std::ranges::find_if(calls_.given_, [&](const auto& call) { return call->rank_ == rank_; });
  return first != calls_.given_.end() && others_are_past(calls_.slots(), rank_, (*first)->own_.sequence);
}

bool Call::order(const Device& device, StreamHandle stream) {
  return device_work_ && !by_library_ && calls_.devices_.order(rank_, device, stream);
}

bool Call::needs(std::uint32_t rank) const noexcept {
  if (rank == rank_) return false;
  // One whose device has ended has written all that this one waits for.
  if (on_device_) return ended_on_device(calls_.slots().board(rank)).load(std::memory_order_seq_cst) <= own_.sequence;
  if (way_.in_chunks()) return !passing_ || passing_->needs(rank);
  // Of CPU memory, all that it waits for comes with the announcement.
  return !announced_ || own_.ways != by_cpu || !in_one_shot_under(calls_.slots().board(rank), own_.sequence);
}

std::atomic<std::uint64_t>& Call::ended_on_device(Board& board) const noexcept {
  return by_library_ ? board.library_ended : board.kernel_ended;
}

bool Call::awaits(std::uint32_t rank) const noexcept {
  if (by_library_ && !device_work_) return rank != rank_ && calls_.natives_.boards().awaits(rank, own_.sequence);
  const bool in_chunks = way_.in_chunks();
  if (passing_ || device_work_ || (!in_chunks && own_.ways == by_cpu)) return needs(rank);
  const Board& board = calls_.slots().board(rank);
  const auto announced = in_chunks ? in_chunks_under(board, own_.sequence) : in_one_shot_under(board, own_.sequence);
  return rank != rank_ && !is_beyond(board, own_.sequence) && !announced;
}

void Call::begin_passing() {
  const std::uint64_t first = calls_.next_chunk_[rank_];
  if (way_.spread) {
    passing_ = std::make_unique<Spread>(calls_.slots(), rank_, *way_.spread, buffers_, first);
  } else {
    passing_ = std::make_unique<Pass>(calls_.slots(), rank_, way_.chunks, buffers_, first);
  }
}

bool Call::can_advance_on_device(std::uint32_t ways) const noexcept {
  return (ways & by_native) != 0 ? calls_.natives_.boards().can_connect(rank_, own_.sequence) : calls_.devices_.can_map(rank_);
}

bool Call::advance_on_device(std::uint32_t ways) {
  on_device_ = true;
  if ((ways & by_native) != 0) return advance_by_library();
  const auto self = std::static_pointer_cast<Call>(shared_from_this());
  mapped::Devices& devices = calls_.devices_;
  const bool moves = devices.can_map(rank_);
  const auto mapping = devices.map(rank_);
  if (moves) calls_.wake_others();
  if (mapping == mapped::Devices::Mapping::awaited) return false;
  if (mapping == mapped::Devices::Mapping::refused) {
    calls_.end(self, Status(Code::unsupported, "a device does not map the memory of another one"));
    return true;
  }
  if (devices.is_held_up(rank_)) return false;
  begin_on_device(devices.start(rank_, *way_.on_device, buffers_));
  return true;
}

bool Call::advance_by_library() {
  using Connection = native::Boards::Connection;
  by_library_ = true;
  const auto self = std::static_pointer_cast<Call>(shared_from_this());
  native::Boards& boards = calls_.natives_.boards();
  const bool moves = boards.can_connect(rank_, own_.sequence);
  const Connection connection = boards.connect(rank_, own_.sequence);
  if (moves) calls_.wake_others();
  if (connection == Connection::awaited) return false;
  if (connection == Connection::refused) {
    calls_.end(self, Status(Code::unsupported, "the vendor's library does not connect the ranks"));
    return true;
  }
  begin_on_device(calls_.natives_.start(rank_, *way_.by_library, buffers_.after));
  return true;
}

void Call::begin_on_device(std::shared_ptr<WorkState> work) {
  device_work_ = std::move(work);
  auto& waiting = calls_.waiting_;
  const auto here = std::ranges::find_if(waiting, [this](const auto& call) { return call.get() == this; });
  calls_.given_.push_back(std::move(*here));
  waiting.erase(here);
  ++calls_.on_device_[rank_];
  settled_.store(1, std::memory_order_release);
  pass(calls_.slots().board(rank_), own_.sequence);
  calls_.wake_others();
  if (device_work_->done()) return device_ended(device_work_->status());
  device_work_->on_complete_locked([this](const Status& status) { device_ended(status); });  // it does not end earlier
}

void Call::device_ended(const Status& status) {
  // A rank's kernels are ended together. How far this one had come is not known.
  const Status& stopped = calls_.stopped_devices_[rank_];
  if (outcome_.ok() && status.ok() && !stopped.ok())
    outcome_ = stopped.with_context("its device was stopped for a later collective");
  // "Unsupported" would send this rank alone to messages.
  if (outcome_.ok()) outcome_ = status.code() == Code::unsupported ? Status(Code::device, std::string(status.message())) : status;
  if (outcome_.ok()) {
    ended_on_device(calls_.slots().board(rank_)).store(own_.sequence + 1, std::memory_order_seq_cst);
    calls_.group_.context().counters().add(by_library_ ? "native.count" : "mapped.count", 1);
  }
  calls_.end(std::static_pointer_cast<Call>(shared_from_this()), outcome_);
}

void Call::end_on_device(const Status& status) {
  if (outcome_.ok()) outcome_ = status;
  Status& stopped = calls_.stopped_devices_[rank_];
  if (stopped.ok()) stopped = status;
  if (by_library_) {
    calls_.natives_.abort(rank_);
  } else {
    calls_.devices_.end_kernels(rank_);
  }
}

}  // namespace hmc::fused
