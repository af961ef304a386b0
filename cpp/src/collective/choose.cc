#include "collective/choose.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <utility>
#include <vector>

#include "collective/island_chunks.h"

namespace hmc {
namespace {

constexpr std::array equal_calls{CallKind::all_reduce, CallKind::reduce_scatter, CallKind::reduce,
                                 CallKind::all_gather, CallKind::broadcast,      CallKind::gather,
                                 CallKind::scatter,    CallKind::all_to_all,     CallKind::barrier};

bool has_root(CallKind kind) {
  return kind == CallKind::reduce || kind == CallKind::broadcast || kind == CallKind::gather || kind == CallKind::scatter;
}
bool has_blocks(CallKind kind) {
  return kind == CallKind::reduce_scatter || kind == CallKind::all_gather || kind == CallKind::gather ||
         kind == CallKind::scatter || kind == CallKind::all_to_all;
}

struct PackedBlocks {
  explicit PackedBlocks(const EqualCall& call) : counts(call.size, call.bytes / call.size), displacements(call.size) {
    for (std::uint32_t r = 0; r < call.size; ++r) displacements[r] = r * counts[r];
  }
  [[nodiscard]] BlockLayout layout() const { return {counts, displacements}; }
  std::vector<std::uint64_t> counts, displacements;
};

std::uint32_t rounds_of(std::uint32_t ranks) { return static_cast<std::uint32_t>(std::bit_width(ranks - 1)); }
std::string counted(std::uint64_t n, const char* what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); }

// ", chunks of 256 KiB" where the largest message is less than a `part`.
std::string chunks_text(const EqualCall& call, const Tuning& tuning, std::uint64_t part) {
  std::uint64_t largest = 0;
  for (std::uint32_t rank = 0; rank < std::min(call.size, 2U); ++rank) {
    for (const Step& step : schedule_of(call, rank, tuning).steps) {
      if (step.kind == StepKind::send) largest = std::max(largest, step.bytes);
    }
  }
  return largest < part ? ", chunks of " + bytes_text(largest) : "";
}

std::string share_text(const EqualCall& call) { return "each rank reduces 1/" + std::to_string(call.size) + " of the elements"; }

Choice choice(const EqualCall& call, Algorithm algorithm, std::string reason, const std::string& chunks = "") {
  return {algorithm, std::string(name_of(call.kind, algorithm)) + chunks, std::move(reason)};
}

Choice hierarchical_choice(const EqualCall& call, const Tuning& tuning) {
  const std::vector<Island>& islands = *call.islands;
  const auto largest = std::ranges::max_element(islands, {}, [](const Island& island) { return island.ranks.size(); });
  std::uint64_t part = call.bytes / call.size;
  if (!has_blocks(call.kind)) {
    const std::size_t element = reduces(call.kind) ? call.element : 1;
    for (const IslandPiece& piece : island_pieces(islands, call.bytes, element)) part = std::max(part, piece.part.bytes);
  }
  std::string saved = "leaves an island once for each other one, not " + counted(largest->ranks.size(), "time");
  if (call.kind == CallKind::broadcast) saved = "enters each other island once";
  if (call.kind == CallKind::reduce) saved = "leaves an island once";
  return choice(call, Algorithm::hierarchical,
                bytes_text(call.bytes) + " are at least " + bytes_text(tuning.reduce.hierarchical) + ", and the ranks are in " +
                    std::to_string(islands.size()) + " islands: each byte " + saved + ".",
                chunks_text(call, tuning, part));
}

Choice all_reduce_choice(const EqualCall& call, const Tuning& tuning) {
  const std::string inputs = "The inputs are " + bytes_text(call.bytes * call.size) + " together, ";
  const std::string limit = bytes_text(tuning.reduce.whole);
  if (reduces_hierarchically(call.bytes, tuning.reduce)) return hierarchical_choice(call, tuning);
  if (all_reduce_whole(call.size, call.bytes, tuning.reduce))
    return choice(call, Algorithm::whole, inputs + "at most " + limit + ": one round costs less than two.");
  char sent[64] = "";
  if (call.size > 2)
    std::snprintf(sent, sizeof sent, " and sends %.2f times its input, not %u times", 2 - 2.0 / call.size, call.size - 1);
  return choice(call, Algorithm::divided, inputs + "more than " + limit + ": " + share_text(call) + sent + ".",
                chunks_text(call, tuning, call.bytes / call.size));
}

Choice reduce_choice(const EqualCall& call, const Tuning& tuning) {
  if (reduces_hierarchically(call.bytes, tuning.reduce)) return hierarchical_choice(call, tuning);
  const std::string input = "An input has " + bytes_text(call.bytes) + ", ", limit = bytes_text(tuning.reduce.whole);
  if (reduce_whole(call.size, call.bytes, tuning.reduce))
    return choice(call, Algorithm::whole, input + "at most " + limit + ": one round costs less than two.");
  return choice(call, Algorithm::divided, input + "more than " + limit + ": " + share_text(call) + ".",
                chunks_text(call, tuning, call.bytes / call.size));
}

Choice all_gather_choice(const EqualCall& call, const Tuning& tuning) {
  if (spreads_hierarchically(call.bytes, tuning.spread)) return hierarchical_choice(call, tuning);
  const std::string blocks = "The blocks have " + bytes_text(call.bytes) + " together, ", limit = bytes_text(tuning.spread.tree);
  if (gathers_by_doubling(call.size, call.bytes, tuning.spread)) {
    return choice(call, Algorithm::tree,
                  blocks + "at most " + limit + ": " + counted(rounds_of(call.size), "round") + " in place of " +
                      counted(call.size - 1, "message") + " of each rank.");
  }
  if (call.size == 2) return choice(call, Algorithm::direct, "Two ranks exchange their blocks.");
  return choice(call, Algorithm::direct, blocks + "more than " + limit + ": each block goes straight to every rank.");
}

Choice broadcast_choice(const EqualCall& call, const Tuning& tuning) {
  if (spreads_hierarchically(call.bytes, tuning.spread)) return hierarchical_choice(call, tuning);
  const std::string limit = bytes_text(tuning.spread.tree), size = bytes_text(call.bytes);
  if (!broadcasts_by_tree(call.size, call.bytes, tuning.spread)) {
    const std::uint64_t share = (call.bytes + call.size - 2) / (call.size - 1);
    return choice(call, Algorithm::divided,
                  size + " is more than " + limit + ": the root sends each byte once, and the receivers pass it on.",
                  chunks_text(call, tuning, share));
  }
  if (call.size == 2) return choice(call, Algorithm::direct, "There is one receiver.");
  return choice(call, Algorithm::tree,
                size + " is at most " + limit + ": " + counted(rounds_of(call.size), "round") + " inform " +
                    std::to_string(call.size) + " ranks.");
}

Choice all_to_all_choice(const EqualCall& call, const Tuning& tuning) {
  const AllToAllTuning& limits = tuning.all_to_all;
  const std::uint64_t block = call.bytes / call.size;
  if (relays(call.size, block, limits)) {
    return choice(call, Algorithm::relayed,
                  "Blocks of " + bytes_text(block) +
                      " cost more in messages than in bytes: " + counted(rounds_of(call.size), "message") +
                      " of each rank in place of " + std::to_string(call.size - 1) + ".");
  }
  return choice(call, Algorithm::direct,
                "Each block goes straight to its rank: only blocks of at most " + bytes_text(limits.relay_block) + " among " +
                    std::to_string(limits.relay_ranks) + " ranks and more are relayed.");
}

}  // namespace

