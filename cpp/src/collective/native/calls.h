// Collectives as a vendor's library has them. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "hmc/peer.h"
#include "hmc/reduce.h"
#include "native/rank_communicator.h"

namespace hmc::native {

// One rank's call. nullopt: the library has none for it: memory of the CPU or of two devices, exact sums, types and operations that
// it does not have (api.h), a buffer that is not aligned to its elements. `bytes`: of a rank's block where there are blocks,
// else of a buffer. `root`: of calls that have one.
[[nodiscard]] std::optional<Call> reduction_call(Kind kind, const MemoryView& out, const MemoryView& in, const Reduction& reduction,
                                                 std::uint64_t bytes, std::uint32_t root = 0) noexcept;
// Of a broadcast `in` is `out`.
[[nodiscard]] std::optional<Call> spread_call(Kind kind, const MemoryView& out, const MemoryView& in, std::uint64_t bytes,
                                              std::uint32_t root = 0) noexcept;

}  // namespace hmc::native
