// Link: what goes out.
#include <algorithm>
#include <cstring>
#include <string>

#include "transport/verbs/link.h"

namespace hmc::verbs {
namespace {

const VerbsRemoteRegion& remote_of(const Run& run) noexcept { return static_cast<const VerbsRemoteRegion&>(*run.remote); }
const VerbsLocalRegion& local_of(const Run& run) noexcept { return static_cast<const VerbsLocalRegion&>(*run.local); }

Status too_large(std::size_t bytes) {
  return Status(Code::invalid_argument, "a signal of " + std::to_string(bytes) + " bytes; at most " + std::to_string(max_signal));
}

}  // namespace

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
    if (signal.size() > max_signal) return too_large(signal.size());
    if (!signal.empty() && waiting_signals_.size() >= max_waiting_signals) {
      return Status(Code::would_block, "too many attached signals wait for credit of the peer");
    }
  }
  auto op = std::make_unique<Op>();
  op->cursor = RunCursor(transfer.runs);
  op->done = done;
  op->number = ++last_number_;
  op->bytes = bytes;
  op->is_put = is_put;
  if (op->cursor.at_end()) {
    if (!signal.empty()) waiting_signals_.push_back({0, Bytes(signal.begin(), signal.end())});
    advance();
    if (!ready_) return failure_;
    done->complete({});
    return {};
  }
  op->signal.assign(signal.begin(), signal.end());
  turns_.push_back(op->number);
  ops_.emplace(op->number, std::move(op));
  advance();
  return {};
}

bool Link::room_for_signal() const noexcept {
  return signals_sent_ - signals_taken_ < credits && free_slots_.size() > spare_slots && posted() < depth;
}

Status Link::signal(ByteSpan head, ByteSpan body) {
  if (!ready_) [[unlikely]]
    return not_ready();
  if (head.size() + body.size() > max_signal) [[unlikely]]
    return too_large(head.size() + body.size());
  if (broken_ || !again_.empty() || !waiting_signals_.empty() || !room_for_signal()) {
    static const Status full(Code::would_block, "no credit of the peer for another signal");
    return full;
  }
  Batch batch;
  add_message(batch, MessageKind::signal, 0, head, body);
  submit(batch);
  return ready_ ? Status() : failure_;
}

void Link::advance() {
  if (advancing_) return;
  const auto keep = shared_from_this();
  advancing_ = true;
  while (ready_ && !broken_) {
    Batch batch;
    fill(batch);
    if (batch.count == 0 || !submit(batch)) break;
  }
  advancing_ = false;
}

void Link::fill(Batch& batch) {
  while (!again_.empty() && !batch.full()) {
    if (again_.front().kind != Record::Kind::message && data_posted_ >= data_depth) return;
    add(batch, again_.front());
    again_.pop_front();
  }
  if (!again_.empty()) return;
  while (!waiting_signals_.empty() && !batch.full() && room_for_signal()) {
    add_message(batch, MessageKind::signal, waiting_signals_.front().op, waiting_signals_.front().bytes, {});
    waiting_signals_.pop_front();
  }
  // A signal tells it on the way; without one it takes a message of its own, before the peer has run out.
  if ((probe_ || consumed_ - consumed_told_ >= credits / 2) && !free_slots_.empty() && posted() < depth && !batch.full()) {
    add_message(batch, MessageKind::credit, 0, {}, {});
    probe_ = false;
  }
  fill_data(batch);
}

void Link::fill_data(Batch& batch) {
  while (!turns_.empty() && !batch.full() && room_for_data()) {
    const std::uint64_t number = turns_.front();
    turns_.pop_front();
    Op& op = *ops_.at(number);
    op.begun = true;
    std::size_t budget = chunk_bytes;
    while (!op.cursor.at_end() && budget != 0 && !batch.full() && room_for_data()) {
      Record one;
      one.kind = op.is_put ? Record::Kind::write : Record::Kind::read;
      one.op = number;
      one.piece = op.cursor.peek(std::min(budget, nic_.max_message()));
      one.bytes = one.piece.bytes;
      add(batch, one);
      op.cursor.advance(one.bytes);
      ++op.under_way;
      budget -= one.bytes;
    }
    if (!op.cursor.at_end()) {
      // Behind the others whose turn it is, not behind those that have not begun.
      turns_.insert(turns_.begin() + static_cast<std::ptrdiff_t>(std::min(turns_.size(), max_begun - 1)), number);
    } else if (!op.signal.empty()) {
      if (waiting_signals_.empty() && room_for_signal() && !batch.full()) {
        add_message(batch, MessageKind::signal, number, op.signal, {});
      } else {
        waiting_signals_.push_back({number, std::move(op.signal)});
      }
    }
  }
}

void Link::add_message(Batch& batch, MessageKind kind, std::uint64_t op, ByteSpan head, ByteSpan body) {
  Record one;
  one.op = op;
  one.slot = free_slots_.back();
  free_slots_.pop_back();
  one.bytes = head_bytes + head.size() + body.size();
  one.credited = kind == MessageKind::signal;
  std::byte* out = send_slot(one.slot);
  encode_head(out, {kind, consumed_});
  if (!head.empty()) std::memcpy(out + head_bytes, head.data(), head.size());
  if (!body.empty()) std::memcpy(out + head_bytes + head.size(), body.data(), body.size());
  consumed_told_ = consumed_;
  if (one.credited) ++signals_sent_;
  add(batch, one);
}

void Link::add(Batch& batch, const Record& one) {
  ibv_send_wr& work = batch.work[batch.count];
  ibv_sge& part = batch.parts[batch.count];
  ++batch.count;
  work = {};
  work.wr_id = std::uint64_t{number_} << 32 | next_;
  work.sg_list = &part;
  work.num_sge = 1;
  part.length = static_cast<std::uint32_t>(one.bytes);
  if (one.kind == Record::Kind::message) {
    part.addr = reinterpret_cast<std::uintptr_t>(send_slot(one.slot));
    part.lkey = memory_handle_->lkey;
    work.opcode = IBV_WR_SEND;
  } else {
    const Run& run = *one.piece.run;
    part.addr = reinterpret_cast<std::uintptr_t>(local_of(run).data() + one.piece.local_offset);
    part.lkey = local_of(run).local_key(nic_);
    work.opcode = one.kind == Record::Kind::write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
    work.wr.rdma.remote_addr = remote_of(run).address() + one.piece.remote_offset;
    work.wr.rdma.rkey = remote_of(run).key();
    ++data_posted_;
    bytes_posted_ += one.bytes;
  }
  if (one.kind != Record::Kind::read && one.bytes <= outbound_->inline_bytes()) work.send_flags = IBV_SEND_INLINE;
  record(next_) = one;
  next_ = (next_ + 1) & sequence_mask;
}

// False: the link has failed.
bool Link::submit(Batch& batch) {
  for (unsigned i = 0; i + 1 < batch.count; ++i) batch.work[i].next = &batch.work[i + 1];
  batch.work[batch.count - 1].send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(outbound_->handle(), batch.work.data(), &refused);
  if (error == 0) return true;
  fail(Status(Code::transport, nic_.name() + " refused a work request", error));
  return false;
}

}  // namespace hmc::verbs
