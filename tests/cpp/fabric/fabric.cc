// The library: libibverbs's calls over copies inside one process. A connection executes what was posted on it in order while its
// owner polls (or arms) the completion queue, a few requests at a time, so that there is always something under way.
#include "fabric/fabric.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fabric/shadow.h"

#define FABRIC_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using hmc::fabric::Shadow;
using Clock = std::chrono::steady_clock;

constexpr unsigned max_devices = 4;
constexpr unsigned requests_per_poll = 4;
constexpr auto patience = std::chrono::milliseconds(100);
constexpr std::uint32_t max_inline = 220;

struct Channel : ibv_comp_channel {
  std::deque<ibv_cq*> events;
};
struct Queue : ibv_cq {
  std::deque<ibv_wc> entries;
  bool armed = false;
};
struct Region : ibv_mr {
  std::unique_ptr<Shadow> shadow;
  unsigned access = 0;
  bool device = false;
};
struct Request {
  ibv_send_wr work;
  ibv_sge part;
  std::vector<std::byte> inlined;
  Clock::time_point first_try{};
};
struct Pair : ibv_qp {
  unsigned device = 0;
  ibv_qp_attr attributes{};
  std::uint32_t sent_from = 0, expected = 0;  // packet sequence numbers that they started from
  std::deque<Request> requests;
  std::deque<std::pair<ibv_recv_wr, ibv_sge>> receives;
};
struct Card {
  ibv_device device{};
  std::uint64_t moved = 0;
  bool failing = false;
  std::uint64_t work_until = 0;
  std::uint32_t executed_after = 0;
};

struct Fabric {
  std::mutex mutex;
  FabricSettings settings{};
  std::array<Card, max_devices> cards;
  std::map<std::uint32_t, Pair*> pairs;
  std::map<std::uint32_t, Region*> regions;  // by key
  std::uint32_t last_pair = 100, last_key = 1000;
  unsigned device_regions = 0;
};
Fabric& fabric() {
  static auto* const made = new Fabric;
  return *made;
}

unsigned number_of(const ibv_context* context) { return static_cast<unsigned>(context->cmd_fd); }

void notify(Queue& queue) {
  if (!queue.armed || queue.channel == nullptr) return;
  queue.armed = false;
  static_cast<Channel*>(queue.channel)->events.push_back(&queue);
  const std::uint64_t one = 1;
  static_cast<void>(!write(queue.channel->fd, &one, sizeof one));
}

void complete(Pair& pair, bool sent, std::uint64_t id, ibv_wc_status status, std::size_t bytes) {
  ibv_wc entry{};
  entry.wr_id = id;
  entry.status = status;
  entry.opcode = sent ? IBV_WC_SEND : IBV_WC_RECV;
  entry.byte_len = static_cast<std::uint32_t>(bytes);
  entry.qp_num = pair.qp_num;
  auto& queue = *static_cast<Queue*>(sent ? pair.send_cq : pair.recv_cq);
  queue.entries.push_back(entry);
  notify(queue);
}

// Everything posted comes back.
void break_pair(Pair& pair) {
  pair.state = IBV_QPS_ERR;
  for (const Request& request : pair.requests) complete(pair, true, request.work.wr_id, IBV_WC_WR_FLUSH_ERR, 0);
  for (const auto& [work, part] : pair.receives) complete(pair, false, work.wr_id, IBV_WC_WR_FLUSH_ERR, 0);
  pair.requests.clear();
  pair.receives.clear();
}

std::byte* reach(std::uint32_t key, std::uint64_t address, std::size_t bytes, unsigned access, const ibv_pd* domain) {
  const auto found = fabric().regions.find(key);
  if (found == fabric().regions.end()) return nullptr;
  const Region& region = *found->second;
  const auto start = reinterpret_cast<std::uintptr_t>(region.addr);
  if (region.pd != domain || (region.access & access) != access || address < start || bytes > region.length ||
      address - start > region.length - bytes) {
    return nullptr;
  }
  return region.shadow->data() + (address - start);
}

