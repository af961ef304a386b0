// PinnedRanges: host memory that kernels may read and write.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace hmc {

// Memory that HMC has pinned for a vendor whose devices all reach it at the host's address. Memory pinned by other code is not in
// it: it may be unpinned at any time. What HMC pins is its own, and every operation on it keeps it pinned until its end. Any
// thread.
class PinnedRanges {
 public:
  void add(const void* begin, std::size_t bytes) {
    const std::scoped_lock lock(mutex_);
    bytes_[static_cast<const std::byte*>(begin)] = bytes;
  }
  void remove(const void* begin) {
    const std::scoped_lock lock(mutex_);
    bytes_.erase(static_cast<const std::byte*>(begin));
  }
  // Whether all of it lies in one of them.
  [[nodiscard]] bool contains(const std::byte* begin, const std::byte* end) const {
    const std::scoped_lock lock(mutex_);
    auto after = bytes_.upper_bound(begin);
    if (after == bytes_.begin()) return false;
    const auto& [first, bytes] = *--after;
    return end <= first + bytes;
  }

 private:
  mutable std::mutex mutex_;
  std::map<const std::byte*, std::size_t> bytes_;  // by where each begins
};

}  // namespace hmc
