// EqualBlocks: the layout of equal blocks, one after the other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include "hmc/communicator.h"

namespace hmc {

// Of up to 64 ranks it takes no memory but its own.
class EqualBlocks {
 public:
  EqualBlocks(std::uint32_t size, std::uint64_t each) : counts_(size, each, &memory_), displacements_(size, &memory_) {
    for (std::uint32_t r = 0; r < size; ++r) displacements_[r] = r * each;
  }
  EqualBlocks(const EqualBlocks&) = delete;
  EqualBlocks& operator=(const EqualBlocks&) = delete;
  [[nodiscard]] Member::Layout layout() const { return {counts_, displacements_}; }

 private:
  std::array<std::byte, 1024> space_;
  std::pmr::monotonic_buffer_resource memory_{space_.data(), space_.size()};
  std::pmr::vector<std::uint64_t> counts_, displacements_;
};

}  // namespace hmc
