// What the cards do. A connection executes what was posted on it in order while its owner polls (or arms) the completion queue, a
// few requests at a time, so that there is always something under way.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fabric/model.h"

namespace hmc::fabric {
namespace {

constexpr unsigned requests_per_poll = 4;
constexpr auto patience = std::chrono::milliseconds(100);

void notify(Queue& queue) {
  if (!queue.armed || queue.channel == nullptr) return;
  queue.armed = false;
  static_cast<Channel*>(queue.channel)->events.push_back(&queue);
  const std::uint64_t one = 1;
  static_cast<void>(!write(queue.channel->fd, &one, sizeof one));
}

void complete(Pair& pair, bool sent, std::uint64_t id, ibv_wc_status status, std::size_t bytes,
              const std::uint32_t* immediate = nullptr) {
  ibv_wc entry{};
  entry.wr_id = id;
  entry.status = status;
  entry.opcode = sent ? IBV_WC_SEND : IBV_WC_RECV;
  entry.byte_len = static_cast<std::uint32_t>(bytes);
  entry.qp_num = pair.qp_num;
  if (immediate != nullptr) {
    entry.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
    entry.wc_flags = IBV_WC_WITH_IMM;
    entry.imm_data = *immediate;
  }
  auto& queue = *static_cast<Queue*>(sent ? pair.send_cq : pair.recv_cq);
  queue.entries.push_back(entry);
  notify(queue);
}

}  // namespace

Fabric& fabric() {
  static auto* const made = new Fabric;
  return *made;
}

void break_pair(Pair& pair) {
  pair.state = IBV_QPS_ERR;
  const Card& card = fabric().cards[pair.device];
  if (card.hangs && !card.flushes) return;
  for (const Request& request : pair.requests) complete(pair, true, request.work.wr_id, IBV_WC_WR_FLUSH_ERR, 0);
  for (const auto& [work, part] : pair.receives) complete(pair, false, work.wr_id, IBV_WC_WR_FLUSH_ERR, 0);
  pair.requests.clear();
  pair.receives.clear();
}

namespace {

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
  if (!answers || peer.expected != pair.sent_from || peer.attributes.dest_qp_num != pair.qp_num ||
      fabric().cards[peer.device].failing || fabric().cards[peer.device].hangs)
    return Outcome::wait;
  const std::size_t bytes = request.part.length;
  const bool reads = request.work.opcode == IBV_WR_RDMA_READ;
  const bool announced = request.work.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
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
    if (announced && peer.receives.empty()) return Outcome::wait;
    const unsigned access = reads ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
    std::byte* far = reach(request.work.wr.rdma.rkey, request.work.wr.rdma.remote_addr, bytes, access, peer.pd);
    if (far == nullptr || (peer.attributes.qp_access_flags & access) == 0) return break_pair(peer), Outcome::refused;
    std::memcpy(reads ? near : far, reads ? far : near, bytes);
    if (announced) {
      const std::uint64_t id = peer.receives.front().first.wr_id;
      peer.receives.pop_front();
      complete(peer, false, id, IBV_WC_SUCCESS, bytes, &request.work.imm_data);
      ++fabric().immediates;
    }
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
    if (card.work_until_it_hangs != 0 && --card.work_until_it_hangs == 0) card.hangs = true;
    if (card.hangs) return;
    if (card.work_until != 0 && --card.work_until == 0) card.failing = true;
    Request& request = pair.requests.front();
    if (request.first_try == Clock::time_point{}) request.first_try = Clock::now();
    if (card.failing) return lose(pair, card);
    if (card.slowness.count() != 0 && Clock::now() - request.first_try < card.slowness) return;
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

}  // namespace

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

}  // namespace hmc::fabric
