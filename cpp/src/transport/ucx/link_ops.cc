// Link: puts, gets, signals, flushes.
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "transport/ucx/link.h"

namespace hmc::ucx {

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
    if (signal.size() > max_body) {
      return Status(Code::invalid_argument,
                    "a signal of " + std::to_string(signal.size()) + " bytes; at most " + std::to_string(max_body));
    }
    if (!signal.empty() && waiting_signals_.size() >= max_waiting_signals) {
      return Status(Code::would_block, "too many attached signals wait for room");
    }
  }
  auto op = std::make_unique<Op>();
  op->cursor = RunCursor(transfer.runs);
  op->done = done;
  op->number = ++last_number_;
  op->bytes = bytes;
  op->level = transfer.level;
  op->is_put = is_put;
  op->signal.assign(signal.begin(), signal.end());
  const bool empty = op->cursor.at_end();
  HMC_TRY(look_at(*op, transfer.runs));
  if (transfer.after != nullptr) {
    HMC_ASSIGN(const bool reached, transfer.after->reached());
    if (!reached) op->after = transfer.after;
  }
  if (op->on_device) ++device_ops_;
  if (!empty) (op->after != nullptr ? held_.push_back(op->number) : turns_.push_back(op->number));
  const auto place = ops_.emplace(op->number, std::move(op)).first;
  if (empty) {
    finish(place);
    return {};
  }
  advance();
  if (due()) worker_->context().engine().kick();
  return {};
}

bool Link::advance() {
  if (advancing_) return false;  // posted by a completion: the call that it is within goes on
  const auto keep = shared_from_this();
  advancing_ = true;
  bool moved = send_waiting();
  if (ready_) moved = send_answers() || moved;
  if (ready_) moved = hand_over(post_bytes) || moved;
  while (ready_ && flush_due() && flush_puts()) moved = true;
  advancing_ = false;
  return moved;
}

// Operations take turns, so that a large one does not hold back those behind it.
bool Link::hand_over(std::size_t budget) {
  bool moved = false;
  while (ready_ && budget != 0 && !turns_.empty() && room_for_data()) {
    const std::uint64_t number = turns_.front();
    turns_.pop_front();
    Op& op = *ops_.at(number);
    op.begun = true;
    std::size_t turn = std::min(budget, chunk_bytes);
    while (!op.cursor.at_end() && turn != 0 && room_for_data()) {
      const MemoryKind kind = local_of(op.cursor.run()).kind();
      const bool in_messages = op.is_put && !direct(kind);
      const std::size_t most = kind != MemoryKind::host ? device_chunk_bytes : in_messages ? std::min(turn, piece_) : turn;
      const RunPiece piece = op.cursor.peek(most);
      op.cursor.advance(piece.bytes);
      moved = true;
      if (!move(op, piece, op.cursor.at_end())) return true;  // the link has failed, and the operation with it
      turn -= std::min(turn, piece.bytes);
      budget -= std::min(budget, piece.bytes);
    }
    if (op.cursor.at_end()) {
      handed_over(op);
    } else {
      turns_.push_back(number);
    }
  }
  return moved;
}

bool Link::move(Op& op, const RunPiece& piece, bool last) {
  if (direct(local_of(*piece.run).kind())) return move_direct(op, piece);
  if (!op.is_put) return ask(op, piece);
  Request& one = request(Request::Kind::data);
  one.op = op.number;
  one.bytes = piece.bytes;
  data_bytes_ += piece.bytes;
  MessageHead head;
  head.kind = last && op.signal.empty() && !op.direct ? MessageKind::put_last : MessageKind::put;
  head.op = op.number;
  head.region = op.last_region = remote_of(*piece.run).id();
  head.offset = piece.remote_offset;
  ++op.under_way;
  bool over_now = false;
  if (!post_message(one, head, local_of(*piece.run).data() + piece.local_offset, piece.bytes, over_now)) return false;
  if (over_now) {
    --op.under_way;
    op.moved += piece.bytes;
  }
  return true;
}

bool Link::ask(Op& op, const RunPiece& piece) {
  MessageHead head;
  head.kind = MessageKind::get;
  head.op = ++last_ask_;
  head.region = remote_of(*piece.run).id();
  head.offset = piece.remote_offset;
  head.bytes = static_cast<std::uint32_t>(piece.bytes);
  asks_.emplace(head.op, Ask{op.number, local_of(*piece.run).data() + piece.local_offset, piece.bytes, 0});
  ++op.under_way;
  ++data_requests_;
  data_bytes_ += piece.bytes;
  return send(Request::Kind::signal, head, {}, {});
}

// Of a put that goes both ways: its signal waits for the other.
void Link::end_in_messages(Op& op) {
  Request& one = request(Request::Kind::data);
  one.op = op.number;
  one.bytes = 0;
  MessageHead head;
  head.kind = MessageKind::put_last;
  head.op = op.number;
  head.region = op.last_region;
  ++op.under_way;
  bool over_now = false;
  if (post_message(one, head, nullptr, 0, over_now) && over_now) --op.under_way;
}

// All of the operation is with UCX.
void Link::handed_over(Op& op) {
  const std::uint64_t number = op.number;
  if (op.is_put && op.direct && op.in_messages) {
    end_in_messages(op);
    if (!ready_) return;
  }
  if (op.is_put && op.direct) {
    op.stamp = ++last_stamp_;
    handed_.push_back(op.number);
  } else if (op.is_put && !op.signal.empty()) {
    MessageHead head;
    head.kind = MessageKind::put_signal;
    head.op = op.number;
    waiting_signals_.push_back({head, std::move(op.signal)});
    op.signal.clear();
    send_waiting();
    if (!ready_) return;
  }
  settle(ops_.find(number));
}

