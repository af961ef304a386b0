// Weighted sums of rows: what combines the results of a token's experts. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "hmc/device.h"
#include "hmc/export.h"
#include "hmc/reduce.h"
#include "hmc/status.h"

namespace hmc {

// Row t of `out` becomes the sum over k of weights[t * terms + k] times row t * terms + k of `rows`. Products and sums are rounded
// to f32 one after the other, in the order of k, and the sum to `type`, to nearest even: the same bits on every processor and
// device, but for the sign and payload of a NaN. A term with weight 0 counts: 0 times infinity is NaN. Without terms rows are zero.
// 8-bit types take their largest number above it.
//
// `used`: a byte for each term; one that is 0 leaves the term out, and its row is not read. Empty: all are used.
// `type`: f32, f16, bf16 or an 8-bit floating type. All rows are contiguous and one behind the other, and `out` does not overlap
// `rows`. Both lie in CPU memory, or both in the memory of one device, which then computes: the call comes after no stream, and
// returns when the sums are in place.
// Errors: invalid_argument (another type, sizes that do not fit); unsupported (memory of two devices, or of a device without a
// kernel, perhaps for now, while it is compiled: nothing was written); out_of_memory; device.
HMC_API Status weighted_sum(std::span<std::byte> out, std::span<const std::byte> rows, std::span<const float> weights,
                            std::size_t terms, DataType type, std::span<const std::uint8_t> used = {});

// The same of rows in different places: rows[t * terms + k] is where one begins, null for a term that is left out. All of them and
// `out` lie in memory that `by` reaches, which is not checked; that device computes. Errors as weighted_sum().
HMC_API Status weighted_sum_of_rows(std::span<std::byte> out, std::span<const std::byte* const> rows,
                                    std::span<const float> weights, std::size_t terms, DataType type,
                                    const Device& by = Device::cpu());

// Loads the kernel that computes sums of that type in the memory of a device, which takes a while the first time. False: not yet
// (it is being compiled, or a held stream keeps the device waiting). True on the CPU. Errors: unsupported (there is no kernel),
// invalid_argument, device.
HMC_API Result<bool> prepare_weighted_sum(const Device& device, DataType type);

}  // namespace hmc
