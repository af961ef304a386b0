// How a collective is carried out by kernels over mapped memory. Pure.
#pragma once

#include <cstdint>

#include "collective/areas.h"
#include "collective/fused/pass.h"
#include "collective/fused/spread.h"
#include "device/exchange.h"

namespace hmc::mapped {

// Whole inputs of up to that many bytes go to every rank that wants results: one exchange. Of larger ones each rank reduces a part:
// two exchanges.
[[nodiscard]] std::uint64_t most_whole_bytes(std::uint32_t ranks) noexcept;

// Whether HMC chooses kernels for a call of that kind with `bytes`, as EqualCall has them: two ranks are as fast by their devices'
// copy engines where blocks are long.
[[nodiscard]] bool carries(CallKind kind, std::uint32_t ranks, std::uint64_t bytes) noexcept;
// The share of `rank` in a call that reduces, but for its memory, its numbers and its arithmetic. `ranks`: 2 to
// most_exchange_ranks.
[[nodiscard]] ExchangeCall reduction(std::uint32_t rank, std::uint32_t ranks, const fused::Plan& plan) noexcept;
// Likewise in a call that hands bytes on. Its arithmetic is a type: of moved_type().
[[nodiscard]] ExchangeCall spread(std::uint32_t rank, std::uint32_t ranks, const fused::SpreadPlan& plan) noexcept;
// The widest type whose elements the memory of such a call, from `input` to `output`, is made of.
[[nodiscard]] DataType moved_type(const ExchangeCall& call, const void* input, const void* output) noexcept;

}  // namespace hmc::mapped
