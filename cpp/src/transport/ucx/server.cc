#include "transport/ucx/server.h"

#include <algorithm>
#include <cstring>

namespace hmc::ucx {

const UcxLocalRegion* Server::region_of(const MessageHead& head, std::size_t bytes, bool to_write, Code& refusal) const {
  const auto found = regions_->find(head.region);
  if (found == regions_->end()) return refusal = Code::stale, nullptr;
  const UcxLocalRegion& region = *found->second;
  if (region.kind() != MemoryKind::host || head.offset > region.bytes() || bytes > region.bytes() - head.offset ||
      (to_write && !region.writable())) {
    return refusal = Code::invalid_argument, nullptr;
  }
  return &region;
}

bool Server::place(const MessageHead& head, ByteSpan body) {
  if (failed_puts_.contains(head.op)) return true;
  Code refusal = Code::ok;
  if (const UcxLocalRegion* region = region_of(head, body.size(), true, refusal)) {
    std::memcpy(region->data() + head.offset, body.data(), body.size());
  } else if (failed_puts_.size() >= max_unanswered_puts) {
    return false;
  } else {
    failed_puts_.emplace(head.op, refusal);
  }
  return true;
}

std::optional<bool> Server::on_put(const MessageHead& head) {
  if (answers_.size() >= max_unanswered_puts) return std::nullopt;
  MessageHead answer;
  answer.kind = MessageKind::put_done;
  answer.op = head.op;
  if (const auto failed = failed_puts_.find(head.op); failed != failed_puts_.end()) {
    answer.code = failed->second;
    failed_puts_.erase(failed);
  }
  answers_.push_back(answer);
  send_answers();
  return answer.code == Code::ok;
}

bool Server::on_get(const MessageHead& head) {
  if (serving_.size() >= max_serving || head.bytes == 0) return false;
  serving_.push_back({head, 0});
  send_answers();
  return true;
}

// Copied before it is sent: the region may be gone before UCX has.
bool Server::send_answers() {
  bool sent = false;
  while (!answers_.empty() && requests_.room_for(Request::Kind::answer)) {
    const MessageHead answer = answers_.front();
    answers_.pop_front();
    if (!channel_.send(Request::Kind::answer, answer)) return sent;
    sent = true;
  }
  std::size_t budget = turn_bytes;
  while (!serving_.empty() && requests_.room_for(Request::Kind::answer) && budget != 0) {
    Serving& one = serving_.front();
    MessageHead answer;
    answer.kind = MessageKind::got;
    answer.op = one.head.op;
    answer.offset = one.sent;
    const UcxLocalRegion* region = region_of(one.head, one.head.bytes, false, answer.code);
    ByteSpan body;
    if (region == nullptr) {
      answer.kind = MessageKind::get_failed;
    } else {
      body =
          ByteSpan(region->data() + one.head.offset + one.sent, std::min<std::size_t>(requests_.piece, one.head.bytes - one.sent));
      one.sent += body.size();
    }
    if (region == nullptr || one.sent == one.head.bytes) serving_.pop_front();
    budget -= std::min(budget, body.size());
    if (!channel_.send(Request::Kind::answer, answer, body)) return sent;
    sent = true;
  }
  return sent;
}

void Server::stop() noexcept {
  answers_.clear();
  serving_.clear();
  failed_puts_.clear();
}

}  // namespace hmc::ucx
