// The names of libibverbs, and the fabric's own.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "fabric/model.h"

#define FABRIC_EXPORT extern "C" __attribute__((visibility("default")))

using namespace hmc::fabric;

namespace {

constexpr std::uint32_t max_inline = 220;

ibv_mr* add_region(ibv_pd* domain, void* address, std::size_t bytes, int access, std::unique_ptr<Shadow> shadow, bool device) {
  Fabric& all = fabric();
  if (!shadow) return nullptr;  // errno says why
  if (all.settings.max_regions != 0 && all.regions.size() >= all.settings.max_regions) return errno = ENOMEM, nullptr;
  auto* region = new Region;
  region->context = domain->context;
  region->pd = domain;
  region->addr = address;
  region->length = bytes;
  region->lkey = region->rkey = ++all.last_key;
  region->shadow = std::move(shadow);
  region->access = static_cast<unsigned>(access);
  region->device = device;
  all.device_regions += device ? 1 : 0;
  all.regions[region->lkey] = region;
  return region;
}

void configure(const FabricSettings& settings) {
  const std::lock_guard guard(fabric().mutex);
  fabric().settings = settings;
}
void fail_port(std::uint32_t device, std::uint64_t work, std::uint32_t executed) {
  const std::lock_guard guard(fabric().mutex);
  Card& card = fabric().cards.at(device);
  card.failing = work == 0;
  card.work_until = work;
  card.executed_after = executed;
}
void hang_port(std::uint32_t device, std::uint64_t work, std::uint32_t flushes) {
  const std::lock_guard guard(fabric().mutex);
  Card& card = fabric().cards.at(device);
  card.hangs = work == 0;
  card.work_until_it_hangs = work;
  card.flushes = flushes != 0;
}
void slow_port(std::uint32_t device, std::uint32_t microseconds) {
  const std::lock_guard guard(fabric().mutex);
  fabric().cards.at(device).slowness = std::chrono::microseconds(microseconds);
}
void mend_ports() {
  const std::lock_guard guard(fabric().mutex);
  for (Card& card : fabric().cards) {
    card.failing = card.hangs = false;
    card.work_until = card.work_until_it_hangs = card.executed_after = 0;
    card.slowness = {};
  }
}
std::uint64_t bytes_moved(std::uint32_t device) {
  const std::lock_guard guard(fabric().mutex);
  return fabric().cards.at(device).moved;
}
std::uint32_t device_regions() {
  const std::lock_guard guard(fabric().mutex);
  return fabric().device_regions;
}

std::uint64_t immediates() {
  const std::lock_guard guard(fabric().mutex);
  return fabric().immediates;
}

}  // namespace

FABRIC_EXPORT const FabricControls* hmc_fabric_controls() {
  static const FabricControls controls{configure,  fail_port,   hang_port,      slow_port,
                                       mend_ports, bytes_moved, device_regions, immediates};
  return &controls;
}

#undef ibv_query_port
#undef ibv_reg_mr

FABRIC_EXPORT ibv_device** ibv_get_device_list(int* count) {
  const std::lock_guard guard(fabric().mutex);
  const unsigned devices = fabric().settings.devices == 0 ? 2 : std::min(fabric().settings.devices, max_devices);
  auto** list = new ibv_device* [devices + 1] {};
  for (unsigned i = 0; i < devices; ++i) {
    ibv_device& device = fabric().cards[i].device;
    const std::string name = "fabric" + std::to_string(i);
    std::copy(name.begin(), name.end() + 1, device.name);
    device.transport_type = IBV_TRANSPORT_IB;
    list[i] = &device;
  }
  if (count != nullptr) *count = static_cast<int>(devices);
  return list;
}
FABRIC_EXPORT void ibv_free_device_list(ibv_device** list) { delete[] list; }
FABRIC_EXPORT const char* ibv_get_device_name(ibv_device* device) { return device->name; }

