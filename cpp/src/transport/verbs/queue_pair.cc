#include "transport/verbs/queue_pair.h"

#include <algorithm>
#include <cerrno>
#include <string>

namespace hmc::verbs {
namespace {

// A send that finds no receive: credits see that it does not happen between honest ends. 7 would be for ever.
constexpr std::uint8_t receiver_not_ready_timer = 20;  // 10 ms
constexpr std::uint8_t receiver_not_ready_retries = 6;
constexpr std::uint8_t hops = 64;

}  // namespace

Result<std::unique_ptr<QueuePair>> QueuePair::create(Nic& nic, Role role, unsigned sends, unsigned receives, unsigned inline_bytes,
                                                     CompletionQueues::Queue* queue) {
  auto pair = std::unique_ptr<QueuePair>(new QueuePair(nic, role));
  pair->queue_ = queue;
  if (queue == nullptr) {
    HMC_ASSIGN(pair->queue_, nic.queues().reserve(sends + receives));
  }
  pair->entries_ = sends + receives;
  ibv_qp_init_attr attributes{};
  attributes.send_cq = pair->queue_->handle;
  attributes.recv_cq = pair->queue_->handle;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap.max_send_wr = sends;
  attributes.cap.max_recv_wr = receives;
  attributes.cap.max_send_sge = 1;
  attributes.cap.max_recv_sge = 1;
  attributes.cap.max_inline_data = inline_bytes;
  pair->handle_ = nic.api().create_qp(nic.domain(), &attributes);
  if (pair->handle_ == nullptr && inline_bytes != 0) {  // not every device can, and some say so only here
    attributes.cap.max_inline_data = 0;
    pair->handle_ = nic.api().create_qp(nic.domain(), &attributes);
  }
  if (pair->handle_ == nullptr) {
    return errno_status(nic.name() + ": making a queue pair of " + std::to_string(sends) + " sends and " +
                            std::to_string(receives) +
                            " receives (out of queue pairs or of memory that may be locked? HMC_VERBS_QUEUE_PAIRS=1 "
                            "and HMC_VERBS_RAILS=1 need least of both)",
                        errno);
  }
  pair->inline_bytes_ = std::min<std::size_t>(attributes.cap.max_inline_data, inline_bytes);
  HMC_TRY(pair->restart());
  return pair;
}

QueuePair::~QueuePair() {
  if (nic_.forked()) return;
  if (handle_ != nullptr) nic_.api().destroy_qp(handle_);
  if (queue_ != nullptr) CompletionQueues::release(*queue_, entries_);
}

Status QueuePair::modify(ibv_qp_attr& attributes, int mask, const char* to) {
  const int error = nic_.api().modify_qp(handle_, &attributes, mask);
  if (error == 0) return {};
  return Status(Code::transport, nic_.name() + ": a queue pair cannot be moved to " + to, error);
}

Status QueuePair::restart() {
  ibv_qp_attr attributes{};
  if (handle_->state != IBV_QPS_RESET) {
    attributes.qp_state = IBV_QPS_RESET;
    HMC_TRY(modify(attributes, IBV_QP_STATE, "RESET"));
  }
  attributes = {};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = nic_.port();
  attributes.qp_access_flags = role_ == Role::target ? static_cast<unsigned>(IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE) : 0U;
  return modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT");
}

Status QueuePair::flush() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  return modify(attributes, IBV_QP_STATE, "ERROR");
}

Status QueuePair::connect(const PortInfo& peer, std::uint32_t number, std::uint32_t sequence, const Patience& patience) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = static_cast<ibv_mtu>(std::min(peer.mtu, nic_.info().mtu));
  attributes.dest_qp_num = number;
  attributes.rq_psn = sequence;  // of a requester nobody asks anything: any number is right
  attributes.max_dest_rd_atomic = nic_.info().read_atom;
  attributes.min_rnr_timer = receiver_not_ready_timer;
  attributes.ah_attr.dlid = peer.lid;
  attributes.ah_attr.port_num = nic_.port();
  if (peer.ethernet) {
    attributes.ah_attr.is_global = 1;
    std::copy(peer.gid.begin(), peer.gid.end(), attributes.ah_attr.grh.dgid.raw);
    attributes.ah_attr.grh.sgid_index = nic_.gid_index();
    attributes.ah_attr.grh.hop_limit = hops;
    attributes.ah_attr.grh.traffic_class = patience.traffic_class;
  }
  HMC_TRY(modify(attributes,
                 IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                     IBV_QP_MIN_RNR_TIMER,
                 "RTR"));
  if (role_ == Role::target) return {};  // it answers, and asks nothing itself
  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = patience.timeout;
  attributes.retry_cnt = patience.retries;
  attributes.rnr_retry = receiver_not_ready_retries;
  attributes.sq_psn = sequence;
  attributes.max_rd_atomic = std::clamp<std::uint8_t>(peer.read_atom, 1, nic_.max_reads());
  return modify(attributes,
                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                "RTS");
}

}  // namespace hmc::verbs
