// CompletionQueue: completed Works as readiness of one file descriptor, for event loops (asyncio, epoll, libuv).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "hmc/export.h"
#include "hmc/status.h"
#include "hmc/work.h"

namespace hmc {

class CompletionQueueState;  // progress layer

// Thread rules: watch() from any thread; drain() from one thread at a time (the loop's).
class HMC_API CompletionQueue {
 public:
  CompletionQueue() noexcept = default;
  // Errors: out_of_memory (no descriptor left).
  static Result<CompletionQueue> create();
  // Readable while completed tokens wait to be drained. Owned by the queue; do not close or write it.
  [[nodiscard]] int fd() const noexcept;
  // Queues `token` once when `work` completes (at once if it is complete). The Work is kept until
  // then; it does not keep the queue.
  void watch(const Work& work, std::uint64_t token) const;
  // Takes every queued token and clears readiness. Does not block.
  [[nodiscard]] std::vector<std::uint64_t> drain() const;

 private:
  std::shared_ptr<CompletionQueueState> state_;
};

}  // namespace hmc
