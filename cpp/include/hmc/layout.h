// Layouts of KV caches: where the elements of a paged cache lie, moves between two layouts, and digests that do not depend on the
// layout. Thread rules: values; functions from any thread.
//
// layout_convert, layout_digest and layout_digests take buffers that are all CPU memory, or all memory of one device. The calling
// thread computes in CPU memory. A kernel of the device computes in its memory, where HMC has one (NVIDIA, AMD), and the call
// returns when it is over; what was queued on streams before must be over at the call. Else the error is unsupported and nothing
// was written; at the first call also while AMD's kernel is being compiled, which takes about a second, and while a collective or a
// held stream keeps the device waiting for more than 100 ms.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hmc/device.h"
#include "hmc/export.h"
#include "hmc/reduce.h"
#include "hmc/status.h"

namespace hmc {

// The axes of a cache, in texts L, B, N, H, kv, D: layers, blocks, tokens of a block, heads, keys and values, dimensions of a head.
enum class LayoutAxis : std::uint8_t { layer, block, token, head, kv, dim };
inline constexpr std::size_t layout_axes = 6;

struct LayoutRange {
  std::uint64_t first = 0, count = 0;
  friend bool operator==(const LayoutRange&, const LayoutRange&) = default;
};

// What a text leaves out. An extent of 0: not given.
struct LayoutGiven {
  std::array<std::uint64_t, layout_axes> extents{};  // by LayoutAxis
  std::uint64_t first_layer = 0, first_head = 0;
  std::optional<DataType> type;
  std::vector<float> scales;
};

// A description of a cache's memory. Text: axes from the outermost to the innermost, then element type and scales, such as
//   "L=32 B=1024 H=8@8 N=16 (kv D=128) bf16"         one buffer; heads 8 to 15 of the model
//   "L=32 | B=64 kv H=8 D=128/8 N=16 8 f8_e4m3fn scale=0.5,0.25"      a buffer per layer; the innermost axis is D modulo 8
// - `X=n@f`: extent n, the first index is f in the whole model (L and H only). Extents may come from LayoutGiven instead.
// - `D/8` is D divided by 8, `D%8` its remainder; a bare number is the remainder of the one axis divided by it. N and D only.
// - `X:s`: stride in elements. Default: compact behind the axes further right.
// - Axes left of `|` (L and kv) number buffers. Parentheses, for axes that are one dimension of a tensor, mean nothing.
// - `scale=s`, or one for K and one for V, or such a pair per layer: an element stands for its value times s. Default 1.
// - B, N and D are required. Element types: f32, f16, bf16, f8_e4m3fn, f8_e4m3fnuz, f8_e5m2.
class HMC_API Layout {
 public:
  // Where index x of an axis lies: buffer x * buffer, byte (x / part) * outer + (x % part) * inner.
  struct Map {
    std::uint64_t part = 1, outer = 0, inner = 0, buffer = 0;
    [[nodiscard]] std::uint64_t offset(std::uint64_t x) const noexcept {
      return part == 1 ? x * outer : x / part * outer + x % part * inner;
    }
    friend bool operator==(const Map&, const Map&) = default;
  };

  // Errors: invalid_argument, which names the part of the text; an unknown, repeated, missing or ambiguous axis, extents that do
  // not fit, strides with which two elements share memory, and anything larger than the limits in docs/explanation/layouts.md.
  static Result<Layout> parse(std::string_view text, const LayoutGiven& given = {});
  // The complete description: parse(str()) is an equal layout.
  [[nodiscard]] std::string str() const;
  // The same order of axes for other layers, heads and blocks, compact, in one buffer. Errors: invalid_argument.
  [[nodiscard]] Result<Layout> packed(LayoutRange layers, LayoutRange heads, std::uint64_t blocks) const;

  [[nodiscard]] std::uint64_t extent(LayoutAxis axis) const noexcept { return extents_[static_cast<std::size_t>(axis)]; }
  [[nodiscard]] const Map& map(LayoutAxis axis) const noexcept { return maps_[static_cast<std::size_t>(axis)]; }
  [[nodiscard]] LayoutRange layers() const noexcept { return {first_layer_, extent(LayoutAxis::layer)}; }  // of the whole model
  [[nodiscard]] LayoutRange heads() const noexcept { return {first_head_, extent(LayoutAxis::head)}; }     // of the whole model
  [[nodiscard]] DataType type() const noexcept { return type_; }
  [[nodiscard]] std::size_t element() const noexcept { return size_of(type_); }  // bytes
  // `layer`: index in this cache; `kv`: 0 or 1.
  [[nodiscard]] float scale(std::uint64_t layer, std::uint64_t kv) const noexcept;
  [[nodiscard]] std::uint64_t buffers() const noexcept { return buffers_; }
  [[nodiscard]] std::uint64_t buffer_bytes() const noexcept { return buffer_bytes_; }  // at least, of each buffer
  friend bool operator==(const Layout&, const Layout&) = default;

