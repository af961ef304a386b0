// Parts: how arrays are divided among the ranks that reduce them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hmc {

struct Part {
  std::uint64_t offset = 0;  // bytes
  std::uint64_t bytes = 0;
};

// Equal parts of whole elements; the first ones have one element more where they do not divide. `element`: bytes of one.
inline std::vector<Part> equal_parts(std::uint32_t size, std::uint64_t bytes, std::size_t element) {
  std::vector<Part> parts;
  const std::uint64_t elements = bytes / element, each = elements / size, more = elements % size;
  std::uint64_t at = 0;
  for (std::uint32_t r = 0; r < size; ++r) {
    const std::uint64_t part = (each + (r < more ? 1 : 0)) * element;
    parts.push_back({at, part});
    at += part;
  }
  return parts;
}

}  // namespace hmc
