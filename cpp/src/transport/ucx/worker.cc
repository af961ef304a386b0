#include "transport/ucx/worker.h"

#include <sys/epoll.h>

#include <utility>

#include "base/log.h"
#include "transport/ucx/endpoint.h"

namespace hmc::ucx {
namespace {

// UCX reads an address without knowing its length, up to bits that mark the last of a list. Ones behind what the peer sent are such
// marks.
constexpr std::size_t address_margin = 8 << 10;
// And a packed key: a size and up to 255 bytes for each of 64 memory domains, and a little more. Zeros behind what the peer sent
// keep it within our memory, whatever that says.
constexpr std::size_t key_margin = 32 << 10;
// For copies of devices, when a worker ends.
constexpr double device_seconds = 2;

}  // namespace

Result<std::shared_ptr<Worker>> Worker::create(std::shared_ptr<const LibraryContext> context) {
  auto worker = std::shared_ptr<Worker>(new Worker(std::move(context)));
  HMC_TRY(worker->open());
  return worker;
}

Status Worker::open() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // any thread, under the engine lock
  params.flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK;
  if (const auto status = api().worker_create(context_->handle(), &params, &handle_); status != UCS_OK) {
    handle_ = nullptr;
    return api().status("making a worker", status);
  }
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = Channel::id;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = on_message;
  handler.arg = this;
  if (const auto status = api().worker_set_am_recv_handler(handle_, &handler); status != UCS_OK) {
    return api().status("setting the handler of messages", status);
  }
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  if (const auto status = api().worker_get_address(handle_, &address, &bytes); status != UCS_OK) {
    return api().status("asking for the worker's address", status);
  }
  const auto* first = reinterpret_cast<const std::byte*>(address);
  address_.assign(first, first + bytes);
  api().worker_release_address(handle_, address);
  int descriptor = -1;
  if (const auto status = api().worker_get_efd(handle_, &descriptor); status != UCS_OK) {
    return api().status("asking for the worker's descriptor", status);
  }
  HMC_TRY(context_->engine().watch(descriptor, EPOLLIN, *this));
  descriptor_ = descriptor;
  return {};
}

Status Worker::connect(const Bytes& peer) {
  Bytes address = peer;
  address.resize(address.size() + address_margin, std::byte{0xFF});
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  // Without it UCX ends the process when a connection breaks.
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.arg = this;
  params.err_handler.cb = [](void* worker, ucp_ep_h, ucs_status_t status) { static_cast<Worker*>(worker)->failure_ = status; };
  if (const auto status = api().ep_create(handle_, &params, &endpoint_); status != UCS_OK) {
    endpoint_ = nullptr;
    return api().status("connecting to the peer (UCX_TLS and UCX_NET_DEVICES may leave no way)", status);
  }
  return {};
}

Result<ucp_rkey_h> Worker::unpack(const Bytes& key) {
  Bytes packed = key;
  packed.resize(packed.size() + key_margin);
  ucp_rkey_h unpacked = nullptr;
  if (const auto status = api().ep_rkey_unpack(endpoint_, packed.data(), &unpacked); status != UCS_OK) {
    return api().status("unpacking the peer's remote key", status);
  }
  keys_.insert(unpacked);
  return unpacked;
}

void Worker::destroy(ucp_rkey_h key) noexcept {
  if (keys_.erase(key) != 0) api().rkey_destroy(key);
}

