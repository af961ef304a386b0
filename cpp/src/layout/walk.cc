#include "layout/walk.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "layout/limits.h"

namespace hmc {
namespace {

constexpr std::size_t keys = 1U << 15;

Status invalid(const std::string& what) { return {Code::invalid_argument, "layout: " + what}; }
std::string text_of(LayoutRange range) {
  return std::to_string(range.first) + " to " + std::to_string(range.first + range.count - 1);
}

std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

LayoutRange common(LayoutRange a, LayoutRange b) noexcept {
  const std::uint64_t first = std::max(a.first, b.first);
  const std::uint64_t end = std::min(a.first + a.count, b.first + b.count);
  return {first, end > first ? end - first : 0};
}

// The part of `all` that is wanted.
Result<LayoutRange> range_of(LayoutRange wanted, LayoutRange all, const char* what) {
  if (wanted.count == 0) return all;
  if (wanted.first < all.first || wanted.count > all.count || wanted.first - all.first > all.count - wanted.count)
    return invalid(std::string(what) + " " + std::to_string(wanted.first) + " and on (" + std::to_string(wanted.count) +
                   ") are not among " + text_of(all));
  return wanted;
}

Status check_pages(const Layout& layout, const LayoutPages& pages, std::uint64_t tokens, const char* side) {
  const std::uint64_t size = layout.extent(LayoutAxis::token);
  if (tokens == 0 || tokens > max_move_tokens || pages.first > max_move_tokens) return invalid("a move has 1 to 2^32 tokens");
  if (pages.blocks.size() < (pages.first + tokens + size - 1) / size)
    return invalid(std::string(side) + ": " + std::to_string(tokens) + " tokens from token " + std::to_string(pages.first) +
                   " on do not fit into " + std::to_string(pages.blocks.size()) + " blocks of " + std::to_string(size));
  for (const std::uint64_t block : pages.blocks) {
    if (block >= layout.extent(LayoutAxis::block))
      return invalid(std::string(side) + ": block " + std::to_string(block) + " of " +
                     std::to_string(layout.extent(LayoutAxis::block)));
  }
  return {};
}

// A block that is written twice would hold a mixture. `all`: blocks of the cache, each of the list below it.
Status check_distinct(std::span<const std::uint64_t> blocks, std::uint64_t all) {
  const auto listed_twice = [](std::uint64_t block) {
    return invalid("target: block " + std::to_string(block) + " is listed twice");
  };
  if (all <= 64 * blocks.size()) {  // a bit for each takes no more memory than the list, and no sorting
    std::vector<bool> seen(all);
    for (const std::uint64_t block : blocks) {
      if (seen[block]) return listed_twice(block);
      seen[block] = true;
    }
    return {};
  }
  std::vector<std::uint64_t> sorted(blocks.begin(), blocks.end());
  std::ranges::sort(sorted);
  const auto twice = std::ranges::adjacent_find(sorted);
  return twice == sorted.end() ? Status() : listed_twice(*twice);
}

// A token of a list of blocks.
class Cursor {
 public:
  Cursor(const Layout& layout, const LayoutPages& pages)
      : pages_(pages),
        blocks_(layout.map(LayoutAxis::block)),
        tokens_(layout.map(LayoutAxis::token)),
        size_(layout.extent(LayoutAxis::token)),
        block_(pages.first / size_),
        slot_(pages.first % size_) {}

  [[nodiscard]] std::uint64_t block() const noexcept { return block_; }
  [[nodiscard]] std::uint64_t offset() const noexcept { return blocks_.offset(pages_.blocks[block_]) + tokens_.offset(slot_); }
  // How many from this one on are equally spaced.
  [[nodiscard]] std::uint64_t run() const noexcept {
    return tokens_.part == 1 ? size_ - slot_ : tokens_.part - slot_ % tokens_.part;
  }
  void advance(std::uint64_t count) noexcept {  // within a run
    slot_ += count;
    if (slot_ == size_) ++block_, slot_ = 0;
  }

