// RecentIds: the ids that were added last. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_set>

namespace hmc {

class RecentIds {
 public:
  static constexpr std::size_t most = 4096;

  void add(std::uint64_t id) {
    if (!ids_.insert(id).second) return;
    order_.push_back(id);
    if (order_.size() <= most) return;
    ids_.erase(order_.front());
    order_.pop_front();
  }
  [[nodiscard]] bool contains(std::uint64_t id) const { return ids_.contains(id); }

 private:
  std::unordered_set<std::uint64_t> ids_;
  std::deque<std::uint64_t> order_;  // the oldest first
};

}  // namespace hmc
