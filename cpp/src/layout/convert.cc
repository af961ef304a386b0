#include <array>
#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "layout/on_device.h"
#include "layout/walk.h"
#include "progress/in_parallel.h"

namespace hmc {
namespace {

using Sums = std::array<std::uint32_t, longest_span>;

// Keys follow the 16-bit halves of 32-bit elements.
const std::int16_t* keys_of(std::uint64_t dim, std::size_t element) noexcept {
  return dimension_keys() + dim * (element == 4 ? 2 : 1);
}

constexpr std::size_t parts_per_thread = 4;  // threads are not equally fast

// Targets of at least this many bytes are written past the cache: they would evict everything else.
constexpr std::uint64_t streaming_bytes = 2 << 20;

std::uint64_t bytes_of(const Walk& walk, const Layout& layout) noexcept {
  std::uint64_t tokens = 0;
  for (const TokenSpan& span : walk.spans) tokens += span.count;
  const std::uint64_t of_token = layout.extent(LayoutAxis::dim) * layout.extent(LayoutAxis::kv) * layout.element();
  return walk.layers.count * walk.heads.count * tokens * of_token;
}

// Calls carry_out(part) for all parts of a walk of elements of `layout`, on several threads where it is long.
template <class CarryOut>
void in_parts(const Walk& walk, const Layout& layout, const CarryOut& carry_out) {
  const std::size_t threads = threads_for(bytes_of(walk, layout));
  if (threads == 1) return carry_out(WalkPart{walk.layers, walk.spans});
  const auto parts = parts_of(walk, threads * parts_per_thread);
  in_parallel(threads, parts.size(), [&](std::size_t i) { carry_out(parts[i]); });
}

// Of one part of a walk.
class Conversion {
 public:
  Conversion(const LayoutMove& move, const Walk& walk, LayoutDigest digest)
      : move_(move), walk_(walk), digest_(digest), from_(tile_strides(move.source)), to_(tile_strides(move.target)) {
    const std::size_t from_size = move.source.element(), to_size = move.target.element();
    const std::uint64_t dims = move.source.extent(LayoutAxis::dim);
    // Between caches whose tokens are contiguous a tile stays so.
    const bool columns = from_.row == from_size && to_.row == to_size;
    read_ = columns ? TileStrides{from_size, longest_span * from_size} : TileStrides{dims * from_size, from_size};
    written_ = columns ? TileStrides{to_size, longest_span * to_size} : TileStrides{dims * to_size, to_size};
    columns_ = columns;
    streams_ = from_.column == from_size && to_.column == to_size && bytes_of(walk, move.target) >= streaming_bytes;
  }

  std::uint64_t run(const WalkPart& part, std::span<const std::span<const std::byte>> source,
                    std::span<const std::span<std::byte>> target) {
    const std::uint64_t element_count = longest_span * move_.source.extent(LayoutAxis::dim);
    bool casts = move_.source.type() != move_.target.type();
    visit_tiles(walk_, part, move_.target, [&](std::uint64_t layer, std::uint64_t head, std::uint64_t kv, const TokenSpan& span) {
      const HeadPlace from = head_place(move_.source, layer, head, kv), to = head_place(move_.target, layer, head, kv);
      const std::byte* const read = source[from.buffer].data() + from.offset + span.source.offset;
      std::byte* const written = target[to.buffer].data() + to.offset + span.target.offset;
      const float factor =
          move_.source.scale(layer - move_.source.layers().first, kv) / move_.target.scale(layer - move_.target.layers().first, kv);
      Sums sums{};
      if (casts || factor != 1) {
        if (!in_) {
          in_ = std::make_unique_for_overwrite<std::byte[]>(element_count * move_.source.element());
          out_ = std::make_unique_for_overwrite<std::byte[]>(element_count * move_.target.element());
        }
        cast_tile(written, read, span.count, factor, sums);
      } else {
        copy_tile(written, read, span.count, sums);
      }
      if (digest_ != LayoutDigest::none) total_ += weigh({sums.data(), span.count}, layer, kv, head, move_.position + span.token);
    });
    if (streams_) kernels_.end_stream();
    return total_;
  }

