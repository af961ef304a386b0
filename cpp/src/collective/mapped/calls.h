// How a reduction is carried out by kernels over mapped memory. Pure.
#pragma once

#include <cstdint>

#include "collective/fused/pass.h"
#include "device/exchange.h"

namespace hmc::mapped {

// Whole inputs of up to that many bytes go to every rank that wants results: one exchange. Of larger ones each rank reduces a part:
// two exchanges.
[[nodiscard]] std::uint64_t most_whole_bytes(std::uint32_t ranks) noexcept;

// The share of `rank`, but for its memory, its numbers and its arithmetic. `ranks`: 2 to most_exchange_ranks.
[[nodiscard]] ExchangeCall exchange_call(std::uint32_t rank, std::uint32_t ranks, const fused::Plan& plan) noexcept;

}  // namespace hmc::mapped
