// Running: the collectives of one group that this process has started and not ended. Engine lock held throughout.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "hmc/status.h"

namespace hmc {

class CollectiveWork;

class Running {
 public:
  void add(CollectiveWork& work) { works_.push_back(&work); }
  // They mostly end in the order in which they began.
  void remove(CollectiveWork& work) noexcept {
    if (const auto found = std::ranges::find(works_, &work); found != works_.end()) works_.erase(found);
  }
  // That of local rank `rank` with this number; null if none.
  [[nodiscard]] CollectiveWork* find(std::uint32_t rank, std::uint64_t sequence) const noexcept;
  // Ends those for which `concerns`.
  void fail_if(const std::function<bool(const CollectiveWork&)>& concerns, const Status& reason);

 private:
  std::vector<CollectiveWork*> works_;
};

}  // namespace hmc
