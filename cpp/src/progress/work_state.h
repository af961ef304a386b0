// WorkState: the shared state behind Work handles.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/completion.h"
#include "hmc/work.h"
#include "progress/device_order.h"
#include "progress/engine.h"

namespace hmc {

// Keeps itself alive from accepted() until complete(). Operations derive from it or own it.
class WorkState : public Completion, public std::enable_shared_from_this<WorkState> {
 public:
  explicit WorkState(std::shared_ptr<Engine> engine) noexcept;
  virtual ~WorkState();

  // ---- engine lock held ----
  // Called once the operation is under way: holds a reference to itself until complete().
  void accepted();
  // Exactly once (later calls change nothing). Stores the outcome, releases waiters, runs hooks, hands callbacks to the dispatcher,
  // calls released(), drops the reference that accepted() took: if that was the last one, the operation ends here, under the lock.
  void complete(Status status) noexcept override;
  // Stops the operation if it can be stopped (see Work::cancel). Default: unsupported.
  virtual Status cancel_locked();
  // As cancel_locked(), also once complete: see Work::withdraw. Default: invalid_argument once complete.
  virtual Status withdraw_locked();
  // Null: no device carries it out.
  [[nodiscard]] virtual std::shared_ptr<DeviceOrder> device_order() { return nullptr; }

  // ---- any thread ----
  [[nodiscard]] bool done() const noexcept { return done_.load(std::memory_order_acquire) != 0; }
  [[nodiscard]] const Status& status() const noexcept { return status_; }   // once done
  [[nodiscard]] const MessageInfo& info() const noexcept { return info_; }  // once done
  Status wait(Deadline deadline);
  void then(std::function<void(const Status&)> callback);
  Status cancel();
  Status withdraw();
  [[nodiscard]] const std::shared_ptr<Engine>& engine() const noexcept { return engine_; }
  // Counts it in EngineCore::unattended until it completes. Idempotent. Engine lock held; not done.
  void leave_unattended() noexcept;
  // Runs under the engine lock right at completion; for CompletionQueue and internal chaining. At once if done.
  void on_complete_locked(std::function<void(const Status&)> hook);

 protected:
  // complete() calls it last, engine lock held: drop buffers, regions, owners. An owner whose end runs user code (a Python
  // reference) or takes other locks goes to engine()->retire(), which drops it without the lock.
  virtual void released() noexcept {}
  MessageInfo info_;

 private:
  friend std::shared_ptr<WorkState> completed_work(std::shared_ptr<Engine> engine, Status status);

  std::shared_ptr<Engine> engine_;
  std::atomic<std::uint32_t> done_{0};
  Status status_;
  std::function<void(const Status&)> hook_;                // the first one: most operations have no other
  std::vector<std::function<void(const Status&)>> hooks_;  // the others
  std::vector<std::function<void(const Status&)>> callbacks_;
  std::shared_ptr<WorkState> self_;
  bool unattended_ = false;
};

// A Work that is complete from the start. Any thread, lock held or not.
std::shared_ptr<WorkState> completed_work(std::shared_ptr<Engine> engine, Status status = {});

}  // namespace hmc