FABRIC_EXPORT ibv_context* ibv_open_device(ibv_device* device) {
  auto* context = new ibv_context{};
  context->device = device;
  context->ops.poll_cq = poll_cq;
  context->ops.req_notify_cq = req_notify_cq;
  context->ops.post_send = post_send;
  context->ops.post_recv = post_recv;
  context->cmd_fd = device->name[6] - '0';
  context->async_fd = eventfd(0, EFD_CLOEXEC);
  return context;
}
FABRIC_EXPORT int ibv_close_device(ibv_context* context) {
  close(context->async_fd);
  delete context;
  return 0;
}
FABRIC_EXPORT int ibv_query_device(ibv_context*, ibv_device_attr* out) {
  *out = {};
  out->max_qp_rd_atom = out->max_qp_init_rd_atom = 16;
  out->max_cqe = 1 << 16;
  out->phys_port_cnt = 1;
  return 0;
}
// An InfiniBand port: by its number it is reached.
FABRIC_EXPORT int ibv_query_port(ibv_context* context, std::uint8_t, _compat_ibv_port_attr* raw) {
  auto* out = reinterpret_cast<ibv_port_attr*>(raw);
  const std::lock_guard guard(fabric().mutex);
  out->state = fabric().settings.down != 0 && fabric().cards[number_of(context)].failing ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
  out->max_mtu = out->active_mtu = IBV_MTU_4096;
  out->gid_tbl_len = 1;
  out->max_msg_sz = 1U << 30;
  out->lid = static_cast<std::uint16_t>(number_of(context) + 1);
  out->link_layer = IBV_LINK_LAYER_INFINIBAND;
  return 0;
}
FABRIC_EXPORT int ibv_query_gid(ibv_context* context, std::uint8_t, int, ibv_gid* gid) {
  *gid = {};
  gid->raw[0] = 0xFE;
  gid->raw[15] = static_cast<std::uint8_t>(number_of(context) + 1);
  return 0;
}
FABRIC_EXPORT ibv_pd* ibv_alloc_pd(ibv_context* context) { return new ibv_pd{context, 0}; }
FABRIC_EXPORT int ibv_dealloc_pd(ibv_pd* domain) {
  delete domain;
  return 0;
}

FABRIC_EXPORT ibv_mr* ibv_reg_mr(ibv_pd* domain, void* address, std::size_t bytes, int access) {
  const std::lock_guard guard(fabric().mutex);
  const FabricSettings& settings = fabric().settings;
  if (hmc::fabric::readable(address, bytes)) return add_region(domain, address, bytes, access, Shadow::of_host(address), false);
  if (settings.peer_memory == 0) return errno = EFAULT, nullptr;
  return add_region(domain, address, bytes, access,
                    settings.lying != 0 ? Shadow::of_nothing(bytes) : Shadow::of_device(address, bytes), true);
}
FABRIC_EXPORT ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* domain, std::uint64_t offset, std::size_t bytes, std::uint64_t address, int fd,
                                        int access) {
  const std::lock_guard guard(fabric().mutex);
  const FabricSettings& settings = fabric().settings;
  if (settings.dma_buf == 0) return errno = EOPNOTSUPP, nullptr;
  if (fd < 0) return errno = EBADF, nullptr;
  return add_region(domain, reinterpret_cast<void*>(address), bytes, access,
                    settings.lying != 0 ? Shadow::of_nothing(bytes) : Shadow::of_file(fd, offset, bytes), true);
}
FABRIC_EXPORT int ibv_dereg_mr(ibv_mr* handle) {
  const std::lock_guard guard(fabric().mutex);
  auto* region = static_cast<Region*>(handle);
  fabric().device_regions -= region->device ? 1 : 0;
  fabric().regions.erase(region->lkey);
  delete region;
  return 0;
}

