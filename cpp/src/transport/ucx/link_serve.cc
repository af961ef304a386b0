// Link: puts and gets in messages: what the peer asks of regions here, and what it answers.
//
// Bytes are copied as they come, within UCX's callback, in whatever order that is. A put is answered when its end is taken: that
// happens in the order of sending, so all its bytes have been copied then, and whatever the peer's program learns of it afterwards
// comes behind them. That earns Complete::remote, and lets an attached signal follow at once.
#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/ucx/link.h"

namespace hmc::ucx {
namespace {

// Null, with the reason, if the peer may not have that.
const UcxLocalRegion* find(const Regions& regions, const MessageHead& head, std::size_t bytes, bool to_write, Code& refusal) {
  const auto found = regions.find(head.region);
  if (found == regions.end()) return refusal = Code::stale, nullptr;
  const UcxLocalRegion& region = *found->second;
  if (region.kind() != MemoryKind::host || head.offset > region.bytes() || bytes > region.bytes() - head.offset ||
      (to_write && !region.writable())) {
    return refusal = Code::invalid_argument, nullptr;
  }
  return &region;
}

Status refused(Code code) {
  if (code == Code::stale) return Status(code, "the peer has closed that region");
  return Status(code, "the peer does not allow that access to its region");
}

}  // namespace

bool Link::place(MessageHead& head, ByteSpan body) {
  if (closed_ || !failure_.ok()) return true;
  head.bytes = static_cast<std::uint32_t>(body.size());
  if (head.kind != MessageKind::got) return place_put(head, body);
  const auto asked = asks_.find(head.op);
  if (asked == asks_.end() || body.empty() || head.offset > asked->second.bytes ||
      body.size() > asked->second.bytes - head.offset) {
    return false;
  }
  std::memcpy(asked->second.here + head.offset, body.data(), body.size());
  return true;
}

bool Link::place_put(const MessageHead& head, ByteSpan body) {
  if (failed_puts_.contains(head.op)) return true;
  Code refusal = Code::ok;
  if (const UcxLocalRegion* region = find(*regions_, head, body.size(), true, refusal)) {
    std::memcpy(region->data() + head.offset, body.data(), body.size());
  } else if (failed_puts_.size() >= max_serving) {
    return false;
  } else {
    failed_puts_.emplace(head.op, refusal);
  }
  return true;
}

bool Link::pass(const MessageHead& head) noexcept {
  if (head.kind != MessageKind::put || head.number != next_taken_ || !ready_ || !early_.empty()) return false;
  ++next_taken_;
  return true;
}

void Link::on_put(const MessageHead& head, ByteSpan body) {
  if (head.kind == MessageKind::put) return;
  MessageHead answer;
  answer.kind = MessageKind::put_done;
  answer.op = head.op;
  if (const auto failed = failed_puts_.find(head.op); failed != failed_puts_.end()) {
    answer.code = failed->second;
    failed_puts_.erase(failed);
  }
  const bool good = answer.code == Code::ok;
  answers_.push_back(answer);
  send_answers();
  if (ready_ && good && head.kind == MessageKind::put_signal) sink_->on_signal(body);
}

void Link::on_put_done(const MessageHead& head) {
  const auto place = ops_.find(head.op);
  if (place == ops_.end() || !place->second->in_messages || !place->second->is_put || place->second->ended ||
      !place->second->cursor.at_end()) {
    return fail(Status(Code::protocol, "the peer answers a put that was not made"));
  }
  Op& op = *place->second;
  op.ended = true;
  if (head.code != Code::ok && op.failure.ok()) op.failure = refused(head.code);
  settle(place);
}

void Link::on_get(const MessageHead& head) {
  if (serving_.size() >= max_serving || head.bytes == 0) {
    return fail(Status(Code::protocol, "the peer asks for more than this version would"));
  }
  serving_.push_back({head, 0});
  send_answers();
}

// Copied before it is sent: the region may be gone before UCX has.
bool Link::send_answers() {
  bool sent = false;
  while (ready_ && !answers_.empty() && room_for_answer()) {
    const MessageHead answer = answers_.front();
    answers_.pop_front();
    sent = send(Request::Kind::answer, answer, {}, {}) || sent;
  }
  std::size_t budget = post_bytes;
  while (ready_ && !serving_.empty() && room_for_answer() && budget != 0) {
    Serving& one = serving_.front();
    MessageHead answer;
    answer.kind = MessageKind::got;
    answer.op = one.head.op;
    answer.offset = one.sent;
    const UcxLocalRegion* region = find(*regions_, one.head, one.head.bytes, false, answer.code);
    ByteSpan body;
    if (region == nullptr) {
      answer.kind = MessageKind::get_failed;
    } else {
      body = ByteSpan(region->data() + one.head.offset + one.sent, std::min<std::size_t>(piece_, one.head.bytes - one.sent));
      one.sent += body.size();
    }
    if (region == nullptr || one.sent == one.head.bytes) serving_.pop_front();
    budget -= std::min(budget, body.size());
    sent = send(Request::Kind::answer, answer, body, {}) || sent;
  }
  return sent;
}

void Link::on_got(const MessageHead& head) {
  const auto asked = asks_.find(head.op);
  if (asked == asks_.end() || head.bytes > asked->second.bytes - asked->second.got) {
    return fail(Status(Code::protocol, "the peer sends bytes that were not asked for"));
  }
  Ask& ask = asked->second;
  ask.got += head.bytes;
  const auto place = ops_.find(ask.op);
  place->second->moved += head.bytes;
  if (ask.got == ask.bytes) end_ask(asked);
}

void Link::on_get_failed(const MessageHead& head) {
  const auto asked = asks_.find(head.op);
  if (asked == asks_.end() || head.code == Code::ok) {
    return fail(Status(Code::protocol, "the peer refuses bytes that were not asked for"));
  }
  Op& op = *ops_.at(asked->second.op);
  op.failure = refused(head.code);
  // Nothing more is asked for; what was, is answered.
  std::erase(turns_, op.number);
  op.cursor = RunCursor();
  end_ask(asked);
}

void Link::end_ask(std::map<std::uint64_t, Ask>::iterator asked) {
  const auto place = ops_.find(asked->second.op);
  --data_requests_;
  data_bytes_ -= asked->second.bytes;
  asks_.erase(asked);
  --place->second->under_way;
  settle(place);
}

}  // namespace hmc::ucx
