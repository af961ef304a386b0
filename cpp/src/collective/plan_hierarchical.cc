#include "collective/plan_hierarchical.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "collective/island_chunks.h"

namespace hmc {
namespace {

using Index = ScheduleBuilder::Index;
using Chunk = IslandChunk;

std::size_t island_of(std::span<const Island> islands, std::uint32_t rank) {
  const auto found = std::ranges::find_if(
      islands, [rank](const Island& island) { return std::ranges::find(island.ranks, rank) != island.ranks.end(); });
  return static_cast<std::size_t>(found - islands.begin());
}

// A delegate numbers its chunks. The number tells apart messages to it, and, counted from result_rounds on, those to its island.
std::uint8_t round_of(std::uint32_t number) { return static_cast<std::uint8_t>(number); }
std::uint8_t result_round_of(std::uint32_t number) { return static_cast<std::uint8_t>(result_rounds + number); }

// What of an all_reduce is carried out: a reduce_scatter has sums alone, an all_gather results alone. A reduce has sums, and the
// results go to its root, in whose island the owners are.
struct Stages {
  bool sums = true;
  bool results = true;
  std::optional<std::uint32_t> root = std::nullopt;
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
      : plan_(plan),
        rank_(rank),
        islands_(islands),
        tuning_(tuning),
        stages_(stages),
        origins_(origins),
        own_(island_of(islands, rank)) {}

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
  // The caller's output takes the result of this rank.
  [[nodiscard]] bool keeps_result() const { return stages_.root.value_or(rank_) == rank_; }

  void add(const Chunk& chunk) {
    const std::uint32_t delegate = chunk.piece->delegates[own_];
    const bool owns = chunk.piece->owner.value_or(own_) == own_;
    if (delegate != rank_) {
      if (stages_.results || stages_.root == rank_)
        plan_.receive(delegate, result_round_of(chunk.rounds[own_]), out(chunk), chunk.part.bytes);
      if (stages_.sums) send_input(chunk, delegate);
    } else if (!stages_.sums) {
      owns ? spread(chunk) : pass_on(chunk);
    } else {
      const Index summed = reduce_island(chunk);
      released_.push_back(owns ? reduce_islands(chunk, summed) : exchange(chunk, summed));
    }
  }

  void send_input(const Chunk& chunk, std::uint32_t delegate) {
    const Index step = plan_.send(delegate, round_of(chunk.rounds[own_]), in(chunk), chunk.part.bytes);
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
      received.push_back(after_release(plan_.receive(source, round_of(chunk.rounds[own_]), sources.back(), chunk.part.bytes)));
    }
    if (own_message) send_input(chunk, rank_);
    const Index step = plan_.reduce(rank_, sources, sum_slot(own_), chunk.part.bytes, ReducePhase::first);
    for (const Index before : received) plan_.order(before, step);
    return received.empty() ? after_release(step) : step;
  }

  // This rank completes the chunk. Returns the steps after which its slots may be used again.
  std::vector<Index> reduce_islands(const Chunk& chunk, Index summed) {
    const bool alone = chunk.piece->owner.has_value();  // else the other delegates complete it, too
    std::vector<Slice> sources;
    std::vector<Index> before{summed}, last;
    for (std::size_t island = 0; island < islands_.size(); ++island) {
      sources.push_back(sum_slot(island));
      if (island == own_) continue;
      const std::uint32_t from = chunk.piece->delegates[island];
      before.push_back(after_release(plan_.receive(from, round_of(chunk.rounds[own_]), sources.back(), chunk.part.bytes)));
      if (!alone) last.push_back(send_sum(chunk, island, summed));
    }
    const bool in_slot = tuning_.staged || !keeps_result();
    const Slice result = in_slot ? slot(ranks() + islands_.size()) : out(chunk);
    const Index reduced = plan_.reduce(rank_, sources, result, chunk.part.bytes, ReducePhase::last);
    for (const Index each : before) plan_.order(each, reduced);
    std::vector<Index> sent;
    if (stages_.results) sent = send_result(chunk, result, reduced, alone);
    if (!keeps_result()) {
      sent.push_back(send_result(chunk, *stages_.root, result, reduced));
    } else if (tuning_.staged) {
      plan_.receive(rank_, result_round_of(chunk.rounds[own_]), out(chunk), chunk.part.bytes);
      sent.push_back(send_result(chunk, rank_, result, reduced));
    }
    if (!in_slot) return concatenated(std::move(last), {reduced});
    return concatenated(std::move(last), sent);
  }