enum class Outcome { done, wait, refused, wrong };

Outcome execute(Pair& pair, const Request& request) {
  const auto found = fabric().pairs.find(pair.attributes.dest_qp_num);
  if (found == fabric().pairs.end()) return Outcome::wait;
  Pair& peer = *found->second;
  const bool answers = peer.state == IBV_QPS_RTR || peer.state == IBV_QPS_RTS;
  if (!answers || peer.expected != pair.sent_from || peer.attributes.dest_qp_num != pair.qp_num || fabric().cards[peer.device].failing)
    return Outcome::wait;
  const std::size_t bytes = request.part.length;
  const bool reads = request.work.opcode == IBV_WR_RDMA_READ;
  std::byte* near = const_cast<std::byte*>(request.inlined.data());
  if (request.inlined.empty()) {
    near = reach(request.part.lkey, request.part.addr, bytes, reads ? unsigned{IBV_ACCESS_LOCAL_WRITE} : 0U, pair.pd);
    if (near == nullptr) return Outcome::wrong;
  }
  if (request.work.opcode == IBV_WR_SEND) {
    if (peer.receives.empty()) return Outcome::wait;
    const auto [work, part] = peer.receives.front();
    std::byte* far = reach(part.lkey, part.addr, part.length, IBV_ACCESS_LOCAL_WRITE, peer.pd);
    if (far == nullptr || bytes > part.length) return break_pair(peer), Outcome::wrong;
    std::memcpy(far, near, bytes);
    peer.receives.pop_front();
    complete(peer, false, work.wr_id, IBV_WC_SUCCESS, bytes);
  } else {
    const unsigned access = reads ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
    std::byte* far = reach(request.work.wr.rdma.rkey, request.work.wr.rdma.remote_addr, bytes, access, peer.pd);
    if (far == nullptr || (peer.attributes.qp_access_flags & access) == 0) return break_pair(peer), Outcome::refused;
    std::memcpy(reads ? near : far, reads ? far : near, bytes);
  }
  fabric().cards[pair.device].moved += bytes;
  return Outcome::done;
}

// Its port has failed: the peer may get what it is not told that it got.
void lose(Pair& pair, Card& card) {
  for (Request& request : pair.requests) {
    if (card.executed_after == 0 || request.work.opcode == IBV_WR_RDMA_READ) break;
    card.failing = false;
    const Outcome outcome = execute(pair, request);
    card.failing = true;
    if (outcome != Outcome::done) break;
    --card.executed_after;
  }
  complete(pair, true, pair.requests.front().work.wr_id, IBV_WC_RETRY_EXC_ERR, 0);
  pair.requests.pop_front();
  break_pair(pair);
}

void run(Pair& pair, unsigned most) {
  Card& card = fabric().cards[pair.device];
  for (unsigned i = 0; i < most && !pair.requests.empty() && pair.state == IBV_QPS_RTS; ++i) {
    if (card.work_until != 0 && --card.work_until == 0) card.failing = true;
    Request& request = pair.requests.front();
    if (request.first_try == Clock::time_point{}) request.first_try = Clock::now();
    if (card.failing) return lose(pair, card);
    const Outcome outcome = execute(pair, request);
    if (outcome == Outcome::wait) {
      if (Clock::now() - request.first_try > patience) lose(pair, card);
      return;
    }
    const std::uint64_t id = request.work.wr_id;
    const bool told = (request.work.send_flags & IBV_SEND_SIGNALED) != 0;
    const std::size_t bytes = request.part.length;
    pair.requests.pop_front();
    if (outcome == Outcome::done) {
      if (told) complete(pair, true, id, IBV_WC_SUCCESS, bytes);
      continue;
    }
    complete(pair, true, id, outcome == Outcome::refused ? IBV_WC_REM_ACCESS_ERR : IBV_WC_REM_INV_REQ_ERR, 0);
    return break_pair(pair);
  }
}

