#include "transport/ucx/channel.h"

#include <cstring>
#include <utility>

#include "transport/ucx/endpoint.h"

namespace hmc::ucx {

bool Channel::send(Request::Kind kind, const MessageHead& head, ByteSpan front, ByteSpan back) {
  Request& one = requests_.take(kind);
  if (!front.empty()) std::memcpy(one.body.get(), front.data(), front.size());
  if (!back.empty()) std::memcpy(one.body.get() + front.size(), back.data(), back.size());
  bool over_now = false;
  return post(one, head, one.body.get(), front.size() + back.size(), over_now);
}

bool Channel::post(Request& request, MessageHead head, const void* body, std::size_t bytes, bool& over_now) {
  head.token = peer_token;
  head.number = next_sent_++;
  const std::size_t length = encode_head(head, request.head);
  ucp_request_param_t params = request.reporting();
  params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.flags = UCP_AM_SEND_FLAG_EAGER;
  params.memory_type = UCS_MEMORY_TYPE_HOST;  // else UCX asks its GPU parts each time
  over_now = request.over(worker_.api().am_send_nbx(worker_.endpoint(), id, request.head.data(), length, body, bytes, &params));
  if (!over_now) return true;
  const ucs_status_t status = request.status;
  requests_.release(request);
  if (status != UCS_OK) endpoint_.lost(status);
  return status == UCS_OK;
}

Channel::Turn Channel::turn_of(const MessageHead& head, ByteSpan body) {
  if (head.number == next_taken_) {
    ++next_taken_;
    return Turn::now;
  }
  if (head.number < next_taken_ || early_.size() >= max_early) return Turn::cannot;
  early_.try_emplace(head.number, Message{head, Bytes(body.begin(), body.end())});
  return Turn::later;
}

std::optional<Channel::Message> Channel::next_kept() {
  if (early_.empty() || early_.begin()->first != next_taken_) return std::nullopt;
  ++next_taken_;
  return std::move(early_.extract(early_.begin()).mapped());
}

bool Channel::pass(const MessageHead& head) noexcept {
  if (head.number != next_taken_ || !early_.empty()) return false;
  ++next_taken_;
  return true;
}

}  // namespace hmc::ucx
