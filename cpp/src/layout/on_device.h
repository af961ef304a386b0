// Digests and conversions of caches in device memory, by the device.
#pragma once

#include <cstdint>
#include <span>

#include "hmc/device.h"
#include "hmc/layout.h"
#include "layout/walk.h"

namespace hmc {

// Whose memory the arrays of a call are: the CPU's, or one device's. Errors: unsupported: of several.
Result<Device> device_of(std::span<const std::span<const std::byte>> source, std::span<const std::span<std::byte>> target = {});

// As layout_convert() and layout_digests() (`by_block`: the whole table, else one sum), of buffers of `device`. The walk is that of
// the call. Blocking. Errors: unsupported: the device has no kernel, or not yet; nothing was written; out_of_memory; device.
Result<std::uint64_t> convert_on(const Device& device, const LayoutMove& move, const Walk& walk,
                                 std::span<const std::span<const std::byte>> source, std::span<const std::span<std::byte>> target,
                                 LayoutDigest digest);
Result<std::vector<std::uint64_t>> digest_on(const Device& device, const LayoutSelection& selection, const Walk& walk,
                                             std::span<const std::span<const std::byte>> buffers, bool by_block);

}  // namespace hmc
