#include "comm/onesided/work_list.h"

#include <memory>
#include <vector>

#include "comm/onesided/transfer.h"

namespace hmc {

void WorkList::link(TransferWork& work) noexcept {
  work.next_ = first_;
  work.previous_ = nullptr;
  if (first_ != nullptr) first_->previous_ = &work;
  first_ = &work;
}

void WorkList::unlink(TransferWork& work) noexcept {
  if (work.previous_ == nullptr && first_ != &work) return;
  (work.previous_ == nullptr ? first_ : work.previous_->next_) = work.next_;
  if (work.next_ != nullptr) work.next_->previous_ = work.previous_;
  work.next_ = work.previous_ = nullptr;
}

bool WorkList::uses(const RemoteRegion* region) const noexcept {
  for (const TransferWork* work = first_; work != nullptr; work = work->next_) {
    if (work->uses(region)) return true;
  }
  return false;
}

void WorkList::stop(const Status& reason, const std::function<bool(const TransferWork&)>& which) const {
  std::vector<std::shared_ptr<WorkState>> selected;
  for (TransferWork* work = first_; work != nullptr; work = work->next_) {
    if (which(*work)) selected.push_back(work->shared_from_this());
  }
  for (const auto& work : selected) static_cast<TransferWork&>(*work).stop(reason);
}

void WorkList::decide() const {
  for (TransferWork* work = first_; work != nullptr;) {
    const auto holder = work->shared_from_this();
    work = work->decide() ? first_ : work->next_;
  }
}

void WorkList::abandon(const Status& reason) {
  for (TransferWork* work = first_; work != nullptr; work = first_) {
    const auto holder = work->shared_from_this();
    work->abandon(reason);
    if (first_ == work) unlink(*work);
  }
}

}  // namespace hmc
