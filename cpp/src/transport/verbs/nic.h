// Nic: one active port of an RDMA device: its protection domain and its completion queues.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "progress/engine.h"
#include "transport/verbs/api.h"
#include "transport/verbs/completion_queues.h"
#include "transport/verbs/wire.h"

namespace hmc::verbs {

class Nic {
 public:
  // Every active port of the devices that HMC_NICS allows. Those that cannot be used are named in `problems`.
  static std::vector<std::unique_ptr<Nic>> open_all(const Api& api, const std::shared_ptr<Engine>& engine, std::string& problems);
  ~Nic();
  Nic(const Nic&) = delete;
  Nic& operator=(const Nic&) = delete;

  [[nodiscard]] const Api& api() const noexcept { return api_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const PortInfo& info() const noexcept { return info_; }
  [[nodiscard]] std::uint8_t port() const noexcept { return port_; }
  [[nodiscard]] bool active() const noexcept;  // asks the card
  [[nodiscard]] std::uint8_t gid_index() const noexcept { return gid_index_; }
  [[nodiscard]] std::size_t max_message() const noexcept { return max_message_; }
  [[nodiscard]] std::uint8_t max_reads() const noexcept { return max_reads_; }  // that it may have under way as a requester
  [[nodiscard]] ibv_pd* domain() const noexcept { return domain_; }
  [[nodiscard]] CompletionQueues& queues() noexcept { return queues_; }
  // Did this process fork from the one that opened it? Then nothing of it may be called: the kernel's objects are the parent's.
  [[nodiscard]] bool forked() const noexcept { return engine_->forked(); }

  // Any thread. Errors say which limit it was.
  Result<ibv_mr*> register_memory(void* data, std::size_t bytes, unsigned access) const;
  // What a vendor's driver exported of `bytes` at `data`.
  Result<ibv_mr*> register_dma_buf(const Blob& exported, void* data, std::size_t bytes, unsigned access) const;
  [[nodiscard]] bool takes_dma_buf() const noexcept { return dma_buf_; }
  [[nodiscard]] bool takes_peer_memory() const noexcept { return peer_memory_; }
  [[nodiscard]] int numa_node() const noexcept { return numa_node_; }  // -1: unknown

 private:
  Nic(const Api& api, std::shared_ptr<Engine> engine, std::string name)
      : api_(api), engine_(std::move(engine)), name_(std::move(name)) {}
  Status open(ibv_device* device, std::uint8_t port, std::uint8_t index);
  Status choose_gid(int table_length);
  void ask_for_devices();

  const Api& api_;
  std::shared_ptr<Engine> engine_;
  std::string name_;
  PortInfo info_;
  std::uint8_t port_ = 0;
  std::uint8_t gid_index_ = 0;
  std::uint8_t max_reads_ = 1;
  std::size_t max_message_ = 0;
  int numa_node_ = -1;
  bool dma_buf_ = false;
  bool peer_memory_ = false;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  CompletionQueues queues_{api_, *engine_, name_};
  // The library's descriptors, known to the fork handler: a child that held them would keep our queue pairs alive after our death.
  std::vector<UniqueFd> inherited_;
};

}  // namespace hmc::verbs