void Worker::close() noexcept {
  if (descriptor_ >= 0) context_->engine().unwatch(std::exchange(descriptor_, -1));
  ucp_worker_h const handle = std::exchange(handle_, nullptr);
  if (handle == nullptr || context_->forked()) {
    keys_.clear();
    return;
  }
  // Whoever has a network card's queues destroyed is left alone by it; what devices copy is seen out. It always ends.
  const Deadline patience = Deadline::after_seconds(device_seconds);
  while (on_device_ != 0 && !patience.passed()) api().worker_progress(handle);
  if (endpoint_ != nullptr) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t closing = api().ep_close_nbx(std::exchange(endpoint_, nullptr), &params);
    if (UCS_PTR_IS_PTR(closing)) {
      constexpr int rounds = 1000;  // a network card may take some to give back what it has; then its queues are destroyed
      for (int i = 0; i < rounds && api().request_check_status(closing) == UCS_INPROGRESS; ++i) api().worker_progress(handle);
      api().request_free(closing);
    }
  }
  for (ucp_rkey_h const key : std::exchange(keys_, {})) api().rkey_destroy(key);
  api().worker_destroy(handle);
}

// The next poll() looks. UCX leaves the descriptor readable until it is armed again; whoever polls is not to be told at every look.
void Worker::on_ready(std::uint32_t) {
  context_->engine().modify(descriptor_, 0);
  watching_ = false;
}

bool Worker::arm() {
  if (has_news()) return false;
  const auto status = api().worker_arm(handle_);
  if (status == UCS_OK && !std::exchange(watching_, true)) context_->engine().modify(descriptor_, EPOLLIN);
  if (status == UCS_OK || status == UCS_ERR_BUSY) return status == UCS_OK;
  warn_once("ucx arm", api().status("waiting for events", status).str() + "; HMC polls instead");
  return false;
}

ucs_status_t Worker::on_message(void* worker, const void* head, std::size_t head_size, void* data, std::size_t bytes,
                                const ucp_am_recv_param_t* param) {
  auto& self = *static_cast<Worker*>(worker);
  Batch& news = self.news_;
  MessageHead decoded;
  if (!decode_head({static_cast<const std::byte*>(head), head_size}, decoded)) return UCS_OK;
  if (self.served_ == nullptr || decoded.token != self.served_->token()) return UCS_OK;  // not of the peer that got our address
  // Messages are sent eagerly; one that waits to be fetched is none.
  bool sound = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0 && bytes <= max_piece;
  ByteSpan body(static_cast<const std::byte*>(data), sound ? bytes : 0);
  if (sound && carries_bytes(decoded.kind)) {
    sound = self.served_->place(decoded, body);
    body = {};
    if (sound && news.arrivals.empty() && self.served_->pass(decoded)) return UCS_OK;
  } else if (body.size() > max_body) {
    sound = false;
    body = {};
  }
  news.arrivals.push_back({decoded, news.bytes.size(), body.size(), sound});
  news.bytes.insert(news.bytes.end(), body.begin(), body.end());
  return UCS_OK;
}

void Worker::on_ended(void* request, ucs_status_t status, void* user) {
  auto& ended = *static_cast<Request*>(user);
  ended.status = status;
  if (ended.on_device) --ended.worker->on_device_;
  ended.worker->api().request_free(request);
  ended.worker->news_.ended.push_back(&ended);
}

void Worker::hand_over(Batch& batch) {
  while (batch.next_ended != batch.ended.size()) served_->on_ended(*batch.ended[batch.next_ended++]);
  while (batch.next_arrival != batch.arrivals.size()) {
    const Arrival one = batch.arrivals[batch.next_arrival++];
    served_->on_message(one.head, ByteSpan(batch.bytes).subspan(one.at, one.bytes), one.sound);
  }
}

// The link is held by the caller. What a post of its brings is for the next time. A call within one of its calls delivers the rest
// of the batch first.
void Worker::deliver() {
  if (delivering_ != nullptr) hand_over(*delivering_);
  Batch batch = std::exchange(spare_, {});
  std::swap(batch, news_);
  Batch* const outer = std::exchange(delivering_, &batch);
  hand_over(batch);
  delivering_ = outer;
  batch.clear();
  spare_ = std::move(batch);
  if (failure_ != UCS_OK) served_->lost(std::exchange(failure_, UCS_OK));
}

}  // namespace hmc::ucx
