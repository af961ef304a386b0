#include <algorithm>
#include <map>
#include <tuple>

#include "layout/limits.h"
#include "layout/walk.h"

namespace hmc {
namespace {

// One nested loop: `count` steps of so many bytes on each side, or to so many further buffers.
struct Loop {
  std::uint64_t count = 1, source = 0, target = 0;
  std::uint64_t source_buffer = 0, target_buffer = 0;
  [[nodiscard]] bool continues(std::uint64_t bytes) const noexcept {
    return source == bytes && target == bytes && source_buffer == 0 && target_buffer == 0;
  }
};

class RunList {
 public:
  RunList(const LayoutMove& move, const Walk& walk) : move_(move), walk_(walk) {
    const std::uint64_t layer = walk.layers.first, head = walk.heads.first;
    from_ = head_place(move.source, layer, head, 0);
    to_ = head_place(move.target, layer, head, 0);
    const auto loop = [&](LayoutAxis axis, std::uint64_t count) {
      const Layout::Map &a = move.source.map(axis), &b = move.target.map(axis);
      loops_.push_back({count, a.outer, b.outer, a.buffer, b.buffer});
    };
    loop(LayoutAxis::layer, walk.layers.count);
    loop(LayoutAxis::kv, move.target.extent(LayoutAxis::kv));
    loop(LayoutAxis::head, walk.heads.count);
    const TileStrides a = tile_strides(move.source), b = tile_strides(move.target);
    loops_.push_back({walk.pieces[0].count, a.column, b.column, 0, 0});
    if (walk.pieces.size() > 1) {
      const DimPiece &first = walk.pieces[0], &second = walk.pieces[1];
      const Loop step{walk.pieces.size(), second.source - first.source, second.target - first.target, 0, 0};
      for (std::size_t i = 0; i < walk.pieces.size(); ++i) {
        const DimPiece& piece = walk.pieces[i];
        even_ = even_ && piece.source == i * step.source && piece.target == i * step.target;
      }
      if (even_) loops_.push_back(step);
    }
    tokens_ = {1, a.row, b.row, 0, 0};
  }

  Result<std::vector<LayoutRuns>> make() {
    for (const TokenSpan& span : walk_.spans) {
      if (std::ranges::find(lengths_, span.count) == lengths_.end()) lengths_.push_back(span.count);
    }
    for (const std::uint64_t length : lengths_) HMC_TRY(add_spans_of(length));
    std::vector<LayoutRuns> all;
    for (auto& [key, runs] : runs_) all.push_back(std::move(runs));
    return all;
  }

 private:
  Status add_spans_of(std::uint64_t length) {
    std::vector<Loop> loops = loops_;
    loops.push_back(tokens_);
    loops.back().count = length;
    std::erase_if(loops, [](const Loop& loop) { return loop.count == 1; });
    std::uint64_t bytes = move_.source.element();
    while (true) {
      const auto next = std::ranges::find_if(loops, [&](const Loop& loop) { return loop.continues(bytes); });
      if (next == loops.end()) break;
      bytes *= next->count;
      loops.erase(next);
    }
    // Outermost first, so that runs follow each other in the target.
    std::ranges::stable_sort(loops, [](const Loop& a, const Loop& b) {
      return std::tuple(a.target_buffer, a.target) > std::tuple(b.target_buffer, b.target);
    });
    for (const TokenSpan& span : walk_.spans) {
      if (span.count != length) continue;
      for (std::size_t i = 0; i < (even_ ? 1 : walk_.pieces.size()); ++i) {
        const DimPiece& piece = walk_.pieces[i];
        HMC_TRY(add(loops, bytes, {from_.buffer, from_.offset + span.source.offset + piece.source},
                    {to_.buffer, to_.offset + span.target.offset + piece.target}));
      }
    }
    return {};
  }

  Status add(std::span<const Loop> loops, std::uint64_t bytes, HeadPlace from, HeadPlace to) {
    if (loops.empty()) {
      if (++count_ > max_layout_runs)
        return {Code::out_of_memory, "layout: a move has at most 2^26 runs; move fewer tokens at once"};
      LayoutRuns& runs = runs_of(bytes, from.buffer, to.buffer);
      runs.source_offsets.push_back(from.offset);
      runs.target_offsets.push_back(to.offset);
      return {};
    }
    for (std::uint64_t i = 0; i < loops[0].count; ++i) {
      HMC_TRY(add(loops.subspan(1), bytes, from, to));
      from = {from.buffer + loops[0].source_buffer, from.offset + loops[0].source};
      to = {to.buffer + loops[0].target_buffer, to.offset + loops[0].target};
    }
    return {};
  }

  LayoutRuns& runs_of(std::uint64_t bytes, std::uint64_t source_buffer, std::uint64_t target_buffer) {
    if (last_ != nullptr && last_->bytes == bytes && last_->source_buffer == source_buffer && last_->target_buffer == target_buffer)
      return *last_;
    last_ = &runs_[{bytes, source_buffer, target_buffer}];
    last_->bytes = bytes;
    last_->source_buffer = static_cast<std::uint32_t>(source_buffer);
    last_->target_buffer = static_cast<std::uint32_t>(target_buffer);
    return *last_;
  }

  const LayoutMove& move_;
  const Walk& walk_;
  HeadPlace from_, to_;
  std::vector<Loop> loops_;
  Loop tokens_;
  bool even_ = true;  // the pieces of dimensions are equally spaced
  std::vector<std::uint64_t> lengths_;
  std::map<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>, LayoutRuns> runs_;
  LayoutRuns* last_ = nullptr;  // of the last run; most runs belong to the same list as the one before
  std::uint64_t count_ = 0;
};

bool same_elements(const LayoutMove& move, const Walk& walk) {
  if (move.source.type() != move.target.type()) return false;
  for (std::uint64_t layer = walk.layers.first; layer < walk.layers.first + walk.layers.count; ++layer) {
    for (std::uint64_t kv = 0; kv < move.source.extent(LayoutAxis::kv); ++kv) {
      if (move.source.scale(layer - move.source.layers().first, kv) != move.target.scale(layer - move.target.layers().first, kv))
        return false;
    }
  }
  return true;
}

}  // namespace

Result<std::vector<LayoutRuns>> layout_runs(const LayoutMove& move) {
  HMC_ASSIGN(const Walk walk, walk_of(move, max_move_tokens));
  if (!same_elements(move, walk))
    return Status(Code::unsupported, "layout: elements or scales differ, so that no bytes are the same: convert them (" +
                                         move.source.str() + " to " + move.target.str() + ")");
  return RunList(move, walk).make();
}

}  // namespace hmc
