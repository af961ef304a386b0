// Copies of rows in different places. Any thread.
#pragma once

#include <cstddef>
#include <span>

#include "hmc/device.h"
#include "hmc/export.h"
#include "hmc/status.h"

namespace hmc {

struct RowCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
};

// Copies rows of `row_bytes` each, in memory that `by` reaches, which is not checked; no target overlaps another row. That device
// copies, where HMC has a kernel for it by one launch: the call comes after no stream, and returns when the rows are in place.
// Errors: unsupported (no such device), device.
HMC_API Status copy_rows(std::span<const RowCopy> rows, std::size_t row_bytes, const Device& by);

}  // namespace hmc
