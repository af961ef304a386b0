#include "collective/measure_plan.h"

#include <algorithm>
#include <cstddef>
#include <set>

#include "collective/schedule_builder.h"

namespace hmc {
namespace {

constexpr std::size_t most_border_pairs = 64;
constexpr std::uint32_t fewest_chunks = 2, most_chunks = 64, most_trips = 16;
constexpr std::size_t window = 4;  // messages at a time, as a reduction has from each rank

using Ranks = std::vector<std::uint32_t>;

// Each rank of the larger island with one of the other.
void add_partners(const Ranks& a, const Ranks& b, std::vector<RankPair>& pairs) {
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) pairs.push_back({a[i % a.size()], b[i % b.size()]});
}

std::vector<RankPair> all_border_pairs(std::span<const Island> islands) {
  std::vector<RankPair> pairs;
  for (std::size_t a = 0; a < islands.size(); ++a) {
    for (std::size_t b = a + 1; b < islands.size(); ++b) {
      for (const std::uint32_t first : islands[a].ranks) {
        for (const std::uint32_t second : islands[b].ranks) pairs.push_back({first, second});
      }
    }
  }
  return pairs;
}

std::vector<RankPair> partner_pairs(std::span<const Island> islands) {
  std::vector<RankPair> pairs;
  for (std::size_t a = 0; a < islands.size(); ++a) {
    for (std::size_t b = a + 1; b < islands.size(); ++b) add_partners(islands[a].ranks, islands[b].ranks, pairs);
  }
  return pairs;
}

std::vector<RankPair> next_island_pairs(std::span<const Island> islands) {
  std::vector<RankPair> pairs;
  const std::size_t borders = islands.size() == 2 ? 1 : islands.size();
  for (std::size_t a = 0; a < borders; ++a) add_partners(islands[a].ranks, islands[(a + 1) % islands.size()].ranks, pairs);
  return pairs;
}

}  // namespace

std::vector<RankPair> pairs_to_measure(std::span<const Island> islands) {
  std::vector<RankPair> pairs;
  for (const Island& island : islands) {
    const std::size_t last = island.ranks.size() - 1;
    std::set<std::size_t> at;
    if (last > 0) at = {0, (last - 1) / 2, last - 1};
    for (const std::size_t i : at) pairs.push_back({island.ranks[i], island.ranks[i + 1]});
  }
  if (islands.size() < 2) return pairs;
  auto border = all_border_pairs(islands);
  if (border.size() > most_border_pairs) border = partner_pairs(islands);
  if (border.size() > most_border_pairs) border = next_island_pairs(islands);
  pairs.insert(pairs.end(), border.begin(), border.end());
  return pairs;
}

Schedule plan_legs(std::uint32_t rank, const RankPair& pair, std::span<const Leg> legs) {
  ScheduleBuilder plan;
  if (rank != pair.first && rank != pair.second) return plan.finish();
  const bool is_first = rank == pair.first;
  const std::uint32_t peer = is_first ? pair.second : pair.first;
  std::vector<ScheduleBuilder::Index> before;  // steps of the last leg
  for (const Leg& leg : legs) {
    std::vector<ScheduleBuilder::Index> steps;
    std::uint64_t at = 0;
    do {
      const std::uint64_t bytes = std::min(leg.bytes - at, measured_chunk), offset = at % measured_buffer;
      const auto step = leg.forward == is_first ? plan.send(peer, 0, {Area::in, offset}, bytes)
                                                : plan.receive(peer, 0, {Area::out, offset}, bytes);
      for (const auto earlier : before) plan.order(earlier, step);
      if (steps.size() >= window) plan.order(steps[steps.size() - window], step);
      steps.push_back(step);
      at += bytes;
    } while (at < leg.bytes);
    // Only the last `window` steps may still be in flight when the next leg begins: the others come before these.
    const std::size_t kept = std::min(steps.size(), window);
    before.assign(steps.end() - static_cast<std::ptrdiff_t>(kept), steps.end());
  }
  return plan.finish();
}

Effort Effort::of_link(double seconds_of_trip, double seconds_of_chunk) noexcept {
  constexpr double stream = 3e-3, trips = 1e-3;  // seconds
  const auto how_many = [](double seconds, double each, std::uint32_t most) {
    return each * most > seconds ? static_cast<std::uint32_t>(seconds / each) : most;  // also where nothing took any time
  };
  return decode(Effort{.chunks = how_many(stream, seconds_of_chunk, most_chunks),
                       .trips = how_many(trips, seconds_of_trip, most_trips),
                       .repetitions = seconds_of_chunk > stream ? fewest_repetitions : most_repetitions}
                    .encode());
}

std::uint64_t Effort::encode() const noexcept {
  return std::uint64_t{chunks} | std::uint64_t{trips} << 16 | std::uint64_t{repetitions} << 32;
}

Effort Effort::decode(std::uint64_t number) noexcept {
  const auto part = [number](unsigned shift) { return static_cast<std::uint32_t>(number >> shift & 0xffff); };
  return {.chunks = std::clamp(part(0), fewest_chunks, most_chunks),
          .trips = std::clamp(part(16), 1U, most_trips),
          .repetitions = std::clamp(part(32), fewest_repetitions, most_repetitions)};
}

}  // namespace hmc
