#include "hmc/row_copies.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "device/runtime.h"

namespace hmc {
namespace {

template <class Pointer>
std::vector<std::uint64_t> offsets(std::span<const RowCopy> rows, Pointer RowCopy::* end, Pointer first) {
  std::vector<std::uint64_t> found(rows.size());
  std::ranges::transform(rows, found.begin(), [&](const RowCopy& row) { return static_cast<std::uint64_t>(row.*end - first); });
  return found;
}

}  // namespace

Status copy_rows(std::span<const RowCopy> rows, std::size_t row_bytes, const Device& by) {
  if (rows.empty() || row_bytes == 0) return {};
  if (by.is_cpu()) {
    for (const RowCopy& row : rows) std::memcpy(row.to, row.from, row_bytes);
    return {};
  }
  std::byte* const to = std::ranges::min_element(rows, {}, &RowCopy::to)->to;
  const std::byte* const from = std::ranges::min_element(rows, {}, &RowCopy::from)->from;
  const std::vector<std::uint64_t> targets = offsets(rows, &RowCopy::to, to), sources = offsets(rows, &RowCopy::from, from);
  return copy_blocking(CopyOp{.target = {to, row_bytes, by},
                              .source = {const_cast<std::byte*>(from), row_bytes, by},
                              .source_offsets = sources.data(),
                              .target_offsets = targets.data(),
                              .blocks = rows.size(),
                              .block_bytes = row_bytes});
}

}  // namespace hmc
