// ShmEndpoint: puts and gets, from the post to the completion.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "transport/shm/endpoint.h"

namespace hmc::shm {

namespace {

constexpr std::size_t inline_bytes = 1 << 20;  // copied in the posting call
constexpr std::size_t turn_bytes = 256 << 10;  // of one operation before the next has its turn
constexpr int turns_per_poll = 64;

}  // namespace

Status ShmEndpoint::post(const TransferOp& transfer, Completion* done, bool is_put) {
  if (!ready_) [[unlikely]]
    return failure_;
  HMC_ASSIGN(const std::size_t bytes, check_runs(transfer.runs));
  const ByteSpan signal = is_put ? transfer.signal : ByteSpan();
  if (is_put) {
    for (const Run& run : transfer.runs) {
      if (run.count != 0 && run.block != 0 && !remote_of(run).writable()) {
        return Status(Code::invalid_argument, "put into a region that its owner exported for reading only");
      }
    }
    if (!signal.empty()) HMC_TRY(signals_.accept(signal.size()));
  }
  Operation op;
  op.cursor = RunCursor(transfer.runs);
  op.done = done;
  op.number = operations_.next_number();
  op.bytes = bytes;
  op.kind = copy_kind_for(bytes);
  op.level = transfer.level;
  op.is_put = is_put;
  if (!op.cursor.at_end() && goes_through_ring(op.cursor, peer_memory_)) HMC_TRY(bulk_.reserve());
  move(op, inline_bytes);
  if (op.ended()) {
    if (op.failure.ok() && !signal.empty() && !signals_.attach(signal)) shared_->engine->kick();
    done->complete(std::move(op.failure));
    return {};
  }
  op.signal.assign(signal.begin(), signal.end());
  Operation& queued = operations_.add(std::move(op));
  shared_->engine->kick();
  after_move(queued);
  return {};
}

bool ShmEndpoint::put_short(const Run& run, ByteSpan signal) {
  const ShmRemoteRegion& remote = remote_of(run);
  const RegionView& local = run.local->view();
  const std::uint64_t from = run.local_offsets[0];
  const std::uint64_t to = run.remote_offsets[0];
  const bool fits = run.block <= local.span.bytes && from <= local.span.bytes - run.block && run.block <= remote.bytes() &&
                    to <= remote.bytes() - run.block && signal.size() <= max_signal;
  if (!ready_ || remote.mapped() == nullptr || !remote.writable() || !fits) return false;
  if (!signal.empty() && !signals_.has_room(signal.size())) return false;
  std::memcpy(remote.mapped() + to, local_data(run) + from, run.block);
  if (!signal.empty()) signals_.push(signal, {});
  return true;
}

// Moves up to `budget` bytes of the operation; less when the ring is full, the peer must answer first, or something failed.
std::size_t ShmEndpoint::move(Operation& op, std::size_t budget) {
  std::size_t moved = 0;
  std::size_t copied = 0;
  while (moved < budget && !op.waits()) {
    const Run& run = op.cursor.run();
    std::size_t step = 0;
    if (std::byte* mapped = remote_of(run).mapped(); mapped != nullptr) {
      step = copy_run(op.cursor, local_data(run), mapped, op.is_put, budget - moved, op.kind);
      copied += step;
    } else if (peer_memory_.usable()) {
      const auto result = peer_memory_.move(op.cursor, op.is_put, budget - moved);
      if (result.ok()) {
        step = *result;
      } else {
        op.failure = result.status();
      }
    } else if (op.is_put) {
      step = bulk_.fill_put(op, budget - moved, peer_memory_);
    } else {
      bulk_.request(op, peer_memory_);
      break;
    }
    if (step == 0) break;
    moved += step;
    op.moved += step;
  }
  if (copied != 0) copy_fence(op.kind);
  return moved;
}

// Ends a queued operation when it has ended, and tells a put at level local that its source is free.
void ShmEndpoint::after_move(Operation& op) {
  if (op.ended()) {
    const std::unique_ptr<Operation> owned = operations_.remove(op);
    if (!owned->failure.ok()) {
      if (owned->done == nullptr) operations_.failed_late(*owned);
    } else if (!owned->signal.empty() && !signals_.attach(owned->signal)) {
      shared_->engine->kick();
    }
    if (owned->done != nullptr) owned->done->complete(std::move(owned->failure));
    operations_.end_flushes();
  } else if (op.level == Complete::local && op.is_put && op.cursor.at_end() && op.failure.ok() && op.done != nullptr) {
    std::exchange(op.done, nullptr)->complete({});
  }
}

Status ShmEndpoint::flush(Completion* done) {
  if (!ready_) [[unlikely]]
    return failure_;
  operations_.flush(done);
  operations_.end_flushes();
  return {};
}

Status ShmEndpoint::cancel(Completion* done) {
  Operation* const op = operations_.find(done);
  if (op == nullptr) return Status(Code::unsupported, "the operation has been handed over already and completes by itself");
  if (op->in_flight != 0 && !bulk_.revoke(*op)) {
    return Status(Code::unsupported, "the peer is copying a chunk of the operation at this moment; it goes on");
  }
  if (op->awaiting != 0) bulk_.stop_get(*op);
  const std::unique_ptr<Operation> owned = operations_.remove(*op);
  shared_->engine->kick();
  owned->done->complete(Status(Code::cancelled, "cancelled; up to " + std::to_string(owned->moved) + " of " +
                                                    std::to_string(owned->bytes) + " bytes were written to the target"));
  operations_.end_flushes();
  return {};
}

bool ShmEndpoint::advance(std::size_t& budget) {
  bool moved_any = false;
  std::size_t idle = 0;  // operations in a row that could not go on
  for (int turn = 0; turn < turns_per_poll && budget != 0 && ready_ && idle < operations_.size(); ++turn) {
    Operation& op = operations_.next_turn();
    const bool waits = op.waits();
    const std::size_t moved = waits ? 0 : move(op, operations_.size() == 1 ? budget : std::min(budget, turn_bytes));
    const bool progress = !waits && (moved != 0 || op.awaiting != 0 || !op.failure.ok());
    budget -= moved;
    idle = progress ? 0 : idle + 1;
    moved_any = moved_any || progress;
    after_move(op);
  }
  return moved_any;
}

}  // namespace hmc::shm
