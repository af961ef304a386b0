// Link: puts and gets, from the post to the completion.
#include <sys/uio.h>

#include <array>
#include <cstring>
#include <limits>
#include <string>

#include "transport/shm/link.h"

namespace hmc::shm {

namespace {

constexpr std::size_t inline_bytes = 1 << 20;  // copied in the posting call
constexpr std::size_t turn_bytes = 256 << 10;  // of one operation before the next has its turn
constexpr int turns_per_poll = 64;
constexpr std::size_t max_waiting_signals = 64;
constexpr std::size_t max_vectors = 256;  // blocks per system call (IOV_MAX is 1024; beyond this the call's cost has vanished)

const ShmRemoteRegion& remote_of(const Run& run) noexcept { return static_cast<const ShmRemoteRegion&>(*run.remote); }
std::byte* local_data(const Run& run) noexcept { return static_cast<std::byte*>(run.local->view().span.data); }

}  // namespace

bool Link::uses_ring(const RunCursor& cursor) const noexcept {
  return remote_of(cursor.run()).mapped() == nullptr && !peer_memory_.usable();
}

bool Link::ended(const Op& op) noexcept {
  return op.in_flight == 0 && op.awaiting == 0 && (op.cursor.at_end() || !op.failure.ok());
}

Status Link::post(const TransferOp& transfer, Completion* done, bool is_put) {
  if (!ready_) [[unlikely]]
    return not_ready();
  HMC_ASSIGN(const std::size_t bytes, check_runs(transfer.runs));
  const ByteSpan signal = is_put ? transfer.signal : ByteSpan();
  if (is_put) {
    for (const Run& run : transfer.runs) {
      if (run.count != 0 && run.block != 0 && !remote_of(run).writable()) {
        return Status(Code::invalid_argument, "put into a region that its owner exported for reading only");
      }
    }
    if (!signal.empty()) {
      if (signal.size() > max_signal) {
        return Status(Code::invalid_argument,
                      "an attached signal of " + std::to_string(signal.size()) + " bytes; at most " + std::to_string(max_signal));
      }
      HMC_TRY(out_.reserve_signals());
      if (waiting_signals_.size() >= max_waiting_signals) {
        blocked_ = true;
        blocked_bytes_ = signal.size();
        return Status(Code::would_block, "too many attached signals wait for room in the peer's signal ring");
      }
    }
  }
  Op op;
  op.cursor = RunCursor(transfer.runs);
  op.done = done;
  op.number = ++last_number_;
  op.bytes = bytes;
  op.kind = copy_kind_for(bytes);
  op.level = transfer.level;
  op.is_put = is_put;
  if (!op.cursor.at_end() && uses_ring(op.cursor)) HMC_TRY(out_.reserve_slots());
  move(op, inline_bytes);
  if (ended(op)) {
    if (op.failure.ok() && !signal.empty()) send_attached(signal);
    done->complete(std::move(op.failure));
    return {};
  }
  op.signal.assign(signal.begin(), signal.end());
  Op& queued = *ops_.emplace(op.number, std::make_unique<Op>(std::move(op))).first->second;
  shared_->engine->kick();
  after_move(queued);
  return {};
}

bool Link::put_short(const Run& run, ByteSpan signal) {
  const ShmRemoteRegion& remote = remote_of(run);
  const RegionView& local = run.local->view();
  const std::uint64_t from = run.local_offsets[0];
  const std::uint64_t to = run.remote_offsets[0];
  const bool fits = run.block <= local.span.bytes && from <= local.span.bytes - run.block && run.block <= remote.bytes() &&
                    to <= remote.bytes() - run.block && signal.size() <= max_signal;
  if (!ready_ || remote.mapped() == nullptr || !remote.writable() || !fits) return false;
  if (!signal.empty()) {
    if (!out_.reserve_signals().ok() || !waiting_signals_.empty() || !signals_out_.has_room(signal.size())) return false;
  }
  std::memcpy(remote.mapped() + to, local_data(run) + from, run.block);
  if (!signal.empty()) {
    signals_out_.push(signal, {});  // its release makes the block visible first
    ring_peer();
  }
  return true;
}

// Moves up to `budget` bytes of the operation; less when the ring is full, the peer must answer first, or something failed.
std::size_t Link::move(Op& op, std::size_t budget) {
  std::size_t moved = 0;
  std::size_t copied = 0;
  while (moved < budget && !op.cursor.at_end() && op.failure.ok() && op.awaiting == 0) {
    const Run& run = op.cursor.run();
    std::size_t step = 0;
    if (std::byte* mapped = remote_of(run).mapped(); mapped != nullptr) {
      step = copy_run(op.cursor, local_data(run), mapped, op.is_put, budget - moved, op.kind);
      copied += step;
    } else if (peer_memory_.usable()) {
      step = move_vm(op, budget - moved);
    } else if (op.is_put) {
      step = fill_put(op, budget - moved);
    } else {
      request(op);
      break;
    }
    if (step == 0) break;
    moved += step;
    op.moved += step;
  }
  if (copied != 0) copy_fence(op.kind);
  return moved;
}

std::size_t Link::move_vm(Op& op, std::size_t budget) {
  std::array<iovec, max_vectors> local;
  std::array<iovec, max_vectors> remote;
  RunCursor ahead = op.cursor;
  std::size_t count = 0;
  std::size_t bytes = 0;
  while (count < max_vectors && bytes < budget && !ahead.at_end() && remote_of(ahead.run()).mapped() == nullptr) {
    const RunPiece piece = ahead.peek(budget - bytes);
    const std::uint64_t address = remote_of(*piece.run).address() + piece.remote_offset;
    local[count] = {local_data(*piece.run) + piece.local_offset, piece.bytes};
    remote[count] = {reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), piece.bytes};
    ++count;
    bytes += piece.bytes;
    ahead.advance(piece.bytes);
  }
  auto result = op.is_put ? peer_memory_.write({local.data(), count}, {remote.data(), count})
                          : peer_memory_.read({local.data(), count}, {remote.data(), count});
  if (!result.ok()) {
    op.failure = result.status();
    return 0;
  }
  // The kernel may stop early, at a fault: the next call meets it and says which.
  std::size_t left = *result;
  while (left != 0) {
    const RunPiece piece = op.cursor.peek(left);
    op.cursor.advance(piece.bytes);
    left -= piece.bytes;
  }
  return *result;
}

