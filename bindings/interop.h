// What the protocols of other array libraries call the memory of each vendor.
#pragma once

#include <cstdint>
#include <string_view>

namespace hmc::bindings {

struct Interop {
  std::string_view vendor;
  std::int32_t dlpack;  // device type
  // Whether libraries for its devices use CUDA's conventions: __cuda_array_interface__, and no stream in DLPack means the default
  // one.
  bool like_cuda;
};

inline constexpr std::int32_t dlpack_cpu = 1, dlpack_cuda_host = 3, dlpack_rocm_host = 11, dlpack_ext = 12;
// clang-format off
inline constexpr Interop interop_rows[] = {
    {"cpu", dlpack_cpu, false},
    {"cuda", 2, true},
    {"rocm", 10, true},
    {"hygon", 10, true},
    {"mlu", dlpack_ext, false},
    {"musa", dlpack_ext, true},
};
// clang-format on

// A vendor without a row has no name outside HMC.
constexpr Interop interop_of(std::string_view vendor) {
  for (const Interop& row : interop_rows) {
    if (row.vendor == vendor) return row;
  }
  return {vendor, dlpack_ext, false};
}

constexpr bool dlpack_on_host(std::int32_t type) {
  return type == dlpack_cpu || type == dlpack_cuda_host || type == dlpack_rocm_host;
}

}  // namespace hmc::bindings