  // Another island's delegate completes it.
  std::vector<Index> exchange(const Chunk& chunk, Index summed) {
    if (stages_.results) pass_on(chunk);
    return {send_sum(chunk, *chunk.piece->owner, summed)};
  }
  static std::vector<Index> concatenated(std::vector<Index> first, const std::vector<Index>& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  }
  Index send_sum(const Chunk& chunk, std::size_t island, Index summed) {
    const Index sent = plan_.send(chunk.piece->delegates[island], round_of(chunk.rounds[island]), sum_slot(own_), chunk.part.bytes);
    plan_.order(summed, sent);
    return sent;
  }

  // This rank has the chunk.
  void spread(const Chunk& chunk) { send_result(chunk, in(chunk), std::nullopt, true); }

  // Another island's delegate has it.
  void pass_on(const Chunk& chunk) {
    const std::size_t owner = *chunk.piece->owner;
    const Index received =
        plan_.receive(chunk.piece->delegates[owner], result_round_of(chunk.rounds[owner]), out(chunk), chunk.part.bytes);
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
    const Index step = plan_.send(to, result_round_of(chunk.rounds[own_]), result, chunk.part.bytes);
    if (after) plan_.order(*after, step);
    return step;
  }

  ScheduleBuilder& plan_;
  const std::uint32_t rank_;
  const std::span<const Island> islands_;
  const ReduceTuning& tuning_;
  const Stages stages_;
  const Origins origins_;
  const std::size_t own_;                             // island of this rank
  std::uint64_t slot_ = 0;                            // bytes
  std::vector<std::vector<Index>> released_;          // by chunk of this delegate: after these steps its slots are free
  std::map<std::uint32_t, std::vector<Index>> sent_;  // inputs, by delegate
};

// One rank's steps of a chunk of a broadcast: from the root to its island's delegate, on to that of the owner, which informs those
// of the other islands; each delegate informs its island.
class BroadcastPlan {
 public:
  BroadcastPlan(ScheduleBuilder& plan, std::uint32_t rank, std::uint32_t root, std::span<const Island> islands)
      : plan_(plan),
        rank_(rank),
        root_(root),
        islands_(islands),
        own_(island_of(islands, rank)),
        first_(island_of(islands, root)) {}

  void add(const Chunk& chunk) {
    const std::uint32_t delegate = chunk.piece->delegates[own_];
    if (rank_ == root_ && delegate != rank_) {
      to_delegate(chunk, first_, std::nullopt);
    } else if (delegate != rank_) {
      plan_.receive(delegate, result_round_of(chunk.rounds[own_]), {Area::out, chunk.part.offset}, chunk.part.bytes);
    } else {
      pass_on(chunk);
    }
  }

 private:
  void pass_on(const Chunk& chunk) {
    const std::size_t owner = chunk.piece->owner.value_or(first_);
    const std::uint32_t source = own_ == first_  ? root_
                                 : own_ == owner ? chunk.piece->delegates[first_]
                                                 : chunk.piece->delegates[owner];
    std::optional<Index> received;
    if (rank_ != root_)
      received = plan_.receive(source, round_of(chunk.rounds[own_]), {Area::out, chunk.part.offset}, chunk.part.bytes);
    if (own_ == first_ && own_ != owner) to_delegate(chunk, owner, received);
    for (std::size_t island = 0; own_ == owner && island < islands_.size(); ++island) {
      if (island != own_ && island != first_) to_delegate(chunk, island, received);
    }
    for (const std::uint32_t to : islands_[own_].ranks) {
      if (to != rank_ && to != root_) send(to, result_round_of(chunk.rounds[own_]), chunk, received);
    }
  }
  void to_delegate(const Chunk& chunk, std::size_t island, std::optional<Index> after) {
    send(chunk.piece->delegates[island], round_of(chunk.rounds[island]), chunk, after);
  }
  void send(std::uint32_t to, std::uint8_t round, const Chunk& chunk, std::optional<Index> after) {
    const Index step = plan_.send(to, round, {Area::out, chunk.part.offset}, chunk.part.bytes);
    if (after) plan_.order(*after, step);
  }