// Ends a queued operation when it has ended, and tells a put at level local that its source is free.
void Link::after_move(Op& op) {
  if (ended(op)) {
    const auto place = ops_.find(op.number);
    std::unique_ptr<Op> owned = std::move(place->second);
    ops_.erase(place);
    finish(std::move(owned));
  } else if (op.level == Complete::local && op.is_put && op.cursor.at_end() && op.failure.ok() && op.done != nullptr) {
    std::exchange(op.done, nullptr)->complete({});
  }
}

void Link::finish(std::unique_ptr<Op> op) {
  if (op->failure.ok()) {
    if (!op->signal.empty()) send_attached(op->signal);
  } else if (op->done == nullptr && late_failure_.ok()) {
    late_failure_ = op->failure;
  }
  if (op->done != nullptr) op->done->complete(std::move(op->failure));
  end_flushes();
}

Status Link::flush(Completion* done) {
  if (!ready_) [[unlikely]]
    return not_ready();
  flushes_.push_back({last_number_ + 1, done});
  end_flushes();
  return {};
}

void Link::end_flushes() {
  if (flushes_.empty()) return;
  std::uint64_t oldest_put = std::numeric_limits<std::uint64_t>::max();
  for (const auto& [number, op] : ops_) {
    if (!op->is_put) continue;
    oldest_put = number;
    break;
  }
  while (!flushes_.empty() && flushes_.front().before <= oldest_put) {
    Completion* done = flushes_.front().done;
    flushes_.pop_front();
    done->complete(std::exchange(late_failure_, {}));
  }
}

Status Link::cancel(Completion* done) {
  auto place = ops_.begin();
  while (place != ops_.end() && place->second->done != done) ++place;
  if (place == ops_.end()) return Status(Code::unsupported, "the operation has been handed over already and completes by itself");
  Op& op = *place->second;
  if (op.in_flight != 0 && !revoke_chunks(op)) {
    return Status(Code::unsupported, "the peer is copying a chunk of the operation at this moment; it goes on");
  }
  if (op.awaiting != 0) {
    stops_.push_back(op.number);
    --requests_out_;
  }
  const std::unique_ptr<Op> owned = std::move(place->second);
  ops_.erase(place);
  shared_->engine->kick();
  owned->done->complete(Status(Code::cancelled, "cancelled; up to " + std::to_string(owned->moved) + " of " +
                                                    std::to_string(owned->bytes) + " bytes were written to the target"));
  end_flushes();
  return {};
}

bool Link::advance_ops(std::size_t& budget) {
  bool moved_any = false;
  std::size_t idle = 0;  // operations in a row that could not go on
  for (int turn = 0; turn < turns_per_poll && budget != 0 && ready_ && idle < ops_.size(); ++turn) {
    auto place = ops_.upper_bound(last_served_);
    if (place == ops_.end()) place = ops_.begin();
    last_served_ = place->first;
    Op& op = *place->second;
    const bool waits = op.awaiting != 0 || !op.failure.ok() || op.cursor.at_end();
    const std::size_t moved = waits ? 0 : move(op, ops_.size() == 1 ? budget : std::min(budget, turn_bytes));
    const bool progress = !waits && (moved != 0 || op.awaiting != 0 || !op.failure.ok());
    budget -= moved;
    idle = progress ? 0 : idle + 1;
    moved_any = moved_any || progress;
    after_move(op);
  }
  return moved_any;
}

// Takes back every chunk of a put that the peer has not begun to copy. False when it is copying one: what was taken back is sent
// again.
bool Link::revoke_chunks(Op& op) {
  bool busy = false;
  const SlotUse* earliest = nullptr;
  for (std::uint64_t number = bulk_out_.oldest(); number != bulk_out_.next(); ++number) {
    SlotUse& use = uses_[number % slot_count];
    if (use.op != op.number) continue;
    switch (bulk_out_.revoke(number)) {
      case BulkProducer::Revoke::revoked:
        use.op = 0;
        --op.in_flight;
        op.moved -= use.bytes;
        if (earliest == nullptr) earliest = &use;
        break;
      case BulkProducer::Revoke::consumed:
        break;
      case BulkProducer::Revoke::busy:
        busy = true;
        break;
    }
  }
  if (busy && earliest != nullptr) op.cursor = earliest->start;
  if (!busy) {
    for (SlotUse& use : uses_) {
      if (use.op == op.number) use.op = 0;
    }
  }
  return !busy;
}

}  // namespace hmc::shm
