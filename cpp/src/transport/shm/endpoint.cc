// ShmEndpoint: connecting, what arrives, and the end.
#include "transport/shm/endpoint.h"

#include <algorithm>

#include "base/log.h"
#include "base/random.h"
#include "transport/shm/address.h"

namespace hmc::shm {

Result<std::shared_ptr<ShmEndpoint>> ShmEndpoint::create(std::shared_ptr<Shared> shared, int pid, EndpointSink& sink) {
  std::shared_ptr<ShmEndpoint> endpoint(new ShmEndpoint(std::move(shared), pid, sink));
  HMC_ASSIGN(endpoint->in_, ChannelMemory::create(endpoint->shared_->sizes));
  endpoint->key_ = random_u64();
  return endpoint;
}

Result<std::unique_ptr<RemoteRegion>> ShmEndpoint::import_region(const Blob& exported) {
  HMC_ASSIGN(auto region, ShmRemoteRegion::import(exported));
  return std::unique_ptr<RemoteRegion>(std::move(region));
}

Result<Blob> ShmEndpoint::address() {
  HMC_TRY(doorbell_.open());
  Blob blob;
  AddressInfo info;
  info.key = key_;
  info.sizes = in_.sizes();
  // Without it the peer leaves this process's memory alone, whatever its own HMC_SHM_PTRACE says.
  if (shared_->ptrace_wanted) {
    info.probe_address = reinterpret_cast<std::uintptr_t>(&shared_->probe_word);
    info.probe_word = shared_->probe_word;
  }
  encode_address(info, blob.bytes);
  UniqueFd ring = in_.fd().duplicate();
  if (!ring) return errno_status("duplicating descriptors for a shm address", errno);
  HMC_ASSIGN(UniqueFd bell, doorbell_.end_for_peer());
  blob.fds.push_back(std::move(ring));
  blob.fds.push_back(std::move(bell));
  return blob;
}

Status ShmEndpoint::connect(const Blob& peer_address, Completion* done) {
  if (closed_) return Status(Code::closed, "the shm endpoint is closed");
  if (ready_) return Status(Code::invalid_argument, "the shm endpoint is connected already");
  HMC_ASSIGN(const AddressInfo info, decode_address(peer_address.bytes));
  if (peer_address.fds.size() != 2) return Status(Code::protocol, "shm address without its two descriptors");
  HMC_ASSIGN(out_, ChannelMemory::attach(peer_address.fds[0], info.sizes));
  HMC_TRY(doorbell_.connect(*shared_->engine, peer_address.fds[1], out_.control().armed));
  if (shared_->ptrace_wanted && info.probe_address != 0) {
    auto probed = PeerMemory::probe(pid_, info.probe_address, info.probe_word);
    const bool gone = probed.status().code() == Code::peer_lost;  // the control connection tells; it says nothing of other peers
    if (!gone) shared_->ptrace_refused = !probed.ok();
    if (probed.ok()) {
      peer_memory_ = std::move(*probed);
    } else if (!gone) {
      warn_once("shm.ptrace", "memory not allocated by HMC goes through a shared ring: " + probed.status().str());
    }
  }
  in_.drop_fd();
  signals_.connect(in_, key_, out_, info.key, doorbell_);
  bulk_.connect(in_, out_, doorbell_);
  ready_ = true;
  failure_ = {};
  shared_->engine->kick();  // the peer may have sent before we connected, and nobody rang
  done->complete({});
  return {};
}

Status ShmEndpoint::signal(ByteSpan head, ByteSpan body) {
  if (!ready_) [[unlikely]]
    return failure_;
  return signals_.post(head, body);
}

// At most what the ring holds: a process that has only said that it ended may go on writing.
void ShmEndpoint::receive_rest() {
  std::size_t budget = in_.sizes().signal_bytes;
  if (const Status sound = ready_ ? signals_.deliver(*sink_, *shared_, budget, true) : Status(); !sound.ok()) fail(sound);
}

bool ShmEndpoint::drain_bulk(std::size_t& budget) {
  bool moved = false;
  while (ready_ && budget != 0) {
    SlotInfo info;
    bool skipped = false;
    const auto next = bulk_.take(info, skipped);
    moved = moved || skipped;
    if (next == BulkConsumer::Next::none) break;
    Status broken;
    Code outcome = Code::ok;
    // A get may have been cancelled meanwhile, or be the peer's invention.
    Operation* const get = info.kind == SlotKind::get_data ? operations_.find(info.token) : nullptr;
    if (next == BulkConsumer::Next::broken) {
      broken = Status(Code::protocol, "the peer wrote a malformed chunk into the bulk ring");
    } else if (get == nullptr || get->awaiting == 0) {
      broken = bulk_.land(info, outcome);
    } else {
      broken = bulk_.land_data(info, *get);
      if (broken.ok() && get->awaiting == 0) after_move(*get);
    }
    if (!broken.ok()) {
      fail(broken);
      return true;
    }
    if (!ready_) return true;  // a completion destroyed the endpoint
    bulk_.finish(outcome);
    moved = true;
    budget -= std::min<std::size_t>(budget, info.bytes);
  }
  return moved;
}

bool ShmEndpoint::poll(std::size_t& budget) {
  if (!ready_) return false;
  bool moved = false;
  if (signals_.ready()) {
    moved = true;
    if (const Status sound = signals_.deliver(*sink_, *shared_, budget, false); !sound.ok()) fail(sound);
  }
  if (ready_ && bulk_.ready()) moved = drain_bulk(budget) || moved;
  if (!ready_ || !busy()) return moved;
  std::uint64_t number = 0;
  Code outcome = Code::ok;
  BulkTransfers::Acknowledged slot{};
  while (ready_ && (slot = bulk_.take_ack(number, outcome)) == BulkTransfers::Acknowledged::slot) {
    moved = true;
    Operation* const op = operations_.find(number);
    if (op == nullptr) continue;
    --op->in_flight;
    if (outcome != Code::ok && op->failure.ok()) {
      op->failure = Status(outcome, outcome == Code::stale ? "the peer closed the region" : "the peer refused a chunk of the put");
    }
    after_move(*op);
  }
  if (slot == BulkTransfers::Acknowledged::broken)
    fail(Status(Code::protocol, "the peer acknowledged chunks that were never sent"));
  if (ready_) moved = signals_.send_waiting() || moved;
  if (ready_) moved = bulk_.send_stops() || moved;
  serve_first_ = !serve_first_;  // replies and own operations share the slots
  for (int turn = 0; turn < 2 && ready_; ++turn) {
    moved = ((turn == 0) == serve_first_ ? bulk_.serve(budget) : advance(budget)) || moved;
  }
  return moved;
}

bool ShmEndpoint::arm() {
  if (!ready_) return true;
  in_.control().armed.exchange(1, std::memory_order_seq_cst);
  if (signals_.ready(std::memory_order_seq_cst) || bulk_.can_work() || signals_.can_send()) return false;
  return !operations_.any(
      [this](const Operation& op) { return !op.waits() && (!goes_through_ring(op.cursor, peer_memory_) || bulk_.can_move(op)); });
}

void ShmEndpoint::disarm() noexcept {
  if (ready_) in_.control().armed.exchange(0, std::memory_order_seq_cst);
}

void ShmEndpoint::fail(const Status& reason) {
  if (failure_.ok() || failure_.code() == Code::invalid_argument) failure_ = reason;  // it was connected, or never
  ready_ = false;
  // Now, not with the last reference: a failed endpoint may live as long as its Context, and descriptors are few.
  doorbell_.close(*shared_->engine);
  in_.drop_fd();
  peer_memory_ = {};
  signals_.clear();
  bulk_.clear();
  operations_.end_all(reason);
  if (!closed_) sink_->on_failed(reason);
}

void ShmEndpoint::close() {
  if (closed_) return;
  closed_ = true;
  fail(Status(Code::closed, "the shm endpoint was closed"));
}

}  // namespace hmc::shm
