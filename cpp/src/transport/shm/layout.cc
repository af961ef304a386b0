#include "transport/shm/layout.h"

#include <algorithm>
#include <bit>

namespace hmc::shm {

namespace {
constexpr std::size_t page = 4096;
}  // namespace

bool Sizes::valid() const noexcept {
  return std::has_single_bit(signal_bytes) && signal_bytes >= min_signal_bytes && signal_bytes <= max_ring_bytes &&
         slot_bytes % page == 0 && slot_bytes >= 2 * page && slot_bytes <= max_ring_bytes / slot_count;
}

Sizes sizes_for(std::size_t ring_bytes) noexcept {
  ring_bytes = std::clamp(ring_bytes, min_ring_bytes, max_ring_bytes);
  Sizes sizes;
  sizes.signal_bytes = std::max(min_signal_bytes, std::bit_floor(ring_bytes / 4));
  sizes.slot_bytes = (ring_bytes - sizes.signal_bytes) / slot_count / page * page;
  return sizes;
}

}  // namespace hmc::shm
