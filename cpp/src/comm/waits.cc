#include "comm/waits.h"

namespace hmc {

WaitWork::WaitWork(ContextImpl& context)
    : WorkState(context.engine()), weak_context_(std::static_pointer_cast<ContextImpl>(context.shared_from_this())) {}

void WaitWork::begin(Deadline deadline) {
  if (done()) return;
  accepted();
  listed_ = weak_context_.lock().get();
  auto& waits = listed_->closing().waits();
  place_ = waits.insert(waits.end(), this);
  if (deadline.passed()) return expire();
  if (!deadline.is_never()) {
    timer_ = engine()->at(deadline, [this] {
      timer_ = 0;
      expire();
    });
  }
}

void WaitWork::end(Status reason) {
  leave();
  complete(std::move(reason));
}

void WaitWork::released() noexcept {
  if (timer_ != 0) engine()->cancel_timer(std::exchange(timer_, 0));
  if (listed_ != nullptr) std::exchange(listed_, nullptr)->closing().waits().erase(place_);
}

Status WaitWork::cancel_locked() {
  end(Status(Code::cancelled, "cancelled; nothing was consumed"));
  return {};
}

Status WaitWork::withdraw_locked() {
  if (!done()) return cancel_locked();
  if (!status().ok() || withdrawn_ || !put_back()) return {Code::invalid_argument, "the operation is already complete"};
  withdrawn_ = true;
  engine()->wake_waiters();
  return {};
}

}  // namespace hmc
