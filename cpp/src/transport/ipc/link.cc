#include "transport/ipc/link.h"

#include <sched.h>

#include <limits>
#include <utility>

namespace hmc::ipc {

namespace {

constexpr std::size_t max_waiting_signals = 64;

}  // namespace

Result<std::shared_ptr<Link>> Link::create(const Carriers& carriers, const PeerDomain& peer, std::shared_ptr<Engine> engine,
                                           EndpointSink& sink) {
  auto link = std::shared_ptr<Link>(new Link(std::move(engine), sink));
  HMC_ASSIGN(link->carrier_, CarrierLink::create(carriers, peer, *link));
  return link;
}

Result<DeviceCopies::Ends> Link::ends_of(const Run& run, bool is_put) {
  const DeviceSpan& here = run.local->view().span;
  HMC_ASSIGN(const DeviceSpan there, static_cast<ImportedRegion&>(*run.remote).on(here.device, is_put));
  return DeviceCopies::Ends{here, there};
}

// Hands over what there is room for; true if anything was.
bool Link::advance(Op& op) {
  bool handed = false;
  while (!op.cursor.at_end() && op.copies.outcome().ok()) {
    const auto ends = ends_of(op.cursor.run(), op.is_put);
    const auto runtime = ends.ok() ? runtime_for(ends->local.device) : ends.status();
    if (!runtime.ok()) {
      op.copies.refuse(runtime.status());
      break;
    }
    op.runtime = *runtime;
    if (op.copies.hand(*op.runtime, op.cursor, *ends, op.is_put, op.after) == 0) break;
    handed = true;
  }
  return handed;
}

Status Link::post(const TransferOp& transfer, Completion* done, bool is_put) {
  if (closed_) return Status(Code::closed, "the ipc endpoint is closed");
  HMC_TRY(check_runs(transfer.runs).status());
  const ByteSpan signal = is_put ? transfer.signal : ByteSpan();
  if (!signal.empty() && waiting_.size() >= max_waiting_signals) return would_block();
  for (const Run& run : transfer.runs) {
    if (run.count != 0 && run.block != 0) HMC_TRY(ends_of(run, is_put).status());
  }
  auto op = std::make_unique<Op>();
  op->cursor = RunCursor(transfer.runs);
  op->after = transfer.after;
  op->done = done;
  op->number = ++last_number_;
  op->is_put = is_put;
  op->signal.assign(signal.begin(), signal.end());
  advance(*op);
  ops_.push_back(std::move(op));
  engine_->kick();
  return {};
}

void Link::finish(std::unique_ptr<Op> op, Status status) {
  if (status.ok() && !op->signal.empty()) waiting_.push_back(std::move(op->signal));
  send_waiting();
  op->done->complete(std::move(status));
}

void Link::send_waiting() {
  while (!closed_ && !waiting_.empty() && carrier_->signal_user(waiting_.front(), {}).ok()) waiting_.pop_front();
}

bool Link::poll() {
  bool moved = false;
  for (auto at = ops_.begin(); at != ops_.end() && !closed_;) {
    Op& op = **at;
    if (op.copies.pending() != 0) op.runtime->poll();
    moved = advance(op) || moved;
    // Others may have ended all copies since advance() found no room for more.
    if (op.copies.pending() != 0 || (!op.cursor.at_end() && op.copies.outcome().ok())) {
      ++at;
      continue;
    }
    auto ended = std::move(*at);
    ops_.erase(at);
    Status outcome = ended->copies.outcome();
    finish(std::move(ended), std::move(outcome));
    moved = true;
    at = ops_.begin();  // completing may have posted, or closed the endpoint
  }
  if (!waiting_.empty()) send_waiting();
  if (!closed_) end_flushes();
  return moved;
}

Status Link::flush(Completion* done) {
  if (closed_) return Status(Code::closed, "the ipc endpoint is closed");
  flushes_.push_back({last_number_ + 1, done});
  end_flushes();
  return {};
}

void Link::end_flushes() {
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

// What a device copies now cannot be stopped, and its memory may be freed once the operation is complete.
void Link::see_out(Op& op) {
  while (op.copies.pending() != 0) {
    if (!op.runtime->poll()) sched_yield();
  }
}

void Link::close() {
  if (closed_) return;
  closed_ = true;
  const auto ops = std::exchange(ops_, {});
  const auto flushes = std::exchange(flushes_, {});
  waiting_.clear();
  const Status reason(Code::closed, "the ipc endpoint was closed");
  for (const auto& op : ops) {
    see_out(*op);
    op->done->complete(reason);
  }
  for (const Flush& flush : flushes) flush.done->complete(reason);
  carrier_.reset();
}

void Link::on_own_signal(ByteSpan) { on_carrier_failed(Status(Code::protocol, "the peer sent a signal that ipc does not know")); }

// The copies need no peer: what was begun ends by itself, and is reported as lost all the same, for nobody will tell of it.
void Link::on_carrier_failed(const Status& reason) {
  if (closed_) return;
  const auto ops = std::exchange(ops_, {});
  const auto flushes = std::exchange(flushes_, {});
  for (const auto& op : ops) {
    see_out(*op);
    op->done->complete(reason);
  }
  for (const Flush& flush : flushes) flush.done->complete(reason);
  if (!closed_) sink_->on_failed(reason);
}

}  // namespace hmc::ipc
