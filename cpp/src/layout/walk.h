// What the calls on layouts have in common: checked ranges, spans of tokens, pieces of dimensions, keys of the digest.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hmc/layout.h"
#include "layout/tile.h"

namespace hmc {

// One side's place of some tokens: they lie `Map::inner` bytes apart.
struct TokenPlace {
  std::uint64_t offset = 0;  // bytes, of block and token
};
// Tokens that are equally spaced on both sides.
struct TokenSpan {
  TokenPlace source, target;
  std::uint64_t token = 0;  // from the start of the move
  std::uint64_t block = 0;  // index in the source's list
  std::uint64_t count = 0;
};
// Dimensions that are equally spaced on both sides.
struct DimPiece {
  std::uint64_t dim = 0, count = 0, source = 0, target = 0;  // the last two: bytes
};

struct Walk {
  LayoutRange layers, heads;
  std::vector<TokenSpan> spans;
  std::vector<DimPiece> pieces;
};

inline constexpr std::uint64_t longest_span = 64;  // tokens: a tile stays in the first-level cache

// `limit`: the longest span. Errors: invalid_argument.
Result<Walk> walk_of(const LayoutMove& move, std::uint64_t limit);
Result<Walk> walk_of(const LayoutSelection& selection);

template <class Buffer>
Status check_buffers(const Layout& layout, std::span<const Buffer> buffers, std::string_view side) {
  const auto refuse = [&](const std::string& what) {
    return Status(Code::invalid_argument, "layout: the " + std::string(side) + " " + what + " (" + layout.str() + ")");
  };
  if (buffers.size() != layout.buffers())
    return refuse("has " + std::to_string(layout.buffers()) + " buffers, not " + std::to_string(buffers.size()));
  for (const Buffer& buffer : buffers) {
    if (buffer.size() < layout.buffer_bytes())
      return refuse("requires buffers of " + std::to_string(layout.buffer_bytes()) + " bytes, not " +
                    std::to_string(buffer.size()));
  }
  return {};
}

// Where a head's K or V of a layer begins: the buffer, and bytes from its start.
struct HeadPlace {
  std::uint64_t buffer = 0, offset = 0;
};
// `layer` and `head` of the whole model.
HeadPlace head_place(const Layout& layout, std::uint64_t layer, std::uint64_t head, std::uint64_t kv) noexcept;
// Strides of tokens and dimensions within a span and a piece.
TileStrides tile_strides(const Layout& layout) noexcept;

// Keys of dimensions: odd, all different. One per 16 bits of a row, for 8-bit elements one per element.
const std::int16_t* dimension_keys() noexcept;
// The sums of rows, weighted: adds (1 + sum) x key for tokens `token` and on.
std::uint64_t weigh(std::span<const std::uint32_t> sums, std::uint64_t layer, std::uint64_t kv, std::uint64_t head,
                    std::uint64_t token) noexcept;

// Some tiles of a walk.
struct WalkPart {
  LayoutRange layers;
  std::span<const TokenSpan> spans;
};

// About `wanted` parts of a walk, each tile in one; spans of one block are in one part.
std::vector<WalkPart> parts_of(const Walk& walk, std::size_t wanted);

// Calls visit(layer, head, kv, span) in an order that suits the target: kv innermost where it is there.
template <class Visit>
void visit_tiles(const Walk& walk, const WalkPart& part, const Layout& target, Visit visit) {
  const std::uint64_t kvs = target.extent(LayoutAxis::kv);
  const auto& kv_map = target.map(LayoutAxis::kv);
  const bool inside = kv_map.buffer == 0 && kv_map.outer < target.map(LayoutAxis::head).outer;
  for (std::uint64_t layer = part.layers.first; layer < part.layers.first + part.layers.count; ++layer) {
    for (std::uint64_t outer = 0; outer < (inside ? 1 : kvs); ++outer) {
      for (const TokenSpan& span : part.spans) {
        for (std::uint64_t head = walk.heads.first; head < walk.heads.first + walk.heads.count; ++head) {
          for (std::uint64_t inner = 0; inner < (inside ? kvs : 1); ++inner) visit(layer, head, inside ? inner : outer, span);
        }
      }
    }
  }
}

}  // namespace hmc
