#include "transport/ucx/transfers.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "transport/ucx/endpoint.h"

namespace hmc::ucx {
namespace {

Status refused(Code code) {
  if (code == Code::stale) return Status(code, "the peer has closed that region");
  return Status(code, "the peer does not allow that access to its region");
}

// It could not map the peer's memory, ...: another transport may.
Status device_refusal(const Api& api, ucs_status_t status) {
  return Status(Code::unsupported, std::string("UCX: copying memory of a device: ") + api.status_string(status));
}

}  // namespace

void Transfers::add(Op& op, bool reached) {
  for (RunCursor at = op.cursor; !at.at_end(); at.advance_blocks(at.run().count)) {
    const MemoryKind kind = local_of(at.run()).kind();
    op.on_device = op.on_device || kind != MemoryKind::host;
    (direct(kind) ? op.direct : op.in_messages) = true;
  }
  if (op.on_device) ++device_ops_;
  reached ? turns_.add(op) : held_.push_back(op.number);
}

void Transfers::withdraw(Op& op) {
  turns_.withdraw(op);
  std::erase(held_, op.number);
  if (op.on_device) --device_ops_;
}

void Transfers::stop() noexcept {
  turns_.clear();
  handed_.clear();
  held_.clear();
  device_ops_ = 0;
  asks_.clear();
}

bool Transfers::release_held() {
  bool moved = false;
  for (const std::uint64_t number : std::vector<std::uint64_t>(held_)) {
    Op* const op = find(number);
    if (op == nullptr) continue;  // ended by a callback
    auto reached = op->after->reached();
    if (reached.ok() && !*reached) continue;
    moved = true;
    std::erase(held_, number);
    if (reached.ok()) {
      turns_.add(*op);
      continue;
    }
    op->failure = reached.status();
    end(*op);
  }
  return moved;
}

// Operations take turns, so that a large one does not hold back those behind it.
bool Transfers::advance() {
  bool moved = false;
  for (std::size_t budget = turn_bytes;
       endpoint_.ready() && budget != 0 && !turns_.empty() && requests_.room_for(Request::Kind::data);) {
    Op& op = turns_.take();
    op.started = true;
    std::size_t turn = std::min(budget, chunk_bytes);
    while (!op.cursor.at_end() && turn != 0 && requests_.room_for(Request::Kind::data)) {
      const MemoryKind kind = local_of(op.cursor.run()).kind();
      const bool in_messages = op.is_put && !direct(kind);
      const std::size_t most = kind != MemoryKind::host ? device_chunk_bytes : in_messages ? std::min(turn, requests_.piece) : turn;
      const RunPiece piece = op.cursor.peek(most);
      op.cursor.advance(piece.bytes);
      moved = true;
      if (!(direct(kind) ? move_direct(op, piece) : move_in_messages(op, piece)))
        return true;  // the connection has failed, and the operation with it
      turn -= std::min(turn, piece.bytes);
      budget -= std::min(budget, piece.bytes);
    }
    if (op.cursor.at_end()) {
      handed_over(op);
    } else {
      turns_.put_back(op);
    }
  }
  while (endpoint_.ready() && flush_due() && flush()) moved = true;
  return moved;
}

bool Transfers::move_in_messages(Op& op, const RunPiece& piece) {
  std::byte* const here = local_of(*piece.run).data() + piece.local_offset;
  MessageHead head;
  head.region = remote_of(*piece.run).id();
  head.offset = piece.remote_offset;
  ++op.in_flight;
  if (!op.is_put) {
    head.kind = MessageKind::get;
    head.op = ++last_ask_;
    head.bytes = static_cast<std::uint32_t>(piece.bytes);
    asks_.emplace(head.op, Ask{op.number, here, piece.bytes, 0});
    requests_.add_asked(piece.bytes);
    return channel_.send(Request::Kind::signal, head);
  }
  Request& one = requests_.take(Request::Kind::data, piece.bytes);
  one.op = head.op = op.number;
  head.kind = op.cursor.at_end() && op.signal.empty() && !op.direct ? MessageKind::put_last : MessageKind::put;
  op.last_region = head.region;
  bool over_now = false;
  if (!channel_.post(one, head, here, piece.bytes, over_now)) return false;
  if (over_now) {
    --op.in_flight;
    op.moved += piece.bytes;
  }
  return true;
}

bool Transfers::move_direct(Op& op, const RunPiece& piece) {
  const UcxLocalRegion& local = local_of(*piece.run);
  const UcxRemoteRegion& remote = remote_of(*piece.run);
  std::byte* const here = local.data() + piece.local_offset;
  const std::uint64_t there = remote.address() + piece.remote_offset;
  Request& one = requests_.take(Request::Kind::data, piece.bytes);
  one.op = op.number;
  ucp_request_param_t params = one.reporting();
  one.on_device = local.kind() != MemoryKind::host;
  if (one.on_device) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    params.memory_type = type_of(local.kind());
  }
#if UCP_API_VERSION >= UCP_VERSION(1, 13)
  if (worker_.api().minor >= 14) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    params.memh = local.handle();
  }
#endif
  const Api& api = worker_.api();
  ++op.in_flight;
  if (!one.over(op.is_put ? api.put_nbx(worker_.endpoint(), here, piece.bytes, there, remote.key(), &params)
                          : api.get_nbx(worker_.endpoint(), here, piece.bytes, there, remote.key(), &params))) {
    if (one.on_device) worker_.began_on_device();
    return true;
  }
  const ucs_status_t status = one.status;
  const bool passes = status == UCS_OK || one.refused();
  requests_.release(one);
  if (!passes) {
    endpoint_.lost(status);
    return false;
  }
  --op.in_flight;
  if (status == UCS_OK) {
    op.moved += piece.bytes;
  } else {
    refuse(op, device_refusal(api, status));
  }
  return true;
}

