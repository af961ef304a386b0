#include "collective/plan_hierarchical.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "collective/border_split.h"
#include "collective/schedule_builder.h"

namespace hmc {
namespace {

using Index = ScheduleBuilder::Index;

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

// A part of a piece that is moved and reduced at once.
struct Chunk {
  Part part;
  const IslandPiece* piece;
  std::vector<std::uint32_t> rounds;  // by island: how many chunks its delegate has before this one
};

// First chunks of all pieces, then second ones, and so on: all delegates are busy from the start.
std::vector<Chunk> chunks_of(std::span<const IslandPiece> pieces, std::uint64_t chunk) {
  std::vector<Chunk> chunks;
  std::map<std::uint32_t, std::uint32_t> taken;  // by delegate
  for (std::uint64_t begin = 0, left = 1; left > 0; begin += chunk) {
    left = 0;
    for (const IslandPiece& piece : pieces) {
      if (begin >= piece.part.bytes) continue;
      Chunk made{{piece.part.offset + begin, std::min(chunk, piece.part.bytes - begin)}, &piece, {}};
      for (const std::uint32_t delegate : piece.delegates) made.rounds.push_back(taken[delegate]++);
      chunks.push_back(std::move(made));
      left += piece.part.bytes - begin > chunk ? 1 : 0;
    }
  }
  return chunks;
}

// The most that one delegate has.
std::uint64_t most_chunks(std::span<const IslandPiece> pieces, std::uint64_t chunk) {
  std::map<std::uint32_t, std::uint64_t> chunks;
  std::uint64_t most = 0;
  for (const IslandPiece& piece : pieces) {
    for (const std::uint32_t delegate : piece.delegates)
      most = std::max(most, chunks[delegate] += (piece.part.bytes - 1) / chunk + 1);
  }
  return most;
}

// So large that each delegate's chunks can be told apart: has_hierarchy() says that pieces can.
std::uint64_t chunk_bytes(std::span<const IslandPiece> pieces, std::uint64_t wanted, std::size_t element) {
  std::uint64_t chunk = std::max<std::uint64_t>((wanted + element - 1) / element, 1) * element;
  while (most_chunks(pieces, chunk) >= result_rounds) chunk *= 2;
  return chunk;
}

// What of an all_reduce is carried out: a reduce_scatter has sums alone, an all_gather results alone.
struct Stages {
  bool sums = true;
  bool results = true;
};

// Where the array of all pieces begins in this rank's buffers: its offsets less those of the areas.
struct Origins {
  std::uint64_t in = 0, out = 0;
};

// The steps of one rank.
class RankPlan {
 public:
  RankPlan(ScheduleBuilder& plan, std::uint32_t rank, std::span<const Island> islands, const ReduceTuning& tuning, Stages stages,
           Origins origins)
      : plan_(plan), rank_(rank), islands_(islands), tuning_(tuning), stages_(stages), origins_(origins) {
    while (std::ranges::find(islands_[own_].ranks, rank_) == islands_[own_].ranks.end()) ++own_;
  }

  // Returns the bytes of Area::scratch.
  std::uint64_t add(std::span<const Chunk> chunks) {
    for (const Chunk& chunk : chunks) slot_ = std::max(slot_, chunk.part.bytes);
    for (const Chunk& chunk : chunks) add(chunk);
    return stages_.sums ? most_slots() * tuning_.window * slot_ : 0;
  }

 private:
  [[nodiscard]] std::uint32_t ranks() const { return static_cast<std::uint32_t>(islands_[own_].ranks.size()); }
  // Inputs of the island's ranks, sums of all islands, the result.
  [[nodiscard]] std::uint64_t most_slots() const { return ranks() + islands_.size() + 1; }
  [[nodiscard]] Slice slot(std::uint64_t which) const {
    return {Area::scratch, ((released_.size() % tuning_.window) * most_slots() + which) * slot_};
  }
  [[nodiscard]] Slice sum_slot(std::size_t island) const { return slot(ranks() + island); }
  [[nodiscard]] Slice in(const Chunk& chunk) const { return {Area::in, chunk.part.offset - origins_.in}; }
  [[nodiscard]] Slice out(const Chunk& chunk) const { return {Area::out, chunk.part.offset - origins_.out}; }
  static std::uint8_t round(std::uint32_t number) { return static_cast<std::uint8_t>(number); }
  static std::uint8_t result_round(std::uint32_t number) { return static_cast<std::uint8_t>(result_rounds + number); }

