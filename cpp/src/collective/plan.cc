#include "collective/plan.h"

#include <algorithm>

#include "collective/plan_relay.h"
#include "collective/schedule_builder.h"

namespace hmc {
namespace {

std::uint32_t ahead(std::uint32_t rank, std::uint32_t distance, std::uint32_t size) { return (rank + distance) % size; }
std::uint32_t behind(std::uint32_t rank, std::uint32_t distance, std::uint32_t size) { return (rank + size - distance) % size; }

struct Block {
  std::uint64_t offset;
  std::uint64_t bytes;
};

// `in(r)` and `out(r)` say where the block for and from rank r lies.
template <class In, class Out>
Schedule direct(std::uint32_t rank, std::uint32_t size, const In& in, const Out& out, const AllToAllTuning& tuning) {
  ScheduleBuilder plan;
  const Block own_in = in(rank), own_out = out(rank);
  // Unequal own blocks go as a message too, so that the mismatch is found and reported like any other.
  const bool own_message = own_in.bytes != own_out.bytes || own_in.bytes > tuning.inline_copy;
  for (std::uint32_t k = 1; k < size; ++k) {
    const std::uint32_t source = behind(rank, k, size);
    plan.receive(source, 0, {Area::out, out(source).offset}, out(source).bytes);
  }
  if (own_message) plan.receive(rank, 0, {Area::out, own_out.offset}, own_out.bytes);
  std::vector<ScheduleBuilder::Index> large;
  const auto post = [&](std::uint32_t target) {
    const Block block = in(target);
    const auto step = plan.send(target, 0, {Area::in, block.offset}, block.bytes);
    if (block.bytes < tuning.large) return;
    if (large.size() >= tuning.window) plan.order(large[large.size() - tuning.window], step);
    large.push_back(step);
  };
  for (std::uint32_t k = 1; k < size; ++k) post(ahead(rank, k, size));
  if (own_message) {
    post(rank);
  } else {
    plan.copy(rank, {Area::in, own_in.offset}, {Area::out, own_out.offset}, own_in.bytes);
  }
  return plan.finish();
}

}  // namespace

Schedule plan_barrier(std::uint32_t rank, std::uint32_t size) {
  ScheduleBuilder plan;
  std::vector<ScheduleBuilder::Index> heard;
  std::uint8_t round = 0;
  for (std::uint32_t distance = 1; distance < size; distance *= 2) {
    heard.push_back(plan.receive(behind(rank, distance, size), round++, {Area::scratch, 0}, 0));
  }
  round = 0;
  for (std::uint32_t distance = 1; distance < size; distance *= 2) {
    const auto step = plan.send(ahead(rank, distance, size), round, {Area::scratch, 0}, 0);
    // Round k tells what all earlier rounds told, not only the last: they may arrive in any order.
    for (std::uint8_t earlier = 0; earlier < round; ++earlier) plan.order(heard[earlier], step);
    ++round;
  }
  return plan.finish();
}

Schedule plan_all_gather(std::uint32_t rank, std::uint32_t size, std::span<const std::uint64_t> counts,
                         std::span<const std::uint64_t> displacements) {
  ScheduleBuilder plan;
  const bool apart = !displacements.empty();
  const Area area = apart ? Area::scratch : Area::out;
  std::vector<std::uint64_t> offset(size + 1, 0);
  for (std::uint32_t r = 0; r < size; ++r) offset[r + 1] = offset[r] + counts[r];

  // What is here before a round: the blocks of ranks [rank, rank + held). Every earlier receive (and the own copy) must be in place
  // before they are sent on.
  std::vector<ScheduleBuilder::Index> in_place{plan.copy(rank, {Area::in, 0}, {area, offset[rank]}, counts[rank])};
  std::uint8_t round = 0;
  for (std::uint32_t held = 1; held < size; held *= 2) {
    const std::uint32_t moved = std::min(held, size - held);
    // A range of ranks that runs over the end is two ranges of bytes; both sides cut it alike.
    const auto pieces = [&](std::uint32_t first, const auto& each) {
      const std::uint32_t until_end = std::min(moved, size - first);
      each(round, offset[first], offset[first + until_end] - offset[first]);
      if (until_end < moved) each(static_cast<std::uint8_t>(round + 1), std::uint64_t{0}, offset[moved - until_end]);
    };
    std::vector<ScheduleBuilder::Index> received;
    pieces(ahead(rank, held, size), [&](std::uint8_t piece, std::uint64_t at, std::uint64_t bytes) {
      received.push_back(plan.receive(ahead(rank, held, size), piece, {area, at}, bytes));
    });
    pieces(rank, [&](std::uint8_t piece, std::uint64_t at, std::uint64_t bytes) {
      const auto step = plan.send(behind(rank, held, size), piece, {area, at}, bytes);
      for (const auto earlier : in_place) plan.order(earlier, step);
    });
    in_place.insert(in_place.end(), received.begin(), received.end());
    round = static_cast<std::uint8_t>(round + 2);
  }
  for (std::uint32_t r = 0; apart && r < size; ++r) {
    const auto step = plan.copy(rank, {area, offset[r]}, {Area::out, displacements[r]}, counts[r]);
    for (const auto earlier : in_place) plan.order(earlier, step);
  }
  return plan.finish(apart ? offset[size] : 0);
}

Schedule plan_all_to_all(std::uint32_t rank, std::uint32_t size, std::uint64_t block, const AllToAllTuning& tuning) {
  if (relays(size, block, tuning)) return plan_relay(rank, size, block);
  const auto at = [block](std::uint32_t r) { return Block{r * block, block}; };
  return direct(rank, size, at, at, tuning);
}

Schedule plan_all_to_all_v(std::uint32_t rank, std::uint32_t size, const BlockLayout& out, const BlockLayout& in,
                           const AllToAllTuning& tuning) {
  return direct(
      rank, size, [&](std::uint32_t r) { return Block{in.displacements[r], in.counts[r]}; },
      [&](std::uint32_t r) { return Block{out.displacements[r], out.counts[r]}; }, tuning);
}

}  // namespace hmc
