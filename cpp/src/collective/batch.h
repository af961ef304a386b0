// BatchState: the calls of one thread that are to be carried out together, and their Work.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "collective/address_ranges.h"
#include "collective/batch_pack.h"
#include "collective/communicator_state.h"
#include "collective/execute.h"
#include "device/runtime.h"
#include "hmc/batch.h"

namespace hmc {

// Collects the calls of one thread. Any thread may start or destroy it meanwhile. Without the engine lock.
class BatchState {
 public:
  // Keeps a batch from ending. Destroy objects of a binding that were to be added after this: their destructors take locks.
  class Open {
   public:
    Open() noexcept = default;
    Open(BatchState& batch, std::unique_lock<std::mutex> lock) noexcept : lock_(std::move(lock)), batch_(&batch) {}
    explicit operator bool() const noexcept { return batch_ != nullptr; }
    BatchState* operator->() const noexcept { return batch_; }

   private:
    std::unique_lock<std::mutex> lock_;
    BatchState* batch_ = nullptr;
  };

  // Errors: invalid_argument: the thread has another one.
  static Result<std::unique_ptr<BatchState>> open(std::shared_ptr<CommunicatorState> communicator);
  ~BatchState();
  BatchState(const BatchState&) = delete;
  BatchState& operator=(const BatchState&) = delete;

  // This thread's, if it collects the calls of `group`.
  [[nodiscard]] static Open on(const Group& group) noexcept {
    return opened.load(std::memory_order_relaxed) == 0 ? Open() : own_on(group);
  }
  // invalid_argument if this thread collects the calls of `group`. `instead`: what to do.
  [[nodiscard]] static Status refuse(const Group& group, std::string_view call, std::string_view instead);

  // The shares of local Members in one call: all or none. Errors: invalid_argument (an overlap with an earlier call), device.
  Status add(std::span<CollectiveCall> shares);
  void add(std::shared_ptr<WorkState> message) { messages_.push_back(std::move(message)); }
  [[nodiscard]] std::size_t size() const noexcept;

  // Both end the collecting; at most one of them, once.
  Result<std::shared_ptr<WorkState>> start();
  Status run(Deadline deadline);

 private:
  // The batch that a thread has open. Outlives the thread for one that ends on another.
  struct Slot;
  static constinit thread_local Slot* here;            // null until the thread opens its first one
  static constinit std::atomic<std::uint32_t> opened;  // batches of all threads: spares most calls a look at the thread's own
  [[nodiscard]] static Open own_on(const Group& group) noexcept;

  explicit BatchState(std::shared_ptr<CommunicatorState> communicator, std::shared_ptr<Slot> slot);
  struct Started;
  Result<Started> launch(Deadline deadline);
  // Errors: device, timeout, cancelled (interrupted).
  Result<std::vector<Launch>> ready_launches(Deadline deadline);
  [[nodiscard]] Status fits(const CollectiveCall& call) const;
  // What a pack copies from and to is ready after these.
  Status mark_streams(const CollectiveCall& call);
  void close() noexcept;

  const std::shared_ptr<CommunicatorState> communicator_;
  const std::shared_ptr<Slot> slot_;
  const bool packs_;  // all Members are CPUs
  std::vector<CollectiveCall> calls_;
  AddressRanges read_, written_;  // of the calls: most calls are not compared with each other one
  std::vector<std::shared_ptr<WorkState>> messages_;
  std::vector<std::shared_ptr<StreamPoint>> streams_;
};

}  // namespace hmc