void run_all(const ibv_cq* queue, unsigned most) {
  std::vector<Pair*> mine;
  for (const auto& [number, pair] : fabric().pairs) {
    if (pair->send_cq == queue && !pair->requests.empty()) mine.push_back(pair);
  }
  for (Pair* pair : mine) run(*pair, most);
}

int poll_cq(ibv_cq* queue, int most, ibv_wc* out) {
  const std::lock_guard guard(fabric().mutex);
  run_all(queue, requests_per_poll);
  auto& entries = static_cast<Queue*>(queue)->entries;
  int count = 0;
  while (count < most && !entries.empty()) {
    out[count++] = entries.front();
    entries.pop_front();
  }
  return count;
}

int req_notify_cq(ibv_cq* queue, int) {
  const std::lock_guard guard(fabric().mutex);
  run_all(queue, ~0U);  // nobody polls from now on
  static_cast<Queue*>(queue)->armed = true;
  return 0;
}

int post_send(ibv_qp* handle, ibv_send_wr* work, ibv_send_wr** refused) {
  const std::lock_guard guard(fabric().mutex);
  auto& pair = *static_cast<Pair*>(handle);
  for (; work != nullptr; work = work->next) {
    if (pair.state != IBV_QPS_RTS && pair.state != IBV_QPS_ERR) return *refused = work, EINVAL;
    Request& request = pair.requests.emplace_back();
    request.work = *work;
    request.part = *work->sg_list;
    if ((work->send_flags & IBV_SEND_INLINE) != 0) {  // the processor takes the bytes: those of a device it cannot
      const auto* bytes = reinterpret_cast<const std::byte*>(request.part.addr);
      request.inlined.assign(bytes, bytes + request.part.length);
    }
  }
  if (pair.state == IBV_QPS_ERR) break_pair(pair);
  if (static_cast<Queue*>(pair.send_cq)->armed) run(pair, ~0U);
  return 0;
}

int post_recv(ibv_qp* handle, ibv_recv_wr* work, ibv_recv_wr** refused) {
  const std::lock_guard guard(fabric().mutex);
  auto& pair = *static_cast<Pair*>(handle);
  for (; work != nullptr; work = work->next) {
    if (pair.state == IBV_QPS_RESET) return *refused = work, EINVAL;
    pair.receives.emplace_back(*work, *work->sg_list);
  }
  if (pair.state == IBV_QPS_ERR) break_pair(pair);
  const auto sender = fabric().pairs.find(pair.attributes.dest_qp_num);  // that may have waited for it, with nobody polling
  if (sender != fabric().pairs.end() && static_cast<Queue*>(sender->second->send_cq)->armed) run(*sender->second, ~0U);
  return 0;
}

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
void mend_ports() {
  const std::lock_guard guard(fabric().mutex);
  for (Card& card : fabric().cards) {
    card.failing = false;
    card.work_until = card.executed_after = 0;
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

}  // namespace

FABRIC_EXPORT const FabricControls* hmc_fabric_controls() {
  static const FabricControls controls{configure, fail_port, mend_ports, bytes_moved, device_regions};
  return &controls;
}

#undef ibv_query_port
#undef ibv_reg_mr

FABRIC_EXPORT ibv_device** ibv_get_device_list(int* count) {
  const std::lock_guard guard(fabric().mutex);
  const unsigned devices = fabric().settings.devices == 0 ? 2 : std::min(fabric().settings.devices, max_devices);
  auto** list = new ibv_device*[devices + 1]{};
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
  out->state = IBV_PORT_ACTIVE;
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
  if (hmc::fabric::readable(address, bytes))
    return add_region(domain, address, bytes, access, Shadow::of_host(address), false);
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
  auto* queue = new Queue;
  queue->context = context;
  queue->channel = channel;
  queue->cqe = entries;
  return queue;
}
FABRIC_EXPORT int ibv_destroy_cq(ibv_cq* queue) {
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
