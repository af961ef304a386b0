// Weighted sums of rows: what combines the results of a token's experts. Pure functions on memory that the CPU addresses. Any
// thread.
#pragma once

#include <cstddef>
#include <span>

#include "hmc/export.h"
#include "hmc/reduce.h"
#include "hmc/status.h"

namespace hmc {

// Row t of `out` becomes the sum over k of weights[t * terms + k] times row t * terms + k of `rows`. Products and sums are rounded
// to f32 one after the other, in the order of k, and the sum to `type`, to nearest even: the same bits on every processor, but for
// the sign and payload of a NaN. A term with weight 0 counts: 0 times infinity is NaN. Without terms rows are zero. 8-bit types
// take their largest number above it.
//
// `type`: f32, f16, bf16 or an 8-bit floating type. All rows are contiguous and one behind the other, and `out` does not overlap
// `rows`. Both begin at a multiple of an element's size. Errors: invalid_argument (another type, sizes that do not fit).
HMC_API Status weighted_sum(std::span<std::byte> out, std::span<const std::byte> rows, std::span<const float> weights,
                            std::size_t terms, DataType type);

}  // namespace hmc
