#include "collective/island_chunks.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "collective/plan_reduce.h"

namespace hmc {
namespace {

// Ends of the parts of `elements` that are in those proportions; the last one is `elements`.
std::vector<std::uint64_t> ends_of(std::span<const double> proportions, std::uint64_t elements) {
  std::vector<std::uint64_t> ends;
  double before = 0;
  for (const double part : split_by_bandwidth(proportions)) {
    before += part;
    ends.push_back(std::min(elements, static_cast<std::uint64_t>(std::llround(before * static_cast<double>(elements)))));
  }
  ends.back() = elements;
  return ends;
}

// The ranks of an island, those with the fastest links first: delegates of different islands with fast links have the same pieces.
Island by_bandwidth(const Island& island) {
  std::vector<std::size_t> order(island.ranks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return island.bandwidths[a] > island.bandwidths[b]; });
  Island sorted;
  for (const std::size_t at : order) {
    sorted.ranks.push_back(island.ranks[at]);
    sorted.bandwidths.push_back(island.bandwidths[at]);
  }
  return sorted;
}

// Where the delegate of any island changes, a piece ends.
std::vector<IslandPiece> pieces_by_delegates(std::span<const Island> islands, std::uint64_t bytes, std::size_t element) {
  const std::uint64_t elements = bytes / element;
  std::vector<Island> sorted;
  std::vector<std::vector<std::uint64_t>> ends;  // by island, of its delegates' parts
  std::set<std::uint64_t> cuts;
  for (const Island& island : islands) {
    sorted.push_back(by_bandwidth(island));
    ends.push_back(ends_of(sorted.back().bandwidths, elements));
    cuts.insert(ends.back().begin(), ends.back().end());
  }
  std::vector<IslandPiece> pieces;
  std::uint64_t begin = 0;
  for (const std::uint64_t end : cuts) {
    if (end == begin) continue;
    IslandPiece piece{{begin * element, (end - begin) * element}, {}, {}};
    for (std::size_t island = 0; island < islands.size(); ++island) {
      const auto& of = ends[island];
      const auto at = std::ranges::upper_bound(of, begin) - of.begin();
      piece.delegates.push_back(sorted[island].ranks[static_cast<std::size_t>(at)]);
    }
    pieces.push_back(std::move(piece));
    begin = end;
  }
  return pieces;
}

// How a piece is cut. The first chunks of many are an eighth, a quarter and half of the others: answers to the other side's
// messages queue behind few bytes when both sides begin.
class Cut {
 public:
  Cut(std::uint64_t piece, std::uint64_t chunk, std::size_t element) : piece_(piece), chunk_(chunk) {
    constexpr std::uint64_t many = 16;
    if (piece / chunk >= many) first_ = chunk / 8 / element * element;
  }

  [[nodiscard]] std::uint64_t begin(std::uint64_t index) const {
    if (first_ == 0) return index * chunk_;
    return index < small ? first_ * ((std::uint64_t{1} << index) - 1) : all_small() + (index - small) * chunk_;
  }
  [[nodiscard]] std::uint64_t count() const {
    if (first_ == 0) return (piece_ - 1) / chunk_ + 1;
    return small + (piece_ - all_small() - 1) / chunk_ + 1;
  }

 private:
  static constexpr std::uint64_t small = 3;
  [[nodiscard]] std::uint64_t all_small() const { return first_ * ((1 << small) - 1); }

  std::uint64_t piece_, chunk_;  // bytes
  std::uint64_t first_ = 0;      // bytes; 0: as the others
};

// By piece.
std::vector<Cut> cuts_of(std::span<const IslandPiece> pieces, std::span<const Island> islands, const ChunkLimits& limits,
                         std::size_t element) {
  constexpr std::uint64_t most = 120;  // of one piece
  std::map<std::uint32_t, double> bandwidths;
  for (const Island& island : islands) {
    for (std::size_t i = 0; i < island.ranks.size(); ++i) bandwidths[island.ranks[i]] = island.bandwidths[i];
  }
  std::vector<std::uint64_t> least;
  for (const IslandPiece& piece : pieces) {
    double slowest = bandwidths[piece.delegates[0]];
    for (const std::uint32_t delegate : piece.delegates) slowest = std::min(slowest, bandwidths[delegate]);
    least.push_back(std::max<std::uint64_t>(1, limits.least_over(slowest)));
  }
  for (std::uint64_t count = most;; count = count * 3 / 4) {
    std::vector<Cut> cuts;
    std::map<std::uint32_t, std::uint64_t> chunks;  // by delegate
    bool fits = true;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const std::uint64_t wanted = std::max(least[i], (pieces[i].part.bytes - 1) / count + 1);
      cuts.emplace_back(pieces[i].part.bytes, (wanted + element - 1) / element * element, element);
      for (const std::uint32_t delegate : pieces[i].delegates)
        fits = (chunks[delegate] += cuts.back().count()) < result_rounds && fits;
    }
    if (fits || count == 1) return cuts;
  }
}

}  // namespace

