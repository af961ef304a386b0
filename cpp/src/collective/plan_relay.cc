#include "collective/plan_relay.h"

#include <algorithm>

#include "collective/schedule_builder.h"

namespace hmc {
namespace {

// Runs of consecutive distances below `size` that have `bit` set.
template <class Each>
void runs_with(std::uint32_t bit, std::uint32_t size, const Each& each) {
  for (std::uint32_t first = bit; first < size; first += 2 * bit) each(first, std::min(bit, size - first));
}

}  // namespace

// Scratch: `size` blocks by distance to go (block d leaves for rank + d), then per round one packed outgoing and one packed
// incoming area.
Schedule plan_relay(std::uint32_t rank, std::uint32_t size, std::uint64_t block) {
  ScheduleBuilder plan;
  const auto scratch = [block](std::uint64_t blocks) { return Slice{Area::scratch, blocks * block}; };

  struct Round {
    std::uint32_t bit;
    std::uint64_t blocks, outgoing, incoming;  // areas in blocks
    ScheduleBuilder::Index received;
  };
  std::vector<Round> rounds;
  std::uint64_t end = size;
  for (std::uint32_t bit = 1; bit < size; bit *= 2) {
    std::uint64_t blocks = 0;
    runs_with(bit, size, [&](std::uint32_t, std::uint32_t n) { blocks += n; });
    rounds.push_back({bit, blocks, end, end + blocks, 0});
    end += 2 * blocks;
  }
  // Receives first: they are posted before anything is sent.
  for (std::size_t k = 0; k < rounds.size(); ++k) {
    Round& round = rounds[k];
    round.received =
        plan.receive((rank + size - round.bit) % size, static_cast<std::uint8_t>(k), scratch(round.incoming), round.blocks * block);
  }
  // All else is one chain on this rank; only the receives come from outside it.
  auto last = plan.copy(rank, {Area::in, rank * block}, scratch(0), (size - rank) * block);
  const auto chain = [&](ScheduleBuilder::Index step) {
    plan.order(last, step);
    last = step;
  };
  if (rank > 0) chain(plan.copy(rank, {Area::in, 0}, scratch(size - rank), rank * block));
  for (std::size_t k = 0; k < rounds.size(); ++k) {
    const Round& round = rounds[k];
    std::uint64_t at = round.outgoing;
    runs_with(round.bit, size, [&](std::uint32_t first, std::uint32_t n) {
      chain(plan.copy(rank, scratch(first), scratch(at), n * block));
      at += n;
    });
    const auto sent =
        plan.send((rank + round.bit) % size, static_cast<std::uint8_t>(k), scratch(round.outgoing), round.blocks * block);
    plan.order(last, sent);  // the chain does not wait for it to leave: its area is its own
    bool first_copy = true;
    at = round.incoming;
    runs_with(round.bit, size, [&](std::uint32_t first, std::uint32_t n) {
      const auto step = plan.copy(rank, scratch(at), scratch(first), n * block);
      chain(step);
      if (std::exchange(first_copy, false)) plan.order(round.received, step);
      at += n;
    });
  }
  // The block at distance d now is what rank - d sent here.
  for (std::uint32_t d = 0; d < size; ++d) {
    chain(plan.copy(rank, scratch(d), {Area::out, ((rank + size - d) % size) * block}, block));
  }
  return plan.finish(end * block);
}

}  // namespace hmc
