#include "collective/running.h"

#include <memory>

#include "collective/execute.h"

namespace hmc {

CollectiveWork* Running::find(std::uint32_t rank, std::uint64_t sequence) const noexcept {
  for (CollectiveWork* work : works_) {
    if (work->rank() == rank && work->sequence() == sequence) return work;
  }
  return nullptr;
}

void Running::fail_if(const std::function<bool(const CollectiveWork&)>& concerns, const Status& reason) {
  // An end takes it off the list, and perhaps its last handle.
  std::vector<std::shared_ptr<WorkState>> hit;
  for (CollectiveWork* work : works_) {
    if (concerns(*work)) hit.push_back(work->shared_from_this());
  }
  for (const auto& work : hit) static_cast<CollectiveWork&>(*work).fail(reason);
}

}  // namespace hmc