 private:
  // The digest is that of the copy, of the source and the target alike: the source may change at any time.
  void copy_tile(std::byte* to, const std::byte* from, std::uint64_t tokens, Sums& sums) const noexcept {
    const std::size_t size = move_.source.element();
    const bool digests = digest_ != LayoutDigest::none;
    for (const DimPiece& piece : walk_.pieces) {
      const std::int16_t* const keys = keys_of(piece.dim, size);
      if (streams_ && kernels_.stream(digests ? sums.data() : nullptr, to + piece.target, to_.row, from + piece.source, from_.row,
                                      tokens, piece.count * size, size, keys))
        continue;
      kernels_.copy(to + piece.target, to_, from + piece.source, from_, tokens, piece.count, size);
      if (digests) kernels_.digest(sums.data(), to + piece.target, to_, tokens, piece.count, size, keys);
    }
  }

  void cast_tile(std::byte* to, const std::byte* from, std::uint64_t tokens, float factor, Sums& sums) const noexcept {
    const std::size_t from_size = move_.source.element(), to_size = move_.target.element();
    const std::uint64_t dims = move_.source.extent(LayoutAxis::dim);
    for (const DimPiece& piece : walk_.pieces)
      kernels_.copy(in_.get() + piece.dim * read_.column, read_, from + piece.source, from_, tokens, piece.count, from_size);
    if (digest_ == LayoutDigest::source)
      kernels_.digest(sums.data(), in_.get(), read_, tokens, dims, from_size, keys_of(0, from_size));
    if (columns_ && tokens < longest_span) {
      for (std::uint64_t dim = 0; dim < dims; ++dim)
        kernels_.cast(out_.get() + dim * written_.column, move_.target.type(), in_.get() + dim * read_.column, move_.source.type(),
                      tokens, factor);
    } else {
      kernels_.cast(out_.get(), move_.target.type(), in_.get(), move_.source.type(), tokens * dims, factor);
    }
    if (digest_ == LayoutDigest::target)
      kernels_.digest(sums.data(), out_.get(), written_, tokens, dims, to_size, keys_of(0, to_size));
    for (const DimPiece& piece : walk_.pieces)
      kernels_.copy(to + piece.target, to_, out_.get() + piece.dim * written_.column, written_, tokens, piece.count, to_size);
  }

