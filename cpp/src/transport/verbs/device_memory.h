// DeviceMemory: registers memory of devices with network cards.
//
// By a dma-buf of the vendor's driver; where there is none, by its address, which works where the vendor lends its memory to the
// RDMA core. Kernels exist in which either succeeds and then moves nothing, so neither is believed: the first time for a card, a
// device and a way, bytes are written to and read from memory of that device through the card, and compared.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "device/runtime.h"
#include "transport/verbs/nic.h"

namespace hmc::verbs {

// Bytes of a vendor's memory that are registered in this process, where it has a limit. Destruction gives them back.
class BudgetShare {
 public:
  // Errors: would_block (no room until others are gone), unsupported (more than the limit).
  static Result<std::unique_ptr<BudgetShare>> take(const Device& device, std::size_t bytes);
  ~BudgetShare();
  BudgetShare(const BudgetShare&) = delete;
  BudgetShare& operator=(const BudgetShare&) = delete;

 private:
  BudgetShare(std::string vendor, std::size_t bytes) : vendor_(std::move(vendor)), bytes_(bytes) {}
  std::string vendor_;
  std::size_t bytes_;
};

// Any thread.
class DeviceMemory {
 public:
  // Errors: unsupported, with what was tried.
  Result<ibv_mr*> add(Nic& nic, const DeviceSpan& span, unsigned access);

 private:
  enum class Way : std::uint8_t { dma_buf, address };
  static Result<ibv_mr*> add_by(Way way, const Nic& nic, const DeviceSpan& span, unsigned access);
  Status trusted(Way way, Nic& nic, const Device& device);
  static Status try_out(Way way, Nic& nic, const Device& device);

  std::mutex mutex_;
  std::map<std::tuple<const Nic*, Device, Way>, Status> tried_;
};

}  // namespace hmc::verbs