  void add(const Chunk& chunk) {
    const std::uint32_t delegate = chunk.piece->delegates[own_];
    const bool owns = chunk.piece->owner == own_;
    if (delegate != rank_) {
      if (stages_.results) plan_.receive(delegate, result_round(chunk.rounds[own_]), out(chunk), chunk.part.bytes);
      if (stages_.sums) send_input(chunk, delegate);
    } else if (!stages_.sums) {
      owns ? spread(chunk) : pass_on(chunk);
    } else {
      const Index summed = reduce_island(chunk);
      released_.push_back(owns ? reduce_islands(chunk, summed) : exchange(chunk, summed));
    }
  }

  void send_input(const Chunk& chunk, std::uint32_t delegate) {
    const Index step = plan_.send(delegate, round(chunk.rounds[own_]), in(chunk), chunk.part.bytes);
    auto& sent = sent_[delegate];
    if (sent.size() >= tuning_.window) plan_.order(sent[sent.size() - tuning_.window], step);
    sent.push_back(step);
  }

  // `step` uses a slot of this chunk, and comes after what used it before.
  Index after_release(Index step) {
    if (released_.size() >= tuning_.window) {
      for (const Index before : released_[released_.size() - tuning_.window]) plan_.order(before, step);
    }
    return step;
  }

  // This island's sum, into its slot.
  Index reduce_island(const Chunk& chunk) {
    const bool own_message = tuning_.staged;
    std::vector<Slice> sources;
    std::vector<Index> received;
    for (std::uint32_t i = 0; i < ranks(); ++i) {
      const std::uint32_t source = islands_[own_].ranks[i];
      const bool message = source != rank_ || own_message;
      sources.push_back(message ? slot(i) : in(chunk));
      if (!message) continue;
      received.push_back(after_release(plan_.receive(source, round(chunk.rounds[own_]), sources.back(), chunk.part.bytes)));
    }
    if (own_message) send_input(chunk, rank_);
    const Index step = plan_.reduce(rank_, sources, sum_slot(own_), chunk.part.bytes, ReducePhase::first);
    for (const Index before : received) plan_.order(before, step);
    return received.empty() ? after_release(step) : step;
  }

  // This rank completes the chunk. Returns the steps after which its slots may be used again.
  std::vector<Index> reduce_islands(const Chunk& chunk, Index summed) {
    std::vector<Slice> sources;
    std::vector<Index> before{summed};
    for (std::size_t island = 0; island < islands_.size(); ++island) {
      sources.push_back(sum_slot(island));
      if (island == own_) continue;
      const std::uint32_t from = chunk.piece->delegates[island];
      before.push_back(after_release(plan_.receive(from, round(chunk.rounds[own_]), sources.back(), chunk.part.bytes)));
    }
    const Slice result = tuning_.staged ? slot(ranks() + islands_.size()) : out(chunk);
    const Index reduced = plan_.reduce(rank_, sources, result, chunk.part.bytes, ReducePhase::last);
    for (const Index each : before) plan_.order(each, reduced);
    std::vector<Index> last;
    if (stages_.results) last = send_result(chunk, result, reduced, true);
    if (!tuning_.staged) return {reduced};
    plan_.receive(rank_, result_round(chunk.rounds[own_]), out(chunk), chunk.part.bytes);
    last.push_back(send_result(chunk, rank_, result, reduced));
    return last;
  }

  // Another island's delegate completes it.
  std::vector<Index> exchange(const Chunk& chunk, Index summed) {
    const std::uint32_t owner = chunk.piece->delegates[chunk.piece->owner];
    if (stages_.results) pass_on(chunk);
    const Index sent = plan_.send(owner, round(chunk.rounds[chunk.piece->owner]), sum_slot(own_), chunk.part.bytes);
    plan_.order(summed, sent);
    return {sent};
  }

  // This rank has the chunk.
  void spread(const Chunk& chunk) { send_result(chunk, in(chunk), std::nullopt, true); }

  // Another island's delegate has it.
  void pass_on(const Chunk& chunk) {
    const std::size_t owner = chunk.piece->owner;
    const Index received =
        plan_.receive(chunk.piece->delegates[owner], result_round(chunk.rounds[owner]), out(chunk), chunk.part.bytes);
    send_result(chunk, out(chunk), received, false);
  }

  // To the other delegates, where `to_islands`, then to the ranks of this island.
  std::vector<Index> send_result(const Chunk& chunk, const Slice& result, std::optional<Index> after, bool to_islands) {
    std::vector<Index> sent;
    for (std::size_t island = 0; to_islands && island < islands_.size(); ++island) {
      if (island != own_) sent.push_back(send_result(chunk, chunk.piece->delegates[island], result, after));
    }
    for (const std::uint32_t to : islands_[own_].ranks) {
      if (to != rank_) sent.push_back(send_result(chunk, to, result, after));
    }
    return sent;
  }
  Index send_result(const Chunk& chunk, std::uint32_t to, const Slice& result, std::optional<Index> after) {
    const Index step = plan_.send(to, result_round(chunk.rounds[own_]), result, chunk.part.bytes);
    if (after) plan_.order(*after, step);
    return step;
  }

