// Digests and conversions of pages by a device: what hmc/layout.h describes, as numbers. kernels/pages.cu carries them out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "hmc/reduce.h"

namespace hmc {

// Index x of an axis lies at byte x / part * outer + x % part * inner of buffer x * buffer.
struct PageMap {
  std::uint64_t part = 1, outer = 0, inner = 0, buffer = 0;
  // Bytes from one index to the next, within a part.
  [[nodiscard]] std::uint64_t step() const noexcept { return part == 1 ? outer : inner; }
};

// One cache. `first`: the indices at which the call's layers, heads and tokens begin.
struct PageCache {
  std::span<const void* const> buffers;   // addresses of the device
  std::size_t bytes = 0;                  // of each buffer
  std::span<const std::uint64_t> blocks;  // offsets of the listed blocks
  PageMap layer, kv, head, token, dim;
  std::uint64_t first_layer = 0, first_head = 0, first_token = 0;
  std::uint64_t block_tokens = 1;
  DataType type = DataType::bf16;
};

// The rows (a head's K or V of one token) of so many layers, kv, heads and tokens. They are digested as layout_digests() says,
// converted as layout_convert() says, or both.
struct PageCall {
  PageCache source;
  std::optional<PageCache> target;  // none: no conversion
  std::uint64_t layers = 1, kvs = 1, heads = 1, tokens = 1, dims = 1;
  std::uint64_t layer = 0, head = 0, position = 0;  // of the first row, in the model and in the sequence
  std::span<const std::int16_t> keys;               // of the dimensions: one for each 16 bits of a row, or 8-bit element
  std::span<const float> factors;                   // by layer and kv; where there is a target
  std::span<std::uint64_t> sums;                    // written: one digest, or one by layer, head and listed block; empty: none
  bool by_block = false;                            // the latter
};

// Where the tables of a call lie in the device's memory, in this order, each of 8-byte words.
enum class PageTable : std::uint8_t { source_buffers, source_blocks, target_buffers, target_blocks, factors, keys, sums };
inline constexpr std::size_t page_tables = 7;
using PageTables = std::array<void*, page_tables>;

}  // namespace hmc
