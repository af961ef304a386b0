// Waits in flight as Works: for a notification, a peer, a connection, a published buffer. Engine lock held throughout.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "comm/context_impl.h"
#include "progress/work_state.h"

namespace hmc {

// Errors: invalid_argument.
Status check_published_name(std::string_view name);
// What blocking calls and Works say at their deadline.
Status not_published_in_time(PeerImpl& peer, std::string_view name);

// Ends at the latest with its deadline, which needs no thread, or with the Context.
class WaitWork : public WorkState {
 public:
  explicit WaitWork(ContextImpl& context);
  // The wait stands in its queue. May end at once.
  void begin(Deadline deadline);
  // Leaves the queue and completes.
  void end(Status reason);
  Status cancel_locked() final;
  Status withdraw_locked() final;

 protected:
  // Out of its queue; the wait ends without a result.
  virtual void leave() noexcept = 0;
  [[nodiscard]] virtual Status too_late() const = 0;
  virtual void expire() { end(too_late()); }
  // It completed: returns what it consumed. False: nothing of it can be returned (any more).
  virtual bool put_back() { return false; }
  void released() noexcept override;
  // The Context while it is open; null once closed.
  [[nodiscard]] std::shared_ptr<ContextImpl> context() const { return weak_context_.lock(); }

 private:
  const std::weak_ptr<ContextImpl> weak_context_;
  ContextImpl* listed_ = nullptr;  // stands in its list of waits, which the Context ends before its own end
  std::list<WaitWork*>::iterator place_;
  Engine::TimerId timer_ = 0;
  bool withdrawn_ = false;
};

// Delivers a value, which WorkOf<T>::take() fetches.
template <class T>
class ResultWork : public WaitWork {
 public:
  using WaitWork::WaitWork;
  // Waits for the end, then delivers. Where the waiting thread is interrupted the operation is withdrawn.
  Result<T> await() {
    if (const Status ended = wait(Deadline::never()); !done()) {
      static_cast<void>(withdraw());
      return ended;
    }
    return take();
  }
  Result<T> take() {
    if (engine()->forked()) return forked_status();
    const auto lock = engine()->lock();
    if (!done()) return Status(Code::would_block, "the operation is still in flight; wait for it before take()");
    HMC_TRY(status());
    auto value = take_locked();
    if (!value) return Status(Code::invalid_argument, "the value of this Work was taken before, or withdrawn");
    return *std::move(value);
  }

 protected:
  virtual std::optional<T> take_locked() = 0;  // at most once
};

}  // namespace hmc