Tuning tuning_for(bool host, bool staged, Algorithm algorithm) {
  return {all_to_all_tuning(host, algorithm), reduce_tuning(staged, algorithm), spread_tuning(host, false, algorithm)};
}

Result<CallKind> equal_call_kind(std::string_view name) {
  std::string all;
  for (const CallKind kind : equal_calls) {
    if (name_of(kind) == name) return kind;
    all += (all.empty() ? "" : ", ") + std::string(name_of(kind));
  }
  return Status(Code::invalid_argument,
                "plan: \"" + std::string(name) + "\" is no collective that can be planned; there are " + all);
}

Status check_call(const EqualCall& call) {
  const std::string what = "plan of " + std::string(name_of(call.kind)) + ": ";
  const std::string bytes = std::to_string(call.bytes) + " bytes";
  if (call.size == 0) return {Code::invalid_argument, what + "0 ranks; a group has at least 1"};
  if (call.bytes > (std::uint64_t{1} << 62) / call.size) {
    return {Code::invalid_argument,
            what + bytes + " of each of " + std::to_string(call.size) + " ranks are more than 2^62 together"};
  }
  if (call.kind == CallKind::barrier && call.bytes != 0) return {Code::invalid_argument, what + bytes + "; a barrier has none"};
  if (has_blocks(call.kind) && call.bytes % call.size != 0) {
    return {Code::invalid_argument, what + bytes + " are no " + std::to_string(call.size) + " equal blocks, one for each rank"};
  }
  const std::uint64_t reduced = call.kind == CallKind::reduce_scatter ? call.bytes / call.size : call.bytes;
  if (reduces(call.kind) && (call.element == 0 || reduced % call.element != 0)) {
    return {Code::invalid_argument,
            what + std::to_string(reduced) + " bytes are no whole elements of " + std::to_string(call.element)};
  }
  if (has_root(call.kind) && call.root >= call.size) {
    return {Code::invalid_argument, what + "root " + std::to_string(static_cast<std::int32_t>(call.root)) +
                                        " is no rank; there are " + std::to_string(call.size)};
  }
  return {};
}

