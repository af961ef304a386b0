#include "transport/ucx/requests.h"

#include "transport/ucx/worker.h"

namespace hmc::ucx {

ucp_request_param_t Request::reporting() noexcept {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = Worker::on_ended;
  params.user_data = this;
  return params;
}

bool Request::over(ucs_status_ptr_t result) noexcept {
  if (UCS_PTR_IS_PTR(result)) return false;
  status = UCS_PTR_STATUS(result);
  return true;
}

bool Request::refused() const noexcept {
  return on_device && status != UCS_OK && status != UCS_ERR_CONNECTION_RESET && status != UCS_ERR_ENDPOINT_TIMEOUT &&
         status != UCS_ERR_CANCELED && status != UCS_ERR_NOT_CONNECTED;
}

Request& Requests::take(Request::Kind kind, std::size_t bytes) {
  const bool message = kind == Request::Kind::signal || kind == Request::Kind::answer;
  auto& free = message ? free_messages_ : free_;
  if (free.empty()) {
    free.push_back(all_.emplace_back(std::make_unique<Request>()).get());
    free.back()->worker = &worker_;
  }
  Request& taken = *free.back();
  free.pop_back();
  if (message && taken.room < piece) {  // the first went before it was known how large they may be
    taken.body = std::make_unique_for_overwrite<std::byte[]>(piece);
    taken.room = piece;
  }
  taken.kind = kind;
  taken.status = UCS_OK;
  taken.bytes = bytes;
  data_bytes_ += bytes;
  ++in_flight_[index(kind)];
  return taken;
}

void Requests::release(Request& request) {
  const bool message = request.kind == Request::Kind::signal || request.kind == Request::Kind::answer;
  data_bytes_ -= request.bytes;
  request.on_device = false;
  --in_flight_[index(request.kind)];
  (message ? free_messages_ : free_).push_back(&request);
}

}  // namespace hmc::ucx