  ScheduleBuilder& plan_;
  const std::uint32_t rank_;
  const std::span<const Island> islands_;
  const ReduceTuning& tuning_;
  const Stages stages_;
  const Origins origins_;
  std::size_t own_ = 0;                               // island of this rank
  std::uint64_t slot_ = 0;                            // bytes
  std::vector<std::vector<Index>> released_;          // by chunk of this delegate: after these steps its slots are free
  std::map<std::uint32_t, std::vector<Index>> sent_;  // inputs, by delegate
};

// Block r is that of rank r, and goes through a rank of each other island.
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

}  // namespace

bool has_hierarchy(std::span<const Island> islands) {
  if (islands.size() < 2 || std::ranges::all_of(islands, [](const Island& island) { return island.ranks.size() == 1; }))
    return false;
  // Of arrays so large that no piece is empty.
  constexpr std::uint64_t large = std::uint64_t{1} << 50;
  std::size_t ranks = 0;
  for (const Island& island : islands) ranks += island.ranks.size();
  const std::vector<std::uint64_t> counts(ranks, 1), displacements(ranks, 0);
  return most_chunks(island_pieces(islands, large, 1), large) < result_rounds &&
         most_chunks(block_pieces(islands, {counts, displacements}), large) < result_rounds;
}

std::vector<IslandPiece> island_pieces(std::span<const Island> islands, std::uint64_t bytes, std::size_t element) {
  const std::uint64_t elements = bytes / element;
  std::vector<Island> sorted;
  std::vector<std::vector<std::uint64_t>> ends;  // by island, of its delegates' parts
  std::set<std::uint64_t> cuts;
  std::vector<double> to_others;
  for (const Island& island : islands) {
    sorted.push_back(by_bandwidth(island));
    ends.push_back(ends_of(sorted.back().bandwidths, elements));
    cuts.insert(ends.back().begin(), ends.back().end());
    to_others.push_back(std::accumulate(island.bandwidths.begin(), island.bandwidths.end(), 0.0));
  }
  // An island without a share has one too small to matter, so that proportions stay positive.
  std::vector<double> shares = split_among_islands(to_others);
  for (double& share : shares) share = std::max(share, 1e-9);
  std::vector<IslandPiece> pieces;
  std::uint64_t begin = 0;
  for (const std::uint64_t end : cuts) {
    if (end == begin) continue;
    IslandPiece piece;
    for (std::size_t island = 0; island < islands.size(); ++island) {
      const auto& of = ends[island];
      const auto at = std::ranges::upper_bound(of, begin) - of.begin();
      piece.delegates.push_back(sorted[island].ranks[static_cast<std::size_t>(at)]);
    }
    std::uint64_t from = begin;
    for (const std::uint64_t to : ends_of(shares, end - begin)) {
      piece.part = {from * element, (begin + to - from) * element};
      if (piece.part.bytes > 0) pieces.push_back(piece);
      from = begin + to;
      ++piece.owner;
    }
    begin = end;
  }
  return pieces;
}

Schedule plan_hierarchical_all_reduce(std::uint32_t rank, std::span<const Island> islands, std::uint64_t bytes, std::size_t element,
                                      const ReduceTuning& tuning) {
  const std::vector<IslandPiece> pieces = island_pieces(islands, bytes, element);
  ScheduleBuilder plan;
  return plan.finish(
      RankPlan(plan, rank, islands, tuning, {}, {}).add(chunks_of(pieces, chunk_bytes(pieces, tuning.chunk, element))));
}

Schedule plan_hierarchical_reduce_scatter(std::uint32_t rank, std::span<const Island> islands, const BlockLayout& blocks,
                                          std::size_t element, const ReduceTuning& tuning) {
  const std::vector<IslandPiece> pieces = block_pieces(islands, blocks);
  ScheduleBuilder plan;
  return plan.finish(RankPlan(plan, rank, islands, tuning, {.results = false}, {.out = blocks.displacements[rank]})
                         .add(chunks_of(pieces, chunk_bytes(pieces, tuning.chunk, element))));
}

void gather_hierarchically(ScheduleBuilder& plan, std::uint32_t rank, std::span<const Island> islands, const BlockLayout& blocks,
                           std::uint64_t chunk) {
  const std::vector<IslandPiece> pieces = block_pieces(islands, blocks);
  const ReduceTuning tuning;
  RankPlan(plan, rank, islands, tuning, {.sums = false}, {.in = blocks.displacements[rank]})
      .add(chunks_of(pieces, chunk_bytes(pieces, chunk, 1)));
}

}  // namespace hmc