 private:
  const LayoutPages& pages_;
  const Layout::Map &blocks_, &tokens_;
  const std::uint64_t size_;
  std::uint64_t block_, slot_;
};

std::vector<TokenSpan> spans_of(const LayoutMove& move, std::uint64_t limit) {
  std::vector<TokenSpan> spans;
  // Enough where tokens of a block follow one another.
  spans.reserve(std::min<std::uint64_t>(move.tokens, move.from.blocks.size() + move.to.blocks.size()));
  Cursor from(move.source, move.from), to(move.target, move.to);
  for (std::uint64_t token = 0; token < move.tokens;) {
    const std::uint64_t count = std::min({from.run(), to.run(), limit, move.tokens - token});
    spans.push_back({{from.offset()}, {to.offset()}, token, from.block(), count});
    token += count;
    from.advance(count);
    to.advance(count);
  }
  return spans;
}

std::vector<DimPiece> pieces_of(const Layout& source, const Layout& target) {
  const std::uint64_t dims = source.extent(LayoutAxis::dim);
  const Layout::Map &from = source.map(LayoutAxis::dim), &to = target.map(LayoutAxis::dim);
  const std::uint64_t a = from.part == 1 ? dims : from.part, b = to.part == 1 ? dims : to.part;
  const std::uint64_t step = std::gcd(a, b);
  std::vector<DimPiece> pieces;
  for (std::uint64_t dim = 0; dim < dims; dim += step) pieces.push_back({dim, step, from.offset(dim), to.offset(dim)});
  return pieces;
}

// With part 1 an axis is not divided: its steps are `outer`.
std::uint64_t step_of(const Layout::Map& map) noexcept { return map.part == 1 ? map.outer : map.inner; }

}  // namespace

Result<Walk> walk_of(const LayoutMove& move, std::uint64_t limit) {
  for (const auto& [axis, name] : {std::pair(LayoutAxis::dim, "D"), std::pair(LayoutAxis::kv, "kv")}) {
    if (move.source.extent(axis) != move.target.extent(axis))
      return invalid("the source has " + std::string(name) + "=" + std::to_string(move.source.extent(axis)) + ", the target " +
                     name + "=" + std::to_string(move.target.extent(axis)));
  }
  HMC_TRY(check_pages(move.source, move.from, move.tokens, "source"));
  HMC_TRY(check_pages(move.target, move.to, move.tokens, "target"));
  HMC_TRY(check_distinct(move.to.blocks, move.target.extent(LayoutAxis::block)));
  const LayoutRange layers = common(move.source.layers(), move.target.layers());
  const LayoutRange heads = common(move.source.heads(), move.target.heads());
  if (layers.count == 0)
    return invalid("no layer in common: the source has " + text_of(move.source.layers()) + ", the target " +
                   text_of(move.target.layers()));
  if (heads.count == 0)
    return invalid("no head in common: the source has " + text_of(move.source.heads()) + ", the target " +
                   text_of(move.target.heads()));
  Walk walk;
  HMC_ASSIGN(walk.layers, range_of(move.layers, layers, "layers"));
  HMC_ASSIGN(walk.heads, range_of(move.heads, heads, "heads"));
  walk.spans = spans_of(move, limit);
  walk.pieces = pieces_of(move.source, move.target);
  return walk;
}

Result<Walk> walk_of(const LayoutSelection& selection) {
  const Layout& layout = selection.layout;
  HMC_TRY(check_pages(layout, selection.pages, selection.tokens, "cache"));
  Walk walk;
  HMC_ASSIGN(walk.layers, range_of(selection.layers, layout.layers(), "layers"));
  HMC_ASSIGN(walk.heads, range_of(selection.heads, layout.heads(), "heads"));
  walk.spans = spans_of({layout, selection.pages, layout, selection.pages, selection.tokens, 0, {}, {}}, longest_span);
  walk.pieces = pieces_of(layout, layout);
  return walk;
}

HeadPlace head_place(const Layout& layout, std::uint64_t layer, std::uint64_t head, std::uint64_t kv) noexcept {
  const Layout::Map &layers = layout.map(LayoutAxis::layer), &kvs = layout.map(LayoutAxis::kv);
  layer -= layout.layers().first;
  return {layer * layers.buffer + kv * kvs.buffer,
          layers.offset(layer) + kvs.offset(kv) + layout.map(LayoutAxis::head).offset(head - layout.heads().first)};
}

TileStrides tile_strides(const Layout& layout) noexcept {
  return {static_cast<std::size_t>(step_of(layout.map(LayoutAxis::token))),
          static_cast<std::size_t>(step_of(layout.map(LayoutAxis::dim)))};
}

const std::int16_t* dimension_keys() noexcept {
  static const auto table = [] {
    std::array<std::int16_t, keys> made{};
    for (std::uint32_t i = 0; i < keys; ++i) {
      std::uint32_t x = i;
      for (const std::uint32_t factor : {0x5a35U, 0x2c9bU, 0x71e7U}) {  // each round maps 15 bits onto themselves
        x = (x * factor + 0x1f3dU) & (keys - 1);
        x ^= x >> 7;
      }
      made[i] = static_cast<std::int16_t>(static_cast<std::uint16_t>(2 * x + 1));
    }
    return made;
  }();
  return table.data();
}

std::uint64_t weigh(std::span<const std::uint32_t> sums, std::uint64_t layer, std::uint64_t kv, std::uint64_t head,
                    std::uint64_t token) noexcept {
  const std::uint64_t base = mix((layer << 33) + (kv << 32) + head + 0x9e3779b97f4a7c15ULL);
  std::uint64_t total = 0;
  for (const std::uint32_t sum : sums) total += (std::uint64_t{sum} + 1) * (mix(base + token++ * 0x9e3779b97f4a7c15ULL) | 1);
  return total;
}

std::vector<WalkPart> parts_of(const Walk& walk, std::size_t wanted) {
  std::vector<WalkPart> parts;
  const std::uint64_t layer_parts = std::clamp<std::uint64_t>(wanted, 1, std::max<std::uint64_t>(walk.layers.count, 1));
  const std::size_t span_parts = std::max<std::size_t>(static_cast<std::size_t>((wanted + layer_parts - 1) / layer_parts), 1);
  std::vector<std::size_t> starts;
  for (std::size_t i = 0; i <= span_parts; ++i) {
    std::size_t at = walk.spans.size() * i / span_parts;
    while (at > 0 && at < walk.spans.size() && walk.spans[at].block == walk.spans[at - 1].block) ++at;
    if (starts.empty() || at > starts.back()) starts.push_back(at);
  }
  for (std::uint64_t i = 0; i < layer_parts; ++i) {
    const std::uint64_t first = walk.layers.count * i / layer_parts, end = walk.layers.count * (i + 1) / layer_parts;
    for (std::size_t s = 0; s + 1 < starts.size(); ++s)
      parts.push_back(
          {{walk.layers.first + first, end - first}, std::span(walk.spans).subspan(starts[s], starts[s + 1] - starts[s])});
  }
  return parts;
}

}  // namespace hmc
