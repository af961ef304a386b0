// All-to-all of small blocks by relay (Bruck): a block reaches its target over the set bits of the distance, so a rank talks to
// ceil(log2 n) others instead of n - 1, and each block travels up to as many times.
#pragma once

#include "collective/plan.h"

namespace hmc {

Schedule plan_relay(std::uint32_t rank, std::uint32_t size, std::uint64_t block);

}  // namespace hmc