FABRIC_EXPORT ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  auto* channel = new Channel;
  channel->context = context;
  channel->fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  return channel;
}
FABRIC_EXPORT int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  close(channel->fd);
  delete static_cast<Channel*>(channel);
  return 0;
}
FABRIC_EXPORT ibv_cq* ibv_create_cq(ibv_context* context, int entries, void*, ibv_comp_channel* channel, int) {
  const std::lock_guard guard(fabric().mutex);
  const FabricSettings& settings = fabric().settings;
  const bool too_large = settings.max_entries != 0 && static_cast<std::uint32_t>(entries) > settings.max_entries;
  if (too_large || (settings.max_queues != 0 && fabric().queues >= settings.max_queues)) return errno = ENOMEM, nullptr;
  ++fabric().queues;
  auto* queue = new Queue;
  queue->context = context;
  queue->channel = channel;
  queue->cqe = entries;
  return queue;
}
FABRIC_EXPORT int ibv_destroy_cq(ibv_cq* queue) {
  const std::lock_guard guard(fabric().mutex);
  --fabric().queues;
  delete static_cast<Queue*>(queue);
  return 0;
}
FABRIC_EXPORT int ibv_get_cq_event(ibv_comp_channel* handle, ibv_cq** queue, void** context) {
  std::uint64_t one = 0;
  if (read(handle->fd, &one, sizeof one) < 0) return -1;
  const std::lock_guard guard(fabric().mutex);
  auto* channel = static_cast<Channel*>(handle);
  *queue = channel->events.front();
  *context = nullptr;
  channel->events.pop_front();
  return 0;
}
FABRIC_EXPORT void ibv_ack_cq_events(ibv_cq*, unsigned) {}

FABRIC_EXPORT ibv_qp* ibv_create_qp(ibv_pd* domain, ibv_qp_init_attr* init) {
  const std::lock_guard guard(fabric().mutex);
  Fabric& all = fabric();
  if (all.settings.max_pairs != 0 && all.pairs.size() >= all.settings.max_pairs) return errno = ENOMEM, nullptr;
  auto* pair = new Pair;
  pair->context = domain->context;
  pair->pd = domain;
  pair->send_cq = init->send_cq;
  pair->recv_cq = init->recv_cq;
  pair->qp_num = ++all.last_pair;
  pair->state = IBV_QPS_RESET;
  pair->device = number_of(domain->context);
  init->cap.max_inline_data = std::min(init->cap.max_inline_data, max_inline);
  all.pairs[pair->qp_num] = pair;
  return pair;
}
FABRIC_EXPORT int ibv_modify_qp(ibv_qp* handle, ibv_qp_attr* attributes, int mask) {
  const std::lock_guard guard(fabric().mutex);
  auto& pair = *static_cast<Pair*>(handle);
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) pair.attributes.qp_access_flags = attributes->qp_access_flags;
  if ((mask & IBV_QP_DEST_QPN) != 0) pair.attributes.dest_qp_num = attributes->dest_qp_num;
  if ((mask & IBV_QP_RQ_PSN) != 0) pair.expected = attributes->rq_psn;
  if ((mask & IBV_QP_SQ_PSN) != 0) pair.sent_from = attributes->sq_psn;
  if ((mask & IBV_QP_STATE) == 0) return 0;
  if (attributes->qp_state == IBV_QPS_ERR) return break_pair(pair), 0;
  if (attributes->qp_state == IBV_QPS_RESET && fabric().settings.no_reset != 0) return EIO;
  if (attributes->qp_state == IBV_QPS_RESET) {
    pair.requests.clear();
    pair.receives.clear();
  }
  pair.state = attributes->qp_state;
  return 0;
}
FABRIC_EXPORT int ibv_destroy_qp(ibv_qp* handle) {
  const std::lock_guard guard(fabric().mutex);
  for (ibv_cq* queue : {handle->send_cq, handle->recv_cq}) {
    std::erase_if(static_cast<Queue*>(queue)->entries, [&](const ibv_wc& entry) { return entry.qp_num == handle->qp_num; });
  }
  fabric().pairs.erase(handle->qp_num);
  delete static_cast<Pair*>(handle);
  return 0;
}

FABRIC_EXPORT int ibv_get_async_event(ibv_context*, ibv_async_event*) { return errno = EAGAIN, -1; }
FABRIC_EXPORT void ibv_ack_async_event(ibv_async_event*) {}
FABRIC_EXPORT const char* ibv_event_type_str(ibv_event_type) { return "an event"; }
FABRIC_EXPORT const char* ibv_wc_status_str(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_REM_ACCESS_ERR:
      return "remote access error";
    case IBV_WC_RETRY_EXC_ERR:
      return "transport retry counter exceeded";
    default:
      return "an error";
  }
}
FABRIC_EXPORT int ibv_fork_init() { return 0; }
