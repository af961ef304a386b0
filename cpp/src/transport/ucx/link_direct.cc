// Link: what UCX's own put and get move: host memory by network cards, and memory of devices.
#include <algorithm>
#include <utility>

#include "transport/ucx/link.h"

namespace hmc::ucx {

// Which ways its parts go.
Status Link::look_at(Op& op, std::span<const Run> runs) const {
  for (const Run& run : runs) {
    if (run.count == 0 || run.block == 0) continue;
    const MemoryKind kind = local_of(run).kind();
    if (kind != remote_of(run).kind()) {
      return Status(Code::unsupported, "ucx moves nothing between memory of a device and of the CPU");
    }
    op.on_device = op.on_device || kind != MemoryKind::host;
    (direct(kind) ? op.direct : op.in_messages) = true;
  }
  return {};
}

// Begins what waited for streams that are there now. A failing stream ends its operation.
bool Link::release_held() {
  bool moved = false;
  for (const std::uint64_t number : std::vector<std::uint64_t>(held_)) {
    const auto place = ops_.find(number);
    if (place == ops_.end()) continue;  // ended by a callback
    auto reached = place->second->after->reached();
    if (reached.ok() && !*reached) continue;
    moved = true;
    std::erase(held_, number);
    if (reached.ok()) {
      turns_.push_back(number);
      continue;
    }
    place->second->failure = reached.status();
    finish(place);
  }
  return moved;
}

bool Link::move_direct(Op& op, const RunPiece& piece) {
  const UcxLocalRegion& local = local_of(*piece.run);
  const UcxRemoteRegion& remote = remote_of(*piece.run);
  std::byte* const here = local.data() + piece.local_offset;
  const std::uint64_t there = remote.address() + piece.remote_offset;
  Request& one = request(Request::Kind::data);
  one.op = op.number;
  one.bytes = piece.bytes;
  data_bytes_ += piece.bytes;
  ucp_request_param_t params = reporting_to(one);
  one.on_device = local.kind() != MemoryKind::host;
  if (one.on_device) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    params.memory_type = type_of(local.kind());
  }
#if UCP_API_VERSION >= UCP_VERSION(1, 13)
  if (worker_->api().minor >= 14) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    params.memh = local.handle();
  }
#endif
  const Api& api = worker_->api();
  ++op.under_way;
  if (!over(one, op.is_put ? api.put_nbx(worker_->endpoint(), here, piece.bytes, there, remote.key(), &params)
                           : api.get_nbx(worker_->endpoint(), here, piece.bytes, there, remote.key(), &params))) {
    if (one.on_device) worker_->began_on_device();
    return true;
  }
  const ucs_status_t status = one.status;
  const bool passes = one.on_device && !breaks(status);
  release(one);
  if (status != UCS_OK && !passes) {
    fail(loss(status));
    return false;
  }
  --op.under_way;
  if (status == UCS_OK) {
    op.moved += piece.bytes;
  } else {
    refuse(op, status);
  }
  return true;
}

// A device did not do it (it could not map the peer's memory, ...): another transport may. What is under way ends first.
void Link::refuse(Op& op, ucs_status_t status) {
  if (op.failure.ok()) {
    op.failure = Status(Code::unsupported, std::string("UCX: copying memory of a device: ") + worker_->api().status_string(status));
  }
  std::erase(turns_, op.number);
  op.cursor = RunCursor();
}

bool Link::breaks(ucs_status_t status) noexcept {
  return status == UCS_ERR_CONNECTION_RESET || status == UCS_ERR_ENDPOINT_TIMEOUT || status == UCS_ERR_CANCELED ||
         status == UCS_ERR_NOT_CONNECTED;
}

// A put that UCX has completed may have been buffered on the way; UCX says of a flush that what was issued before it is complete at
// the target too. That earns Complete::remote, and only after it the signal is sent: UCX's fence orders puts among themselves but
// not with active messages, which may take another way.
bool Link::flush_puts() {
  Request& one = request(Request::Kind::flush);
  one.stamp = last_stamp_;
  flush_asked_ = last_stamp_;
  const ucp_request_param_t params = reporting_to(one);
  if (!over(one, worker_->api().ep_flush_nbx(worker_->endpoint(), &params))) return true;
  const ucs_status_t status = one.status;
  const std::uint64_t stamp = one.stamp;
  release(one);
  if (status != UCS_OK) {
    fail(loss(status));
    return false;
  }
  flushed(stamp);
  return true;
}

void Link::flushed(std::uint64_t stamp) {
  flushed_ = std::max(flushed_, stamp);
  while (ready_ && !handed_.empty()) {
    const auto place = ops_.find(handed_.front());
    Op& op = *place->second;
    if (op.stamp > flushed_ || op.under_way != 0) return;
    handed_.pop_front();
    op.flushed = true;
    if (!op.in_messages || op.ended) finish(place);
  }
}

}  // namespace hmc::ucx
