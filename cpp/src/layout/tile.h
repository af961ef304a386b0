// The inner loops of conversions and digests over one tile, which is some tokens of one head's K or V, and of weighted sums.
// Compiled for several instruction sets, with equal results bit by bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hmc/reduce.h"

namespace hmc {

// Strides of a tile in bytes: rows are tokens, columns are dimensions.
struct TileStrides {
  std::size_t row = 0, column = 0;
};

// Contiguous elements, and what each counts.
struct WeightedRow {
  const std::byte* at;
  float weight;
};

struct TileKernels {
  const char* name;
  // Copies rows x columns elements of `size` bytes (1, 2 or 4) between places that do not overlap.
  void (*copy)(std::byte* to, TileStrides to_strides, const std::byte* from, TileStrides from_strides, std::size_t rows,
               std::size_t columns, std::size_t size) noexcept;
  // sums[row] += sum over columns of bits x key, mod 2^32. keys: of the first column, one per 1 or 2 bytes of an element.
  void (*digest)(std::uint32_t* sums, const std::byte* at, TileStrides strides, std::size_t rows, std::size_t columns,
                 std::size_t size, const std::int16_t* keys) noexcept;
  // copy() of rows that are contiguous on both sides, past the cache, and digest() of what was copied where `sums` is not null.
  // Strides and `bytes` are of rows. False where alignment or length do not suit it: nothing was done then. Call end_stream() once
  // after all.
  bool (*stream)(std::uint32_t* sums, std::byte* to, std::size_t to_stride, const std::byte* from, std::size_t from_stride,
                 std::size_t rows, std::size_t bytes, std::size_t size, const std::int16_t* keys) noexcept;
  // Orders what was streamed before the caller's next stores.
  void (*end_stream)() noexcept;
  // to[i] = from[i] x factor, of contiguous elements.
  void (*cast)(std::byte* to, DataType to_type, const std::byte* from, DataType from_type, std::size_t count,
               float factor) noexcept;
  // to[i] = sum over the rows, in their order, of row[i] x weight: products and sums are rounded to f32 one after the other.
  void (*weighted_sum)(std::byte* to, DataType type, const WeightedRow* rows, std::size_t row_count, std::size_t columns) noexcept;
};

extern const TileKernels tile_baseline;
#if defined(__x86_64__)
extern const TileKernels tile_avx2;
#endif

// The fastest that this machine runs.
const TileKernels& tile_kernels() noexcept;

}  // namespace hmc