std::vector<IslandPiece> island_pieces(std::span<const Island> islands, std::uint64_t bytes, std::size_t element) {
  const std::vector<IslandPiece> whole = pieces_by_delegates(islands, bytes, element);
  if (islands.size() == 2) return whole;
  std::vector<double> to_others;
  for (const Island& island : islands)
    to_others.push_back(std::accumulate(island.bandwidths.begin(), island.bandwidths.end(), 0.0));
  // An island without a share has one too small to matter, so that proportions stay positive.
  std::vector<double> shares = split_among_islands(to_others);
  for (double& share : shares) share = std::max(share, 1e-9);
  std::vector<IslandPiece> pieces;
  for (const IslandPiece& each : whole) {
    std::uint64_t from = 0;
    IslandPiece piece = each;
    piece.owner = 0;
    for (const std::uint64_t to : ends_of(shares, each.part.bytes / element)) {
      piece.part = {each.part.offset + from * element, (to - from) * element};
      if (piece.part.bytes > 0) pieces.push_back(piece);
      from = to;
      ++*piece.owner;
    }
  }
  return pieces;
}

std::vector<IslandPiece> owned_pieces(std::span<const Island> islands, std::size_t owner, std::uint64_t bytes,
                                      std::size_t element) {
  std::vector<IslandPiece> pieces = pieces_by_delegates(islands, bytes, element);
  for (IslandPiece& piece : pieces) piece.owner = owner;
  return pieces;
}

std::vector<IslandPiece> block_pieces(std::span<const Island> islands, const BlockLayout& blocks) {
  std::vector<IslandPiece> pieces;
  for (std::size_t owner = 0; owner < islands.size(); ++owner) {
    for (std::size_t i = 0; i < islands[owner].ranks.size(); ++i) {
      const std::uint32_t rank = islands[owner].ranks[i];
      if (blocks.counts[rank] == 0) continue;
      IslandPiece piece{{blocks.displacements[rank], blocks.counts[rank]}, {}, owner};
      for (std::size_t other = 0; other < islands.size(); ++other) {
        const std::vector<std::uint32_t>& ranks = islands[other].ranks;
        piece.delegates.push_back(other == owner ? rank : ranks[i % ranks.size()]);
      }
      pieces.push_back(std::move(piece));
    }
  }
  return pieces;
}

std::uint64_t most_pieces(std::span<const IslandPiece> pieces) {
  std::map<std::uint32_t, std::uint64_t> counts;
  std::uint64_t most = 0;
  for (const IslandPiece& piece : pieces) {
    for (const std::uint32_t delegate : piece.delegates) most = std::max(most, ++counts[delegate]);
  }
  return most;
}

std::vector<IslandChunk> chunks_of(std::span<const IslandPiece> pieces, std::span<const Island> islands, const ChunkLimits& limits,
                                   std::size_t element) {
  const std::vector<Cut> cuts = cuts_of(pieces, islands, limits, element);
  std::vector<IslandChunk> chunks;
  std::map<std::uint32_t, std::uint32_t> taken;  // by delegate
  bool left = true;
  for (std::uint64_t index = 0; std::exchange(left, false); ++index) {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const IslandPiece& piece = pieces[i];
      if (index >= cuts[i].count()) continue;
      const std::uint64_t begin = cuts[i].begin(index), end = std::min(cuts[i].begin(index + 1), piece.part.bytes);
      IslandChunk made{{piece.part.offset + begin, end - begin}, &piece, {}};
      for (const std::uint32_t delegate : piece.delegates) made.rounds.push_back(taken[delegate]++);
      chunks.push_back(std::move(made));
      left = true;
    }
  }
  return chunks;
}

}  // namespace hmc