Schedule schedule_of(const EqualCall& call, std::uint32_t rank, const Tuning& tuning) {
  switch (call.kind) {
    case CallKind::barrier:
      return plan_barrier(rank, call.size);
    case CallKind::all_to_all:
      return plan_all_to_all(rank, call.size, call.bytes / call.size, tuning.all_to_all);
    case CallKind::all_reduce:
      return plan_all_reduce(rank, call.size, call.bytes, call.element, tuning.reduce);
    case CallKind::reduce_scatter:
      return plan_reduce_scatter(rank, call.size, PackedBlocks(call).layout(), call.element, tuning.reduce);
    case CallKind::reduce:
      return plan_reduce(rank, call.size, call.root, call.bytes, call.element, tuning.reduce);
    case CallKind::all_gather:
      return plan_all_gather_blocks(rank, call.size, PackedBlocks(call).layout(), tuning.spread);
    case CallKind::broadcast:
      return plan_broadcast(rank, call.size, call.root, call.bytes, tuning.spread);
    case CallKind::gather:
      return plan_gather(rank, call.size, call.root, PackedBlocks(call).layout(), tuning.spread);
    case CallKind::scatter:
      return plan_scatter(rank, call.size, call.root, PackedBlocks(call).layout(), tuning.spread);
    case CallKind::all_to_all_relayed:
    case CallKind::all_to_all_v:
    case CallKind::exchange:
    case CallKind::exchange_bytes:
    case CallKind::split:
    case CallKind::topology:
    case CallKind::measure:
    case CallKind::share_memory:
      break;
  }
  return {};
}

Choice choice_of(const EqualCall& call, const Tuning& tuning) {
  if (call.size == 1) return {Algorithm::direct, algorithm_names(call, {}).front(), "The group has one rank."};
  switch (call.kind) {
    case CallKind::barrier:
      return choice(call, Algorithm::tree,
                    counted(rounds_of(call.size), "round") + " of empty messages inform every rank of all " +
                        std::to_string(call.size) + ".");
    case CallKind::all_to_all:
      return all_to_all_choice(call, tuning);
    case CallKind::all_reduce:
      return all_reduce_choice(call, tuning);
    case CallKind::reduce_scatter:
      if (reduces_hierarchically(call.bytes, tuning.reduce)) return hierarchical_choice(call, tuning);
      return choice(call, Algorithm::direct, "Each rank receives its block of every rank and reduces them once, in rank order.",
                    chunks_text(call, tuning, call.bytes / call.size));
    case CallKind::reduce:
      return reduce_choice(call, tuning);
    case CallKind::all_gather:
      return all_gather_choice(call, tuning);
    case CallKind::broadcast:
      return broadcast_choice(call, tuning);
    case CallKind::gather:
      return choice(call, Algorithm::direct, "Each rank sends its block to the root, whose bandwidth is the limit.");
    case CallKind::scatter:
      return choice(call, Algorithm::direct, "The root sends each rank its block; the bandwidth of the root is the limit.");
    case CallKind::all_to_all_relayed:
    case CallKind::all_to_all_v:
    case CallKind::exchange:
    case CallKind::exchange_bytes:
    case CallKind::split:
    case CallKind::topology:
    case CallKind::measure:
    case CallKind::share_memory:
      break;
  }
  return {};
}

Tuning coarser(const EqualCall& call, Tuning tuning, std::uint64_t steps) {
  // Each rank sends and receives each chunk of each other one, and its result.
  const std::uint64_t per_chunk = 4 * std::uint64_t{call.size} * call.size;
  const std::uint64_t chunks = std::max<std::uint64_t>(1, steps / per_chunk);
  const std::uint64_t part = call.bytes / std::max(1U, call.size - 1) + 1;
  for (std::uint64_t* least :
       {&tuning.reduce.chunk, &tuning.reduce.border_chunk, &tuning.spread.chunk, &tuning.spread.border_chunk})
    *least = std::max(*least, part / chunks + 1);
  return tuning;
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array units{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return counted(bytes, "byte");
  auto value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < units.size(); ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, "%.4g %s", value, units[unit]);
  return text;
}

}  // namespace hmc