// All of the operation is with UCX.
void Transfers::handed_over(Op& op) {
  const std::uint64_t number = op.number;
  if (op.is_put && op.direct && op.in_messages) {
    // It goes both ways: its end in messages goes now, its signal once the other has been flushed.
    Request& one = requests_.take(Request::Kind::data);
    one.op = number;
    MessageHead head;
    head.kind = MessageKind::put_last;
    head.op = number;
    head.region = op.last_region;
    ++op.in_flight;
    bool over_now = false;
    if (!channel_.post(one, head, nullptr, 0, over_now)) return;
    if (over_now) --op.in_flight;
  }
  if (op.is_put && op.direct) {
    op.stamp = ++last_stamp_;
    handed_.push_back(op.number);
  } else if (op.is_put && !op.signal.empty()) {
    const Bytes signal = std::exchange(op.signal, {});
    endpoint_.attach(signal, number);
    if (!endpoint_.ready()) return;
  }
  settle(op);
}

// Some of the operation has ended, or all of it is handed over.
void Transfers::settle(Op& op) {
  if (op.in_flight != 0 || !op.cursor.at_end()) return;
  if (!op.is_put || (op.answered && (!op.direct || op.flushed))) return end(op);
  if (op.level == Complete::local && op.done != nullptr) std::exchange(op.done, nullptr)->complete(op.failure);
  if (endpoint_.ready()) on_flushed(flushed_);
}

void Transfers::end(Op& op) {
  if (op.on_device) --device_ops_;
  endpoint_.finish(op);
}

// What is in flight of it ends first.
void Transfers::refuse(Op& op, const Status& reason) {
  if (op.failure.ok()) op.failure = reason;
  turns_.remove(op);
  op.cursor = RunCursor();
}

void Transfers::on_ended(std::uint64_t number, std::size_t bytes, ucs_status_t status) {
  Op* const op = find(number);
  if (op == nullptr) return;
  --op->in_flight;
  if (status == UCS_OK) {
    op->moved += bytes;
  } else {
    const bool at_end = op->cursor.at_end();
    refuse(*op, device_refusal(worker_.api(), status));
    if (!at_end) return handed_over(*op);
  }
  settle(*op);
}

// A put that UCX has completed may have been buffered on the way; UCX says of a flush that what was issued before it is complete at
// the target too. That earns Complete::remote, and only after it the signal is sent: UCX's fence orders puts among themselves but
// not with active messages, which may take another way.
bool Transfers::flush() {
  Request& one = requests_.take(Request::Kind::flush);
  one.stamp = flush_asked_ = last_stamp_;
  const ucp_request_param_t params = one.reporting();
  if (!one.over(worker_.api().ep_flush_nbx(worker_.endpoint(), &params))) return true;
  const ucs_status_t status = one.status;
  const std::uint64_t stamp = one.stamp;
  requests_.release(one);
  if (status != UCS_OK) {
    endpoint_.lost(status);
    return false;
  }
  on_flushed(stamp);
  return true;
}

void Transfers::on_flushed(std::uint64_t stamp) {
  flushed_ = std::max(flushed_, stamp);
  while (endpoint_.ready() && !handed_.empty()) {
    Op& op = *find(handed_.front());
    if (op.stamp > flushed_ || op.in_flight != 0) return;
    handed_.pop_front();
    op.flushed = true;
    if (!op.in_messages || op.answered) end(op);
  }
}

// ---- what the peer answers ----

void Transfers::on_put_done(const MessageHead& head) {
  Op* const op = find(head.op);
  if (op == nullptr || !op->in_messages || !op->is_put || op->answered || !op->cursor.at_end()) {
    return endpoint_.fail(Status(Code::protocol, "the peer answers a put that was not made"));
  }
  op->answered = true;
  turns_.answered();
  if (head.code != Code::ok && op->failure.ok()) op->failure = refused(head.code);
  settle(*op);
}

bool Transfers::place(const MessageHead& head, ByteSpan body) {
  const auto asked = asks_.find(head.op);
  if (asked == asks_.end() || body.empty() || head.offset > asked->second.bytes ||
      body.size() > asked->second.bytes - head.offset) {
    return false;
  }
  std::memcpy(asked->second.here + head.offset, body.data(), body.size());
  return true;
}

void Transfers::on_got(const MessageHead& head) {
  const auto asked = asks_.find(head.op);
  if (asked == asks_.end() || head.bytes > asked->second.bytes - asked->second.got) {
    return endpoint_.fail(Status(Code::protocol, "the peer sends bytes that were not asked for"));
  }
  Ask& ask = asked->second;
  ask.got += head.bytes;
  find(ask.op)->moved += head.bytes;
  if (ask.got == ask.bytes) end_ask(asked);
}

// Nothing more is asked for; what was, is answered.
void Transfers::on_get_failed(const MessageHead& head) {
  const auto asked = asks_.find(head.op);
  if (asked == asks_.end() || head.code == Code::ok) {
    return endpoint_.fail(Status(Code::protocol, "the peer refuses bytes that were not asked for"));
  }
  refuse(*find(asked->second.op), refused(head.code));
  end_ask(asked);
}

void Transfers::end_ask(Asks::iterator asked) {
  Op& op = *find(asked->second.op);
  requests_.remove_asked(asked->second.bytes);
  asks_.erase(asked);
  --op.in_flight;
  settle(op);
}

}  // namespace hmc::ucx
