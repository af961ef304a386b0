#include "transport/ipc/endpoint.h"

#include <sched.h>

#include <algorithm>
#include <utility>

namespace hmc::ipc {

IpcEndpoint::IpcEndpoint(const std::shared_ptr<Shared>& shared, std::size_t max_signal, DescriptorChannel channel,
                         EndpointSink& sink)
    : CarriedEndpoint({"ipc", max_signal, kit::operation_type<Op>()}, shared->engine, sink),
      shared_(shared),
      max_ask_(max_signal),
      channel_(std::move(channel)),
      memories_(shared->engine),
      server_(shared) {}

Result<std::shared_ptr<IpcEndpoint>> IpcEndpoint::create(const std::shared_ptr<Shared>& shared, const Carriers& carriers,
                                                         const PeerDomain& peer, EndpointSink& sink) {
  HMC_ASSIGN(DescriptorChannel channel, DescriptorChannel::create());
  const std::size_t max_signal = carriers.capabilities().max_signal;
  auto endpoint = std::shared_ptr<IpcEndpoint>(new IpcEndpoint(shared, max_signal, std::move(channel), sink));
  HMC_TRY(endpoint->create_carrier(carriers, peer));
  shared->announcers.push_back(endpoint.get());
  return endpoint;
}

// An end of the socket for descriptors.
Result<Blob> IpcEndpoint::own_address() {
  HMC_ASSIGN(UniqueFd end, channel_.far_end());
  Blob own;
  own.fds.push_back(std::move(end));
  return own;
}

Status IpcEndpoint::accept(Blob peer_address) {
  if (peer_address.fds.size() != 1) return Status(Code::protocol, "malformed address of ipc");
  channel_.connect(std::move(peer_address.fds.front()));
  return {};
}

Result<DeviceCopies::Ends> IpcEndpoint::ends_of(const Run& run, bool is_put) {
  const DeviceSpan& here = run.local->view().span;
  HMC_ASSIGN(const DeviceSpan there, static_cast<ImportedRegion&>(*run.remote).on(here.device, is_put));
  return DeviceCopies::Ends{here, there};
}

Status IpcEndpoint::check(const Run& run, bool is_put) const {
  if (!run.local->view().span.device.is_cpu()) return ends_of(run, is_put).status();
  if (static_cast<ImportedRegion&>(*run.remote).number() != 0) return {};
  return Status(Code::invalid_argument, "no device reaches both memories");
}

Status IpcEndpoint::start(kit::Operation& operation) {
  advance(static_cast<Op&>(operation));
  engine_->kick();
  return {};
}

// Hands over what there is room for; true if anything was.
bool IpcEndpoint::advance(Op& op) {
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
    const std::size_t bytes = op.copies.hand(*op.runtime, op.cursor, *ends, op.is_put, op.after);
    if (bytes == 0) break;
    op.moved += bytes;
    handed = op.started = true;
  }
  return handed;
}

// Also takes over what went wrong in the runtime or at the peer.
bool IpcEndpoint::over(Op& op) {
  if (op.copies.pending() != 0) return false;
  op.failure = op.copies.outcome();
  return op.ended();
}

bool IpcEndpoint::has_more(Op& op) { return !op.cursor.at_end() && op.copies.outcome().ok(); }

bool IpcEndpoint::waits_for_peer(const kit::Operation& operation) const {
  auto& op = const_cast<Op&>(static_cast<const Op&>(operation));
  if (op.copies.pending() != 0) return false;
  return has_more(op) ? free_asks_ == 0 : op.in_flight != 0;
}

bool IpcEndpoint::busy() const noexcept {
  return !answers_.empty() || !outbox_.empty() || !waiting_.empty() || server_.busy() ||
         std::ranges::any_of(operations_.all(), [this](const auto& entry) { return !waits_for_peer(*entry.second); });
}

bool IpcEndpoint::arm() const noexcept {
  const bool queued = !answers_.empty() || !outbox_.empty();
  if (stopped()) return true;
  if (server_.busy() || (queued && !outbox_refused_)) return false;
  return std::ranges::all_of(operations_.all(), [&](const auto& entry) {
    auto& op = static_cast<Op&>(*entry.second);
    return waits_for_peer(op) || (has_more(op) && op.copies.pending() == 0 && (queued || op.refused));
  });
}

void IpcEndpoint::send_outbox() {
  while (!stopped() && !answers_.empty() && carrier().signal_own(encode(answers_.front())).ok()) answers_.pop_front();
  while (!stopped() && !outbox_.empty() && carrier().signal_own(outbox_.front()).ok()) outbox_.pop_front();
  outbox_refused_ = !answers_.empty() || !outbox_.empty();
}

bool IpcEndpoint::poll() {
  bool moved = serve();
  std::uint64_t last = 0;
  for (std::size_t left = operations_.size(); left != 0 && ready() && !operations_.empty(); --left) {
    auto& op = static_cast<Op&>(operations_.next(last));
    last = op.number;
    if (op.copies.pending() != 0 && op.runtime != nullptr) op.runtime->poll();
    moved = advance(op) || moved;
    if (!over(op)) continue;
    finish(op);
    moved = true;
  }
  send_outbox();
  return send_waiting() || moved;
}

// What a device copies now cannot be stopped, and its memory may be freed once the operation is complete. The same holds for what
// the peer's device copies: its end of the channel tells that it has seen that out. A peer that is stopped (SIGSTOP, nobody drives
// its progress) does not tell, and is not waited for longer.
void IpcEndpoint::stop() {
  constexpr int patience_ms = 250;
  server_.stop();
  channel_.stop();
  memories_.clear();
  for (const auto& [number, operation] : operations_.all()) {
    auto& op = static_cast<Op&>(*operation);
    while (op.copies.pending() != 0) {
      if (!op.runtime->poll()) sched_yield();
    }
  }
  if (closed()) close_carrier();
  if (free_asks_ != max_asks && !channel_.peer_stops_within(patience_ms)) {
    for (const auto& [number, operation] : operations_.all()) operation->unconfirmed = operation->in_flight != 0;
  }
  answers_.clear();
  outbox_.clear();
  announced_.clear();
  held_.clear();
  asks_.fill(nullptr);
  free_asks_ = max_asks;
  std::erase(shared_->announcers, static_cast<Announcer*>(this));
}

}  // namespace hmc::ipc
