#include "transport/verbs/loopback.h"

#include <sched.h>

#include <string>

#include "hmc/deadline.h"

namespace hmc::verbs {
namespace {

constexpr unsigned entries = 8;
constexpr double patience_seconds = 10;

}  // namespace

Result<std::unique_ptr<Loopback>> Loopback::create(Nic& nic) {
  auto made = std::unique_ptr<Loopback>(new Loopback(nic));
  HMC_ASSIGN(made->queue_, nic.queues().create_private(2 * entries));
  HMC_ASSIGN(made->requester_, QueuePair::create(nic, QueuePair::Role::requester, entries, 1, 0, made->queue_.get()));
  HMC_ASSIGN(made->target_, QueuePair::create(nic, QueuePair::Role::target, 1, 1, 0, made->queue_.get()));
  HMC_TRY(made->target_->connect(nic.info(), made->requester_->number(), 0, {}));
  HMC_TRY(made->requester_->connect(nic.info(), made->target_->number(), 0, {}));
  return made;
}

Loopback::~Loopback() {
  requester_.reset();
  target_.reset();
  nic_.queues().destroy(std::move(queue_));
}

Status Loopback::move(ibv_wr_opcode opcode, const Place& near, const Place& far, std::size_t bytes) {
  ibv_sge part{reinterpret_cast<std::uintptr_t>(near.data), static_cast<std::uint32_t>(bytes), near.key};
  ibv_send_wr work{};
  work.sg_list = &part;
  work.num_sge = 1;
  work.opcode = opcode;
  work.send_flags = IBV_SEND_SIGNALED;
  work.wr.rdma.remote_addr = reinterpret_cast<std::uintptr_t>(far.data);
  work.wr.rdma.rkey = far.key;
  ibv_send_wr* refused = nullptr;
  if (const int error = ibv_post_send(requester_->handle(), &work, &refused); error != 0) {
    return Status(Code::transport, nic_.name() + " refused a work request", error);
  }
  ibv_wc completion{};
  const Deadline deadline = Deadline::after_seconds(patience_seconds);
  while (ibv_poll_cq(queue_->handle, 1, &completion) <= 0) {
    if (deadline.passed()) return Status(Code::timeout, nic_.name() + " does not answer itself");
    sched_yield();
  }
  if (completion.status == IBV_WC_SUCCESS) return {};
  return Status(Code::transport, nic_.name() + ": " + nic_.api().wc_status_str(completion.status), completion.status);
}

}  // namespace hmc::verbs
