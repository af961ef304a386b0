// ContextClosing: the end of a Context: first of its waits and its peers, in order, then of all that it owns. Owned by ContextImpl.
#pragma once

#include <atomic>
#include <list>
#include <mutex>

#include "hmc/deadline.h"
#include "hmc/status.h"

namespace hmc {

class ContextImpl;
class WaitWork;

class ContextClosing {
 public:
  explicit ContextClosing(ContextImpl& context) noexcept : context_(context) {}

  // Lock not held. Timeout: a peer may still access memory of this process, and the Context lives on (not with `force`); or
  // something was lost.
  Status close(Deadline deadline, bool force = false);

  // ---- any thread, lock held or not ----
  [[nodiscard]] bool begun() const noexcept { return begun_.load(std::memory_order_acquire); }
  [[nodiscard]] bool over() const noexcept;
  [[nodiscard]] static Status reason();  // for what ends with the Context

  // Every unfinished wait: the Context ends it before its own end. Engine lock held.
  [[nodiscard]] std::list<WaitWork*>& waits() noexcept { return waits_; }

 private:
  void shut_down();

  ContextImpl& context_;
  std::mutex mutex_;  // one thread closes, others wait for it
  std::atomic<bool> begun_{false};
  std::list<WaitWork*> waits_;
};

}  // namespace hmc