  const LayoutMove& move_;
  const Walk& walk_;
  const LayoutDigest digest_;
  const TileStrides from_, to_;
  TileStrides read_, written_;  // of the tile before and after the cast
  bool columns_ = false;
  bool streams_ = false;
  const TileKernels& kernels_ = tile_kernels();
  std::unique_ptr<std::byte[]> in_, out_;
  std::uint64_t total_ = 0;
};

// Calls add(layer, head, span, value) with the digest of each tile of a part.
template <class Add>
void digest_tiles(const LayoutSelection& selection, std::span<const std::span<const std::byte>> buffers, const Walk& walk,
                  const WalkPart& part, Add add) {
  const Layout& layout = selection.layout;
  const TileKernels& kernels = tile_kernels();
  const TileStrides strides = tile_strides(layout);
  const std::size_t size = layout.element();
  visit_tiles(walk, part, layout, [&](std::uint64_t layer, std::uint64_t head, std::uint64_t kv, const TokenSpan& span) {
    const HeadPlace place = head_place(layout, layer, head, kv);
    const std::byte* const at = buffers[place.buffer].data() + place.offset + span.source.offset;
    Sums sums{};
    for (const DimPiece& piece : walk.pieces)
      kernels.digest(sums.data(), at + piece.source, strides, span.count, piece.count, size, keys_of(piece.dim, size));
    add(layer, head, span, weigh({sums.data(), span.count}, layer, kv, head, selection.position + span.token));
  });
}

// What scales of both sides make of a number must be one, too: zero times infinity is none.
Status check_factors(const LayoutMove& move, const Walk& walk) {
  for (std::uint64_t layer = walk.layers.first; layer < walk.layers.first + walk.layers.count; ++layer) {
    for (std::uint64_t kv = 0; kv < move.source.extent(LayoutAxis::kv); ++kv) {
      const float from = move.source.scale(layer - move.source.layers().first, kv);
      const float to = move.target.scale(layer - move.target.layers().first, kv);
      if (std::isnormal(from / to)) continue;
      return {Code::invalid_argument, "layout: the scales of layer " + std::to_string(layer) +
                                          " differ by more than f32 holds: " + std::to_string(from) + " and " + std::to_string(to)};
    }
  }
  return {};
}

}  // namespace

Result<std::uint64_t> layout_convert(const LayoutMove& move, std::span<const std::span<const std::byte>> source,
                                     std::span<const std::span<std::byte>> target, const LayoutConvertOptions& options) {
  HMC_ASSIGN(const Walk walk, walk_of(move, longest_span));
  HMC_TRY(check_factors(move, walk));
  HMC_TRY(check_buffers(move.source, source, "source"));
  HMC_TRY(check_buffers(move.target, target, "target"));
  Device device;
  if (options.device) {
    device = *options.device;
  } else {
    HMC_ASSIGN(device, device_of(source, target));
  }
  if (!device.is_cpu()) return convert_on(device, move, walk, source, target, options.digest);
  std::atomic<std::uint64_t> total = 0;
  in_parts(walk, move.source,
           [&](const WalkPart& part) { total += Conversion(move, walk, options.digest).run(part, source, target); });
  return total.load();
}

Result<std::uint64_t> layout_digest(const LayoutSelection& selection, std::span<const std::span<const std::byte>> buffers) {
  HMC_ASSIGN(const Walk walk, walk_of(selection));
  HMC_TRY(check_buffers(selection.layout, buffers, "cache"));
  HMC_ASSIGN(const Device device, device_of(buffers));
  if (!device.is_cpu()) {
    HMC_ASSIGN(const auto sums, digest_on(device, selection, walk, buffers, false));
    return sums.front();
  }
  std::atomic<std::uint64_t> total = 0;
  in_parts(walk, selection.layout, [&](const WalkPart& part) {
    std::uint64_t sum = 0;
    digest_tiles(selection, buffers, walk, part,
                 [&](std::uint64_t, std::uint64_t, const TokenSpan&, std::uint64_t value) { sum += value; });
    total += sum;
  });
  return total.load();
}

Result<std::vector<std::uint64_t>> layout_digests(const LayoutSelection& selection,
                                                  std::span<const std::span<const std::byte>> buffers) {
  HMC_ASSIGN(const Walk walk, walk_of(selection));
  HMC_TRY(check_buffers(selection.layout, buffers, "cache"));
  HMC_ASSIGN(const Device device, device_of(buffers));
  if (!device.is_cpu()) return digest_on(device, selection, walk, buffers, true);
  const std::size_t blocks = selection.pages.blocks.size();
  std::vector<std::uint64_t> table(static_cast<std::size_t>(walk.layers.count * walk.heads.count) * blocks);
  in_parts(walk, selection.layout, [&](const WalkPart& part) {  // a block of a layer is in one part
    digest_tiles(selection, buffers, walk, part,
                 [&](std::uint64_t layer, std::uint64_t head, const TokenSpan& span, std::uint64_t value) {
                   const std::uint64_t row = (layer - walk.layers.first) * walk.heads.count + (head - walk.heads.first);
                   table[static_cast<std::size_t>(row) * blocks + static_cast<std::size_t>(span.block)] += value;
                 });
  });
  return table;
}

}  // namespace hmc
