// DeviceCopies: the copies of one operation that a device runtime carries out.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>

#include "device/runtime.h"
#include "transport/run_cursor.h"

namespace hmc {

// Runtimes serve every Context of the process, so another Context's thread, without our engine lock, may be the one that completes
// a copy: this only counts, and the endpoint's poll() looks.
class DeviceCopies final : public Completion {
 public:
  // The runtime that copies between the two devices: the one that is not the CPU's. Errors: unsupported.
  static Result<DeviceRuntime*> runtime_between(const Device& a, const Device& b) { return runtime_for(a.is_cpu() ? b : a); }

  // Errors are kept as the outcome.
  void start(DeviceRuntime& runtime, const CopyOp& op) {
    pending_.fetch_add(1);
    if (Status status = runtime.copy(op, this); !status.ok()) complete(std::move(status));
  }
  // The memory of a run's two regions as one runtime reaches it.
  struct Ends {
    DeviceSpan local;
    DeviceSpan remote;
    bool apart = false;  // every block by a copy of its own: a kernel may not reach both
  };
  // Hands over what lies at the cursor, a block's start: one block, or some together as the runtime takes them well; the cursor
  // moves on. Returns bytes; 0: enough is under way.
  std::size_t hand(DeviceRuntime& runtime, RunCursor& cursor, const Ends& ends, bool to_remote, const StreamPoint* after);
  // Keeps `status` as the outcome of a copy that could not even be started.
  void refuse(Status status) {
    pending_.fetch_add(1);
    complete(std::move(status));
  }
  void complete(Status status) noexcept override {
    if (!status.ok()) {
      const std::lock_guard guard(mutex_);
      if (outcome_.ok()) outcome_ = std::move(status);
    }
    pending_.fetch_sub(1);  // the last access: the owner may be gone afterwards
  }
  // For the next copies. Nothing is pending.
  void reset() { outcome_ = {}; }
  [[nodiscard]] std::size_t pending() const noexcept { return pending_.load(); }
  [[nodiscard]] Status outcome() {
    const std::lock_guard guard(mutex_);
    return outcome_;
  }

 private:
  std::atomic<std::size_t> pending_{0};
  std::mutex mutex_;
  Status outcome_;
};

}  // namespace hmc
