#include "collective/plan_reduce.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "collective/parts.h"
#include "collective/plan_hierarchical.h"
#include "collective/schedule_builder.h"

namespace hmc {
namespace {

using Index = ScheduleBuilder::Index;

// Which rank reduces which part of the input.
struct Shares {
  std::uint32_t rank;
  std::uint32_t size;
  std::vector<std::optional<Part>> parts;  // by the rank that reduces it; none: it reduces nothing
  std::uint64_t chunk;                     // bytes
  std::uint32_t window;                    // chunks of its own that it receives at a time
  std::uint32_t send_window;               // chunks that it sends at a time to each
  bool staged;

  [[nodiscard]] std::uint32_t ahead(std::uint32_t distance) const { return (rank + distance) % size; }
  // An empty part has one empty chunk, so that every rank finds out about sizes that differ.
  [[nodiscard]] std::uint32_t chunks(std::uint32_t of) const {
    if (!parts[of]) return 0;
    return std::max<std::uint32_t>(1, static_cast<std::uint32_t>((parts[of]->bytes + chunk - 1) / chunk));
  }
  [[nodiscard]] Part piece(std::uint32_t of, std::uint32_t index) const {
    const std::uint64_t begin = index * chunk;
    return {parts[of]->offset + begin, std::min(chunk, parts[of]->bytes - begin)};
  }
  [[nodiscard]] std::uint64_t largest() const {
    std::uint64_t most = 0;
    for (const auto& part : parts) most = std::max(most, part ? part->bytes : 0);
    return most;
  }
  void divide(std::uint64_t bytes, std::size_t element) {
    const auto equal = equal_parts(size, bytes, element);
    parts.assign(equal.begin(), equal.end());
  }
  // Chunks large enough that their numbers fit into rounds, and slots for `window` of them from every rank.
  void cut(std::uint64_t wanted, std::uint32_t most_window, std::size_t element) {
    const std::uint64_t least = (largest() + result_rounds - 2) / (result_rounds - 1);
    chunk = std::max({wanted, least, std::uint64_t{1}});
    chunk = (chunk + element - 1) / element * element;
    window = std::clamp<std::uint32_t>(chunks(rank), 1, most_window);
  }
  [[nodiscard]] std::uint64_t slot_bytes() const { return parts[rank] ? std::min(chunk, parts[rank]->bytes) : 0; }
  [[nodiscard]] Slice slot(std::uint32_t index, std::uint32_t of) const {
    return {Area::scratch, ((index % window) * size + of) * slot_bytes()};
  }
  [[nodiscard]] std::uint64_t scratch() const { return window * size * slot_bytes(); }
};

// One chunk reduced: where the result is, and the step that made it.
struct Reduced {
  Index step;
  Slice where;
  Part piece;
  std::uint32_t index;
};

// Posts this rank's receives and reductions. `target(piece)`: where the result of a chunk goes; none: it stays in its slot.
// `deliver(reduced)`: posts what becomes of it; the steps that must be complete before its slot is used again.
// Returns the reductions.
template <class Target, class Deliver>
std::vector<Index> reduce_own(ScheduleBuilder& plan, const Shares& shares, const Target& target, const Deliver& deliver) {
  const std::uint32_t rank = shares.rank;
  std::vector<Index> reductions;
  std::vector<std::vector<Index>> released;
  for (std::uint32_t c = 0; c < shares.chunks(rank); ++c) {
    const auto round = static_cast<std::uint8_t>(c);
    const Part piece = shares.piece(rank, c);
    std::vector<Index> received(shares.size);
    std::vector<Slice> sources(shares.size);
    const bool own_message = shares.staged;
    for (std::uint32_t distance = own_message ? 0 : 1; distance < shares.size; ++distance) {
      const std::uint32_t source = (rank + shares.size - distance) % shares.size;
      sources[source] = shares.slot(c, source);
      received[source] = plan.receive(source, round, sources[source], piece.bytes);
      if (c < shares.window) continue;
      for (const Index before : released[c - shares.window]) plan.order(before, received[source]);
    }
    if (!own_message) sources[rank] = {Area::in, piece.offset};
    const std::optional<Slice> out = target(piece);
    const Slice where = out ? *out : shares.slot(c, rank);
    const Index step = plan.reduce(rank, sources, where, piece.bytes);
    for (std::uint32_t source = 0; source < shares.size; ++source) {
      if (source != rank || own_message) plan.order(received[source], step);
    }
    reductions.push_back(step);
    auto last = deliver(Reduced{step, where, piece, c});
    released.push_back(last.empty() ? std::vector<Index>{step} : std::move(last));
  }
  return reductions;
}

// Sends the other ranks what they reduce.
std::vector<Index> send_inputs(ScheduleBuilder& plan, const Shares& shares) {
  std::vector<Index> all;
  std::uint32_t most = 0;
  for (std::uint32_t r = 0; r < shares.size; ++r) most = std::max(most, shares.chunks(r));
  std::vector<std::vector<Index>> sent(shares.size);
  for (std::uint32_t c = 0; c < most; ++c) {
    for (std::uint32_t distance = shares.staged ? 0 : 1; distance < shares.size; ++distance) {
      const std::uint32_t target = shares.ahead(distance);
      if (c >= shares.chunks(target)) continue;
      const Part piece = shares.piece(target, c);
      const Index step = plan.send(target, static_cast<std::uint8_t>(c), {Area::in, piece.offset}, piece.bytes);
      if (c >= shares.send_window) plan.order(sent[target][c - shares.send_window], step);
      sent[target].push_back(step);
      all.push_back(step);
    }
  }
  return all;
}

std::uint8_t result_round(std::uint32_t chunk) noexcept { return static_cast<std::uint8_t>(result_rounds + chunk); }

// The rank's own result, from its slot in host memory to its device.
Index unstage(ScheduleBuilder& plan, std::uint32_t rank, const Reduced& reduced, const Slice& out) {
  plan.receive(rank, result_round(reduced.index), out, reduced.piece.bytes);
  const Index step = plan.send(rank, result_round(reduced.index), reduced.where, reduced.piece.bytes);
  plan.order(reduced.step, step);
  return step;
}

// In place: what is reduced here overwrites what others are to receive.
void order_all(ScheduleBuilder& plan, const std::vector<Index>& before, const std::vector<Index>& after) {
  for (const Index first : before) {
    for (const Index second : after) plan.order(first, second);
  }
}

// Everybody who reduces gets the whole input of everybody, in one round.
Schedule whole(Shares shares, std::span<const std::uint32_t> reducers, std::uint64_t bytes) {
  for (const std::uint32_t r : reducers) shares.parts[r] = Part{0, bytes};
  shares.chunk = std::max<std::uint64_t>(bytes, 1);
  shares.window = 1;
  ScheduleBuilder plan;
  const auto target = [&](const Part&) { return shares.staged ? std::nullopt : std::optional(Slice{Area::out, 0}); };
  const auto reductions = reduce_own(plan, shares, target, [&](const Reduced& reduced) {
    return shares.staged ? std::vector{unstage(plan, shares.rank, reduced, {Area::out, 0})} : std::vector<Index>{};
  });
  order_all(plan, send_inputs(plan, shares), reductions);
  return plan.finish(shares.scratch());
}

Shares shares_of(std::uint32_t rank, std::uint32_t size, const ReduceTuning& tuning) {
  return {.rank = rank,
          .size = size,
          .parts = std::vector<std::optional<Part>>(size),
          .chunk = tuning.chunk,
          .window = tuning.window,
          .send_window = tuning.window,
          .staged = tuning.staged};
}

}  // namespace

Schedule plan_all_reduce(std::uint32_t rank, std::uint32_t size, std::uint64_t bytes, std::size_t element,
                         const ReduceTuning& tuning) {
  if (reduces_hierarchically(bytes, tuning)) return plan_hierarchical_all_reduce(rank, *tuning.islands, bytes, element, tuning);
  Shares shares = shares_of(rank, size, tuning);
  if (all_reduce_whole(size, bytes, tuning)) {
    std::vector<std::uint32_t> everybody(size);
    for (std::uint32_t r = 0; r < size; ++r) everybody[r] = r;
    return whole(std::move(shares), everybody, bytes);
  }
  shares.divide(bytes, element);
  shares.cut(tuning.chunk, tuning.window, element);
  ScheduleBuilder plan;
  // A part is overwritten, where the call is in place, by the result of a rank that has received it.
  for (std::uint32_t distance = 1; distance < size; ++distance) {
    const std::uint32_t source = (rank + size - distance) % size;
    for (std::uint32_t c = 0; c < shares.chunks(source); ++c) {
      const Part piece = shares.piece(source, c);
      plan.receive(source, result_round(c), {Area::out, piece.offset}, piece.bytes);
    }
  }
  const auto target = [&](const Part& piece) {
    return shares.staged ? std::nullopt : std::optional(Slice{Area::out, piece.offset});
  };
  reduce_own(plan, shares, target, [&](const Reduced& reduced) {
    std::vector<Index> sent;
    for (std::uint32_t distance = 1; distance < size; ++distance) {
      const Index step = plan.send(shares.ahead(distance), result_round(reduced.index), reduced.where, reduced.piece.bytes);
      plan.order(reduced.step, step);
      sent.push_back(step);
    }
    if (!shares.staged) return std::vector<Index>{};
    sent.push_back(unstage(plan, rank, reduced, {Area::out, reduced.piece.offset}));
    return sent;
  });
  send_inputs(plan, shares);
  return plan.finish(shares.scratch());
}

Schedule plan_reduce_scatter(std::uint32_t rank, std::uint32_t size, const BlockLayout& blocks, std::size_t element,
                             const ReduceTuning& tuning) {
  if (reduces_hierarchically(std::reduce(blocks.counts.begin(), blocks.counts.end()), tuning))
    return plan_hierarchical_reduce_scatter(rank, *tuning.islands, blocks, element, tuning);
  Shares shares = shares_of(rank, size, tuning);
  for (std::uint32_t r = 0; r < size; ++r) shares.parts[r] = Part{blocks.displacements[r], blocks.counts[r]};
  shares.cut(tuning.chunk, tuning.window, element);
  const auto out = [&](const Part& piece) { return Slice{Area::out, piece.offset - blocks.displacements[rank]}; };
  ScheduleBuilder plan;
  const auto target = [&](const Part& piece) { return shares.staged ? std::nullopt : std::optional(out(piece)); };
  reduce_own(plan, shares, target, [&](const Reduced& reduced) {
    return shares.staged ? std::vector{unstage(plan, rank, reduced, out(reduced.piece))} : std::vector<Index>{};
  });
  send_inputs(plan, shares);
  return plan.finish(shares.scratch());
}

Schedule plan_reduce(std::uint32_t rank, std::uint32_t size, std::uint32_t root, std::uint64_t bytes, std::size_t element,
                     const ReduceTuning& tuning) {
  if (reduces_hierarchically(bytes, tuning)) return plan_hierarchical_reduce(rank, root, *tuning.islands, bytes, element, tuning);
  Shares shares = shares_of(rank, size, tuning);
  if (reduce_whole(size, bytes, tuning)) return whole(std::move(shares), {&root, 1}, bytes);
  shares.divide(bytes, element);
  shares.cut(tuning.chunk, tuning.window, element);
  ScheduleBuilder plan;
  for (std::uint32_t source = 0; rank == root && source < size; ++source) {
    for (std::uint32_t c = 0; source != root && c < shares.chunks(source); ++c) {
      const Part piece = shares.piece(source, c);
      plan.receive(source, result_round(c), {Area::out, piece.offset}, piece.bytes);
    }
  }
  const bool stays = rank == root && !shares.staged;
  const auto target = [&](const Part& piece) { return stays ? std::optional(Slice{Area::out, piece.offset}) : std::nullopt; };
  reduce_own(plan, shares, target, [&](const Reduced& reduced) {
    if (stays) return std::vector<Index>{};
    if (rank == root) return std::vector{unstage(plan, rank, reduced, {Area::out, reduced.piece.offset})};
    const Index step = plan.send(root, result_round(reduced.index), reduced.where, reduced.piece.bytes);
    plan.order(reduced.step, step);
    return std::vector{step};
  });
  send_inputs(plan, shares);
  return plan.finish(shares.scratch());
}

}  // namespace hmc
