#include "transport/local/loop.h"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

namespace hmc::local {

namespace {

constexpr std::size_t inline_bytes = 1 << 20;  // copied in the posting call
constexpr std::size_t turn_bytes = 256 << 10;  // of one operation before the next has its turn
constexpr int turns_per_poll = 64;
constexpr int signals_per_poll = 64;
constexpr std::size_t max_waiting_signals = 64;

const ImportedRegion& remote_of(const Run& run) noexcept { return static_cast<const ImportedRegion&>(*run.remote); }
std::byte* data_of(const RegionView& view) noexcept { return static_cast<std::byte*>(view.span.data); }
bool owned(const RegionView& view) noexcept { return view.block != nullptr && view.block->owned(); }

// Can the blocks be copied as they lie? A put onto itself is, a shifted one is not.
Status check_run(const Run& run, const RegionView& remote, bool is_put) {
  if (is_put && remote.access != Access::read_write) {
    return Status(Code::invalid_argument, "put into a region that its owner exported for reading only");
  }
  const RegionView& local = run.local->view();
  if (local.span.device != remote.span.device) {
    if (local.span.device.is_cpu() || remote.span.device.is_cpu()) return {};
    return DeviceCopies::runtime_between(local.span.device, remote.span.device).status();
  }
  const auto local_base = reinterpret_cast<std::uintptr_t>(local.span.data);
  const auto remote_base = reinterpret_cast<std::uintptr_t>(remote.span.data);
  if (local_base + local.span.bytes <= remote_base || remote_base + remote.span.bytes <= local_base) return {};
  for (std::size_t i = 0; i < run.count; ++i) {
    const std::uintptr_t a = local_base + run.local_offsets[i];
    const std::uintptr_t b = remote_base + run.remote_offsets[i];
    if (a != b && (a < b ? b - a : a - b) < run.block) {
      return Status(Code::invalid_argument, "source and target of block " + std::to_string(i) + " overlap");
    }
  }
  return {};
}

}  // namespace

Status Loop::connect() {
  if (closed_) return Status(Code::closed, "the local endpoint is closed");
  ready_ = true;
  return {};
}

Status Loop::not_ready() const {
  if (closed_) return Status(Code::closed, "the local endpoint is closed");
  return Status(Code::invalid_argument, "the local endpoint is not connected yet");
}

Status Loop::signal(ByteSpan head, ByteSpan body) {
  if (!ready_) return not_ready();
  if (head.size() + body.size() > max_signal) {
    return Status(Code::invalid_argument,
                  "a signal of " + std::to_string(head.size() + body.size()) + " bytes; at most " + std::to_string(max_signal));
  }
  if (!waiting_signals_.empty() || !ring_.push(head, body)) return Status(Code::would_block, "the local signal queue is full");
  shared_->engine->kick();
  return {};
}

void Loop::send_attached(ByteSpan signal) {
  if (!waiting_signals_.empty() || !ring_.push(signal, {})) waiting_signals_.emplace_back(signal.begin(), signal.end());
  shared_->engine->kick();
}

Status Loop::post(const TransferOp& transfer, Completion* done, bool is_put) {
  if (!ready_) return not_ready();
  HMC_ASSIGN(const std::size_t bytes, check_runs(transfer.runs));
  for (const Run& run : transfer.runs) {
    if (run.count == 0 || run.block == 0) continue;
    const RegionView* remote = remote_of(run).find(*shared_);
    if (remote == nullptr) return Status(Code::stale, "the target region was deregistered");
    HMC_TRY(check_run(run, *remote, is_put));
  }
  const ByteSpan signal = is_put ? transfer.signal : ByteSpan();
  if (signal.size() > max_signal) {
    return Status(Code::invalid_argument,
                  "an attached signal of " + std::to_string(signal.size()) + " bytes; at most " + std::to_string(max_signal));
  }
  if (!signal.empty() && waiting_signals_.size() >= max_waiting_signals) {
    return Status(Code::would_block, "too many attached signals wait for room in the local queue");
  }
  auto op = std::make_unique<Op>();
  op->cursor = RunCursor(transfer.runs);
  op->done = done;
  op->number = ++last_number_;
  op->bytes = bytes;
  op->kind = copy_kind_for(bytes);
  op->is_put = is_put;
  op->after = transfer.after;
  move(*op, inline_bytes);
  if (ended(*op)) {
    if (op->failure.ok() && !signal.empty()) send_attached(signal);
    done->complete(std::move(op->failure));
    return {};
  }
  op->signal.assign(signal.begin(), signal.end());
  ops_.push_back(std::move(op));
  shared_->engine->kick();
  return {};
}

std::size_t Loop::move(Op& op, std::size_t budget) {
  std::size_t moved = 0;
  while (moved < budget && !op.cursor.at_end() && op.failure.ok()) {
    const Run& run = op.cursor.run();
    const RegionView* remote = remote_of(run).find(*shared_);
    if (remote == nullptr) {
      op.failure = Status(Code::stale, "the target region was deregistered");
      break;
    }
    const RegionView& local = run.local->view();
    const bool host = local.span.device.is_cpu() && remote->span.device.is_cpu();
    const std::size_t step =
        host ? copy_run(op.cursor, data_of(local), data_of(*remote), op.is_put, budget - moved, op.kind) : move_device(op, *remote);
    if (step == 0) break;
    moved += step;
    op.moved += step;
  }
  if (moved != 0) copy_fence(op.kind);
  return moved;
}

// Hands the next blocks to the runtime. 0: enough is under way, or none of it can be.
std::size_t Loop::move_device(Op& op, const RegionView& remote) {
  if (!op.copies) op.copies = std::make_unique<DeviceCopies>();
  const RegionView& local = op.cursor.run().local->view();
  auto runtime = DeviceCopies::runtime_between(local.span.device, remote.span.device);
  if (!runtime.ok()) {
    op.failure = runtime.status();
    return 0;
  }
  op.runtime = *runtime;
  // One device reaches all of another's memory only where that was allocated as a whole: a framework's virtual memory, or its
  // pools, may be shut to it, and a kernel would fault where a copy does not.
  const bool apart = !local.span.device.is_cpu() && !remote.span.device.is_cpu() && local.span.device != remote.span.device &&
                     !(owned(local) && owned(remote));
  return op.copies->hand(*op.runtime, op.cursor, {local.span, remote.span, apart}, op.is_put, op.after);
}

// Also takes over what went wrong in the runtime.
bool Loop::ended(Op& op) {
  if (op.copies) {
    if (op.failure.ok()) op.failure = op.copies->outcome();
    if (op.copies->pending() != 0) return false;
    if (op.failure.ok()) op.failure = op.copies->outcome();
  }
  return op.cursor.at_end() || !op.failure.ok();
}

bool Loop::deliver(std::size_t& budget) {
  bool moved = false;
  for (int i = 0; i < signals_per_poll && budget != 0 && ready_ && !ring_.empty(); ++i) {
    const ByteSpan signal = ring_.front();
    budget -= std::min(budget, signal.size());
    sink_->on_signal(signal);
    ring_.pop();  // only now: the sink may send, and must not overwrite what it reads
    moved = true;
  }
  while (ready_ && !waiting_signals_.empty() && ring_.push(waiting_signals_.front(), {})) {
    waiting_signals_.pop_front();
    moved = true;
  }
  return moved;
}

bool Loop::advance(std::size_t& budget) {
  bool moved_any = false;
  std::size_t idle = 0;  // operations in a row that could not go on
  for (int turn = 0; turn < turns_per_poll && budget != 0 && ready_ && idle < ops_.size(); ++turn) {
    std::unique_ptr<Op> op = std::move(ops_.front());
    ops_.pop_front();
    if (op->runtime != nullptr) op->runtime->poll();
    const std::size_t moved = move(*op, std::min(budget, turn_bytes));
    budget -= std::min(budget, moved);
    if (!ended(*op)) {
      idle = moved != 0 ? 0 : idle + 1;
      moved_any = moved_any || moved != 0;
      ops_.push_back(std::move(op));
      continue;
    }
    moved_any = true;
    idle = 0;
    if (op->failure.ok() && !op->signal.empty()) send_attached(op->signal);
    op->done->complete(std::move(op->failure));
    end_flushes();
  }
  return moved_any;
}

bool Loop::poll(std::size_t& budget) {
  bool moved = advance(budget);
  if (ready_ && !flushes_.empty()) end_flushes();
  if (ready_) moved = deliver(budget) || moved;
  return moved;
}

Status Loop::flush(Completion* done) {
  if (!ready_) return not_ready();
  flushes_.push_back({last_number_ + 1, done});
  end_flushes();
  return {};
}

void Loop::end_flushes() {
  if (flushes_.empty()) return;
  std::uint64_t oldest_put = std::numeric_limits<std::uint64_t>::max();
  for (const auto& op : ops_) {
    if (op->is_put) oldest_put = std::min(oldest_put, op->number);
  }
  while (!flushes_.empty() && flushes_.front().before <= oldest_put) {
    Completion* done = flushes_.front().done;
    flushes_.pop_front();
    done->complete({});
  }
}

Status Loop::cancel(Completion* done) {
  const auto place = std::ranges::find_if(ops_, [done](const auto& op) { return op->done == done; });
  if (place == ops_.end()) return Status(Code::unsupported, "the operation is complete or completes by itself");
  if ((*place)->copies && (*place)->copies->pending() != 0) {
    return Status(Code::unsupported, "a device is copying part of the operation; it goes on");
  }
  const std::unique_ptr<Op> op = std::move(*place);
  ops_.erase(place);
  op->done->complete(Status(Code::cancelled, "cancelled; " + std::to_string(op->moved) + " of " + std::to_string(op->bytes) +
                                                 " bytes were written to the target"));
  end_flushes();
  return {};
}

void Loop::close() {
  if (closed_) return;
  closed_ = true;
  ready_ = false;
  const auto ops = std::exchange(ops_, {});
  const auto flushes = std::exchange(flushes_, {});
  waiting_signals_.clear();
  const Status reason(Code::closed, "the local endpoint was closed");
  for (const auto& op : ops) {
    // What a device copies now cannot be stopped, and its memory may be freed once the operation is complete: see it out.
    while (op->copies && op->copies->pending() != 0) {
      if (!op->runtime->poll()) sched_yield();
    }
    op->done->complete(reason);
  }
  for (const Flush& flush : flushes) flush.done->complete(reason);
}

}  // namespace hmc::local
