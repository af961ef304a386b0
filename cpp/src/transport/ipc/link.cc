#include "transport/ipc/link.h"

#include <sched.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace hmc::ipc {

namespace {

constexpr std::size_t max_waiting_signals = 64;

}  // namespace

Link::Link(std::shared_ptr<Shared> shared, DescriptorChannel channel, EndpointSink& sink)
    : shared_(std::move(shared)), sink_(&sink), channel_(std::move(channel)), memories_(shared_->engine), server_(shared_) {}

Result<std::shared_ptr<Link>> Link::create(std::shared_ptr<Shared> shared, const Carriers& carriers, const PeerDomain& peer,
                                           EndpointSink& sink) {
  HMC_ASSIGN(DescriptorChannel channel, DescriptorChannel::create());
  auto link = std::shared_ptr<Link>(new Link(std::move(shared), std::move(channel), sink));
  HMC_ASSIGN(link->carrier_, CarrierLink::create(carriers, peer, *link));
  link->max_ask_ = carriers.capabilities().max_signal;
  link->shared_->announcers.push_back(link.get());
  return link;
}

// extra = an end of the socket for descriptors.
Result<Blob> Link::address() {
  HMC_ASSIGN(UniqueFd end, channel_.far_end());
  Blob extra;
  extra.fds.push_back(std::move(end));
  return carrier_->address(std::move(extra));
}

Status Link::connect(const Blob& address, Completion* done) {
  HMC_ASSIGN(Blob extra, carrier_->connect(address, done));
  if (extra.fds.size() != 1) return Status(Code::protocol, "malformed address of ipc");
  channel_.connect(std::move(extra.fds.front()));
  return {};
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
    if (op.cursor.run().local->view().span.device.is_cpu()) {
      const Status asked = ask(op);
      if (asked.code() == Code::would_block) break;
      if (!asked.ok()) op.copies.refuse(asked);
      handed = true;
      continue;
    }
    const auto ends = ends_of(op.cursor.run(), op.is_put);
    const auto runtime = ends.ok() ? runtime_for(ends->local.device) : ends.status();
    if (!runtime.ok()) {
      op.copies.refuse(runtime.status());
      break;
    }
    op.runtime = *runtime;
    if (op.copies.hand(*op.runtime, op.cursor, *ends, op.is_put, op.after) == 0) break;
    handed = op.begun = true;
  }
  return handed;
}

Status Link::post(const TransferOp& transfer, Completion* done, bool is_put) {
  if (stopped_) return Status(Code::closed, "the ipc endpoint is closed");
  HMC_TRY(check_runs(transfer.runs).status());
  const ByteSpan signal = is_put ? transfer.signal : ByteSpan();
  if (!signal.empty() && waiting_.size() >= max_waiting_signals) return would_block();
  for (const Run& run : transfer.runs) {
    if (run.count == 0 || run.block == 0) continue;
    if (!run.local->view().span.device.is_cpu()) {
      HMC_TRY(ends_of(run, is_put).status());
    } else if (static_cast<ImportedRegion&>(*run.remote).number() == 0) {
      return Status(Code::invalid_argument, "no device reaches both memories");
    }
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
  shared_->engine->kick();
  return {};
}

bool Link::waits_for_peer(Op& op) const {
  if (op.copies.pending() != 0) return false;
  const bool more = !op.cursor.at_end() && op.copies.outcome().ok();
  return more ? free_asks_ == 0 : op.asks != 0;
}

bool Link::busy() const noexcept {
  return !outbox_.empty() || !waiting_.empty() || server_.busy() ||
         std::ranges::any_of(ops_, [this](const auto& op) { return !waits_for_peer(*op); });
}

void Link::finish(std::unique_ptr<Op> op, Status status) {
  if (status.ok() && !op->signal.empty()) waiting_.push_back(std::move(op->signal));
  send_waiting();
  op->done->complete(std::move(status));
}

void Link::send_waiting() {
  while (!stopped_ && !outbox_.empty() && carrier_->signal_own(outbox_.front()).ok()) outbox_.pop_front();
  while (!stopped_ && !waiting_.empty() && carrier_->signal_user(waiting_.front(), {}).ok()) waiting_.pop_front();
}

bool Link::poll() {
  bool moved = serve();
  for (auto at = ops_.begin(); at != ops_.end() && !stopped_;) {
    Op& op = **at;
    if (op.copies.pending() != 0 && op.runtime != nullptr) op.runtime->poll();
    moved = advance(op) || moved;
    // Others may have ended all copies since advance() found no room for more.
    if (op.copies.pending() != 0 || op.asks != 0 || (!op.cursor.at_end() && op.copies.outcome().ok())) {
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
  send_waiting();
  if (!stopped_) end_flushes();
  return moved;
}

Status Link::flush(Completion* done) {
  if (stopped_) return Status(Code::closed, "the ipc endpoint is closed");
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

Status Link::cancel(Completion* done) {
  const auto place = std::ranges::find_if(ops_, [done](const auto& op) { return op->done == done; });
  if (place == ops_.end() || (*place)->begun) return {Code::unsupported, "a device is copying; the operation goes on"};
  const std::unique_ptr<Op> op = std::move(*place);
  ops_.erase(place);
  op->done->complete(Status(Code::cancelled, "cancelled before anything was written"));
  if (!stopped_) end_flushes();
  return {};
}

// What a device copies now cannot be stopped, and its memory may be freed once the operation is complete. The same holds for what
// the peer's device copies: its end of the channel tells that it has seen that out. A peer that is stopped (SIGSTOP, nobody drives
// its progress) does not tell, and is not waited for longer.
std::list<std::unique_ptr<Link::Op>> Link::stop() {
  constexpr int patience_ms = 250;
  stopped_ = true;
  server_.stop();
  channel_.stop();
  memories_.clear();
  for (const auto& op : ops_) {
    while (op->copies.pending() != 0) {
      if (!op->runtime->poll()) sched_yield();
    }
  }
  if (closed_) carrier_.reset();  // by which the peer learns of it
  if (free_asks_ != max_asks) static_cast<void>(channel_.peer_stops_within(patience_ms));
  waiting_.clear();
  outbox_.clear();
  announced_.clear();
  held_.clear();
  asks_.fill(nullptr);
  free_asks_ = max_asks;
  std::erase(shared_->announcers, static_cast<Announcer*>(this));
  return std::exchange(ops_, {});
}

void Link::close() {
  if (closed_) return;
  closed_ = true;
  const auto ops = stop();
  const auto flushes = std::exchange(flushes_, {});
  const Status reason(Code::closed, "the ipc endpoint was closed");
  for (const auto& op : ops) op->done->complete(reason);
  for (const Flush& flush : flushes) flush.done->complete(reason);
}

// The copies here need no peer: what was begun ends by itself, and is reported as lost all the same, for nobody will tell of it.
void Link::on_carrier_failed(const Status& reason) {
  if (stopped_) return;
  const auto ops = stop();
  const auto flushes = std::exchange(flushes_, {});
  for (const auto& op : ops) op->done->complete(reason);
  for (const Flush& flush : flushes) flush.done->complete(reason);
  if (!closed_) sink_->on_failed(reason);
}

}  // namespace hmc::ipc
