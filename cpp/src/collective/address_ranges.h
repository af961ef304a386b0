// AddressRanges: which addresses some arrays have together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

#include "hmc/peer.h"

namespace hmc {

// Devices are not told apart: equal addresses of two devices count as an overlap. One thread at a time.
class AddressRanges {
 public:
  [[nodiscard]] bool overlap(const MemoryView& view) const {
    if (view.bytes == 0) return false;
    const auto after = end_by_start_.lower_bound(start_of(view) + view.bytes);
    return after != end_by_start_.begin() && std::prev(after)->second > start_of(view);
  }
  void add(const MemoryView& view) {
    if (view.bytes == 0) return;
    std::uintptr_t start = start_of(view), end = start + view.bytes;
    auto next = end_by_start_.upper_bound(start);
    if (next != end_by_start_.begin() && std::prev(next)->second >= start) --next;
    while (next != end_by_start_.end() && next->first <= end) {
      start = std::min(start, next->first);
      end = std::max(end, next->second);
      next = end_by_start_.erase(next);
    }
    end_by_start_.emplace_hint(next, start, end);
  }

 private:
  static std::uintptr_t start_of(const MemoryView& view) { return reinterpret_cast<std::uintptr_t>(view.data); }

  std::map<std::uintptr_t, std::uintptr_t> end_by_start_;  // apart from each other
};

}  // namespace hmc
