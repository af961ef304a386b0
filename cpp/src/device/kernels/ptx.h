// The kernels as PTX, which NVIDIA's driver compiles for the device at hand. tools/make_ptx.sh writes the files of kernels/ptx.
#pragma once

#include <string_view>

namespace hmc {

// The text of kernels/ptx/mapped_bf16.ptx for "hmc_mapped_bf16", and alike; null where there is no such file. Any thread.
[[nodiscard]] const char* ptx_of(std::string_view kernel) noexcept;

}  // namespace hmc