 private:
  friend class LayoutParser;
  struct Step {
    LayoutAxis axis = LayoutAxis::layer;
    std::uint64_t part = 0;  // 0: the whole axis
    bool remainder = false, across = false;
    std::uint64_t stride = 0;  // elements
    friend bool operator==(const Step&, const Step&) = default;
  };
  std::vector<Step> steps_;  // outermost first
  std::array<std::uint64_t, layout_axes> extents_{};
  std::array<Map, layout_axes> maps_{};
  std::uint64_t first_layer_ = 0, first_head_ = 0, buffers_ = 1, buffer_bytes_ = 0;
  DataType type_ = DataType::bf16;
  std::vector<float> scales_;
};

// Tokens in a paged cache: token t of the sequence is token first + t of these blocks, which lie one behind the other.
struct LayoutPages {
  std::span<const std::uint64_t> blocks;
  std::uint64_t first = 0;
};

// What is moved, from one cache to another: the tokens of one sequence, all that both caches have of the layers and heads named.
struct LayoutMove {
  const Layout& source;
  LayoutPages from;
  const Layout& target;
  LayoutPages to;
  std::uint64_t tokens = 0;
  std::uint64_t position = 0;  // of the first token in the sequence, for the digest
  LayoutRange layers, heads;   // of the whole model; count 0: all that both caches have
};

// Runs of equal length that are contiguous in both caches. Offsets are bytes from the starts of the buffers.
struct LayoutRuns {
  std::uint64_t bytes = 0;  // of each run
  std::uint32_t source_buffer = 0, target_buffer = 0;
  std::vector<std::uint64_t> source_offsets, target_offsets;
};

// The longest common runs of a move that changes neither elements nor scales.
// Errors: invalid_argument; unsupported, where the elements have to be converted; out_of_memory, above 2^26 runs.
HMC_API Result<std::vector<LayoutRuns>> layout_runs(const LayoutMove& move);

// Of which elements a conversion returns the digest: the source's as they were read, or the target's as they were written.
enum class LayoutDigest : std::uint8_t { none, source, target };

struct LayoutConvertOptions {
  LayoutDigest digest = LayoutDigest::none;
  // That reads and writes all buffers, as RemoteBuffer::loadable() and storable() give them; none: found by their addresses.
  std::optional<Device> device = std::nullopt;
};
// Copies, permutes and casts. Buffers: those of each layout, which do not overlap. A cast goes by f32 and rounds to nearest even;
// above the largest number, 8-bit types get their largest number, others an infinity. NaN stays NaN. Returns the digest (0: not
// asked for). CPU memory: on several threads where it is long (HMC_CPU_THREADS). Errors: invalid_argument (also: the ratio of the
// scales is no normal f32), unsupported: nothing was written; device, out_of_memory.
HMC_API Result<std::uint64_t> layout_convert(const LayoutMove& move, std::span<const std::span<const std::byte>> source,
                                             std::span<const std::span<std::byte>> target,
                                             const LayoutConvertOptions& options = {});

// What is digested: tokens of one cache.
struct LayoutSelection {
  const Layout& layout;
  LayoutPages pages;
  std::uint64_t tokens = 0;
  std::uint64_t position = 0;  // of the first token in the sequence
  LayoutRange layers, heads;   // of the whole model; count 0: all
};
// The sum, mod 2^64, over the rows (head's K or V of one token) of (1 + sum over dimensions of bits x key(dimension) mod 2^32) x
// key(layer, kv, head, token): the same in every layout and block size of one element type, additive over layers, heads and tokens.
// Errors: invalid_argument, unsupported, device, out_of_memory.
HMC_API Result<std::uint64_t> layout_digest(const LayoutSelection& selection, std::span<const std::span<const std::byte>> buffers);
// The same by layer, head and entry of pages.blocks, the last fastest: sums of any part of it are the part's digest.
HMC_API Result<std::vector<std::uint64_t>> layout_digests(const LayoutSelection& selection,
                                                          std::span<const std::span<const std::byte>> buffers);

}  // namespace hmc