  ScheduleBuilder& plan_;
  const std::uint32_t rank_, root_;
  const std::span<const Island> islands_;
  const std::size_t own_, first_;  // islands of this rank and of the root
};

}  // namespace

bool has_hierarchy(std::span<const Island> islands) {
  if (islands.size() < 2 || std::ranges::all_of(islands, [](const Island& island) { return island.ranks.size() == 1; }))
    return false;
  // Of arrays so large that no piece is empty.
  constexpr std::uint64_t large = std::uint64_t{1} << 50;
  std::size_t ranks = 0;
  for (const Island& island : islands) ranks += island.ranks.size();
  const std::vector<std::uint64_t> counts(ranks, 1), displacements(ranks, 0);
  return most_pieces(island_pieces(islands, large, 1)) < result_rounds &&
         most_pieces(block_pieces(islands, {counts, displacements})) < result_rounds;
}

Schedule plan_hierarchical_all_reduce(std::uint32_t rank, std::span<const Island> islands, std::uint64_t bytes, std::size_t element,
                                      const ReduceTuning& tuning) {
  const std::vector<IslandPiece> pieces = island_pieces(islands, bytes, element);
  ScheduleBuilder plan;
  return plan.finish(
      RankPlan(plan, rank, islands, tuning, {}, {}).add(chunks_of(pieces, islands, {tuning.chunk, tuning.border_chunk}, element)));
}

Schedule plan_hierarchical_reduce_scatter(std::uint32_t rank, std::span<const Island> islands, const BlockLayout& blocks,
                                          std::size_t element, const ReduceTuning& tuning) {
  const std::vector<IslandPiece> pieces = block_pieces(islands, blocks);
  ScheduleBuilder plan;
  return plan.finish(RankPlan(plan, rank, islands, tuning, {.results = false}, {.out = blocks.displacements[rank]})
                         .add(chunks_of(pieces, islands, {tuning.chunk, tuning.border_chunk}, element)));
}

Schedule plan_hierarchical_reduce(std::uint32_t rank, std::uint32_t root, std::span<const Island> islands, std::uint64_t bytes,
                                  std::size_t element, const ReduceTuning& tuning) {
  const std::vector<IslandPiece> pieces = owned_pieces(islands, island_of(islands, root), bytes, element);
  ScheduleBuilder plan;
  return plan.finish(RankPlan(plan, rank, islands, tuning, {.results = false, .root = root}, {})
                         .add(chunks_of(pieces, islands, {tuning.chunk, tuning.border_chunk}, element)));
}

Schedule plan_hierarchical_broadcast(std::uint32_t rank, std::uint32_t root, std::span<const Island> islands, std::uint64_t bytes,
                                     const ChunkLimits& limits) {
  const std::vector<IslandPiece> pieces = island_pieces(islands, bytes, 1);
  ScheduleBuilder plan;
  BroadcastPlan steps(plan, rank, root, islands);
  for (const Chunk& chunk : chunks_of(pieces, islands, limits, 1)) steps.add(chunk);
  return plan.finish();
}

void gather_hierarchically(ScheduleBuilder& plan, std::uint32_t rank, std::span<const Island> islands, const BlockLayout& blocks,
                           const ChunkLimits& limits) {
  const std::vector<IslandPiece> pieces = block_pieces(islands, blocks);
  const ReduceTuning tuning;
  RankPlan(plan, rank, islands, tuning, {.sums = false}, {.in = blocks.displacements[rank]})
      .add(chunks_of(pieces, islands, limits, 1));
}

}  // namespace hmc