// Some of the operation has ended, or all of it is handed over.
void Link::settle(Ops::iterator place) {
  Op& op = *place->second;
  if (op.under_way != 0 || !op.cursor.at_end()) return;
  if (!op.is_put || (op.ended && (!op.direct || op.flushed))) return finish(place);
  if (op.level == Complete::local && op.done != nullptr) std::exchange(op.done, nullptr)->complete(op.failure);
  if (ready_) flushed(flushed_);
}

void Link::finish(Ops::iterator place) {
  const std::unique_ptr<Op> op = std::move(place->second);
  ops_.erase(place);
  if (op->on_device && ready_) --device_ops_;
  if (!op->signal.empty() && op->failure.ok()) {
    MessageHead head;
    head.kind = MessageKind::signal;
    waiting_signals_.push_back({head, std::move(op->signal)});
    send_waiting();
  }
  if (op->done != nullptr) op->done->complete(ready_ ? std::move(op->failure) : failure_);
  end_flushes();
}

void Link::on_ended(Request& request) {
  const Request::Kind kind = request.kind;
  const ucs_status_t status = request.status;
  const std::uint64_t number = request.op, stamp = request.stamp;
  const std::size_t bytes = request.bytes;
  const bool passes = request.on_device && !breaks(status);
  release(request);
  if (!ready_ && connecting_ == nullptr) return;
  if (status != UCS_OK && !passes) return fail(loss(status));
  if (kind == Request::Kind::flush) {
    flushed(stamp);
  } else if (kind == Request::Kind::data) {
    const auto place = ops_.find(number);
    if (place == ops_.end()) return;
    Op& op = *place->second;
    --op.under_way;
    if (status == UCS_OK) {
      op.moved += bytes;
    } else {
      const bool at_end = op.cursor.at_end();
      refuse(op, status);
      if (!at_end) return handed_over(op);
    }
    settle(place);
  }
}

Status Link::signal(ByteSpan head, ByteSpan body) {
  if (!ready_) [[unlikely]]
    return not_ready();
  if (head.size() + body.size() > max_body) [[unlikely]] {
    return Status(Code::invalid_argument,
                  "a signal of " + std::to_string(head.size() + body.size()) + " bytes; at most " + std::to_string(max_body));
  }
  if (!waiting_signals_.empty() || !room_for_signal()) {
    static const Status full(Code::would_block, "UCX has no room for another signal");
    return full;
  }
  MessageHead message;
  message.kind = MessageKind::signal;
  return send(Request::Kind::signal, message, head, body) ? Status() : failure_;
}

bool Link::send(Request::Kind kind, MessageHead head, ByteSpan front, ByteSpan back) {
  Request& one = request(kind);
  if (!front.empty()) std::memcpy(one.body.get(), front.data(), front.size());
  if (!back.empty()) std::memcpy(one.body.get() + front.size(), back.data(), back.size());
  bool over_now = false;
  return post_message(one, head, one.body.get(), front.size() + back.size(), over_now);
}

bool Link::post_message(Request& request, MessageHead head, const void* body, std::size_t bytes, bool& over_now) {
  head.token = peer_token_;
  head.number = next_sent_++;
  const std::size_t length = encode_head(head, request.head);
  ucp_request_param_t params = reporting_to(request);
  params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.flags = UCP_AM_SEND_FLAG_EAGER;
  params.memory_type = UCS_MEMORY_TYPE_HOST;  // else UCX asks its GPU parts each time
  over_now =
      over(request, worker_->api().am_send_nbx(worker_->endpoint(), signal_id, request.head.data(), length, body, bytes, &params));
  if (!over_now) return true;
  const ucs_status_t status = request.status;
  release(request);
  if (status != UCS_OK) fail(loss(status));
  return status == UCS_OK;
}

bool Link::send_waiting() {
  bool sent = false;
  while (ready_ && !waiting_signals_.empty() && room_for_signal()) {
    const Waiting one = std::move(waiting_signals_.front());
    waiting_signals_.pop_front();
    sent = send(Request::Kind::signal, one.head, one.body, {}) || sent;
  }
  return sent;
}

Status Link::flush(Completion* done) {
  if (!ready_) [[unlikely]]
    return not_ready();
  flushes_.push_back({last_number_ + 1, done});
  end_flushes();
  return {};
}

// Puts stay among the operations until they are flushed, or the peer has answered.
void Link::end_flushes() {
  if (flushes_.empty()) return;
  std::uint64_t oldest_put = std::numeric_limits<std::uint64_t>::max();
  for (const auto& [number, op] : ops_) {
    if (!op->is_put) continue;
    oldest_put = number;
    break;
  }
  while (!flushes_.empty() && flushes_.front().before <= oldest_put) {
    Completion* const done = flushes_.front().done;
    flushes_.pop_front();
    done->complete({});
  }
}

Status Link::cancel(Completion* done) {
  const auto place = std::ranges::find_if(ops_, [&](const auto& each) { return each.second->done == done; });
  if (place == ops_.end()) return Status(Code::unsupported, "the operation completes by itself");
  if (place->second->begun) return Status(Code::unsupported, "part of the operation is with UCX already; it goes on");
  const std::unique_ptr<Op> op = std::move(place->second);
  ops_.erase(place);
  std::erase(turns_, op->number);
  std::erase(held_, op->number);
  if (op->on_device) --device_ops_;
  op->done->complete(Status(Code::cancelled, "cancelled; nothing was written to the target"));
  end_flushes();
  return {};
}

}  // namespace hmc::ucx
