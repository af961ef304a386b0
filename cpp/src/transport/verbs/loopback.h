// Loopback: a port connected to itself, to try what was registered before anything is trusted to it.
#pragma once

#include <memory>

#include "transport/verbs/queue_pair.h"

namespace hmc::verbs {

// One thread at a time; no engine lock: it has a completion queue of its own.
class Loopback {
 public:
  static Result<std::unique_ptr<Loopback>> create(Nic& nic);
  ~Loopback();
  Loopback(const Loopback&) = delete;
  Loopback& operator=(const Loopback&) = delete;

  // Bytes of registered memory, by the card: from `near` to `far`, or the other way. Waits for the end, seconds at most.
  struct Place {
    void* data;
    std::uint32_t key;  // near: the local one; far: the remote one
  };
  Status write(const Place& near, const Place& far, std::size_t bytes) { return move(IBV_WR_RDMA_WRITE, near, far, bytes); }
  Status read(const Place& near, const Place& far, std::size_t bytes) { return move(IBV_WR_RDMA_READ, near, far, bytes); }

 private:
  explicit Loopback(Nic& nic) noexcept : nic_(nic) {}
  Status move(ibv_wr_opcode opcode, const Place& near, const Place& far, std::size_t bytes);

  Nic& nic_;
  std::unique_ptr<CompletionQueues::Queue> queue_;
  std::unique_ptr<QueuePair> requester_;
  std::unique_ptr<QueuePair> target_;
};

}  // namespace hmc::verbs
