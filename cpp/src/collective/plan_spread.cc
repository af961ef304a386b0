#include "collective/plan_spread.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "collective/plan_hierarchical.h"
#include "collective/schedule_builder.h"

namespace hmc {
namespace {

// Rounds in which receivers of a large broadcast pass chunks on are above those in which the root sends them.
constexpr std::uint8_t passing_rounds = 128;

void own_block(ScheduleBuilder& plan, std::uint32_t rank, const Slice& from, const Slice& to, std::uint64_t bytes,
               const SpreadTuning& tuning) {
  if (tuning.in_place) return;
  if (bytes <= tuning.inline_copy) {
    plan.copy(rank, from, to, bytes);
  } else {
    plan.receive(rank, 0, to, bytes);
    plan.send(rank, 0, from, bytes);
  }
}

bool is_packed(const BlockLayout& blocks) {
  std::uint64_t at = 0;
  for (std::size_t r = 0; r < blocks.counts.size(); ++r) {
    if (blocks.displacements[r] != at) return false;
    at += blocks.counts[r];
  }
  return true;
}

// Binomial: the rank at distance d from the root receives from d without its lowest bit.
Schedule along_a_tree(std::uint32_t rank, std::uint32_t size, std::uint32_t root, std::uint64_t bytes) {
  ScheduleBuilder plan;
  const std::uint32_t distance = (rank + size - root) % size;
  const std::uint32_t lowest = distance & (~distance + 1);
  ScheduleBuilder::Index received = 0;
  if (distance != 0) received = plan.receive((distance - lowest + root) % size, 0, {Area::out, 0}, bytes);
  std::uint32_t step = 1;
  while (step < (distance == 0 ? size : lowest)) step *= 2;
  for (step /= 2; step != 0; step /= 2) {
    if (distance + step >= size) continue;
    const auto sent = plan.send((distance + step + root) % size, 0, {Area::out, 0}, bytes);
    if (distance != 0) plan.order(received, sent);
  }
  return plan.finish();
}

// The root gives each other rank an equal share, chunk by chunk, which that rank passes on to all others but the root.
class Shared {
 public:
  Shared(std::uint32_t rank, std::uint32_t size, std::uint32_t root, std::uint64_t bytes, std::uint64_t wanted)
      : rank_(rank), size_(size), root_(root), bytes_(bytes), share_((bytes + size - 2) / (size - 1)) {
    chunk_ = std::max(wanted, (share_ + passing_rounds - 2) / (passing_rounds - 1));
  }

  Schedule plan() {
    if (rank_ == root_) {
      for_each_chunk([&](std::uint32_t owner, std::uint8_t round, std::uint64_t at, std::uint64_t bytes) {
        plan_.send(owner, round, {Area::out, at}, bytes);
      });
      return plan_.finish();
    }
    for_each_chunk([&](std::uint32_t owner, std::uint8_t round, std::uint64_t at, std::uint64_t bytes) {
      if (owner != rank_) {
        plan_.receive(owner, static_cast<std::uint8_t>(passing_rounds + round), {Area::out, at}, bytes);
        return;
      }
      const auto received = plan_.receive(root_, round, {Area::out, at}, bytes);
      for (std::uint32_t distance = 1; distance < size_; ++distance) {
        const std::uint32_t other = (rank_ + distance) % size_;
        if (other == root_) continue;
        plan_.order(received, plan_.send(other, static_cast<std::uint8_t>(passing_rounds + round), {Area::out, at}, bytes));
      }
    });
    return plan_.finish();
  }

 private:
  template <class Visit>
  void for_each_chunk(const Visit& visit) const {
    for (std::uint8_t round = 0; round * chunk_ < share_; ++round) {
      for (std::uint32_t place = 0; place + 1 < size_; ++place) {
        const std::uint64_t begin = place * share_ + round * chunk_;
        const std::uint64_t end = std::min({begin + chunk_, (place + 1) * share_, bytes_});
        if (begin < end) visit((root_ + 1 + place) % size_, round, begin, end - begin);
      }
    }
  }

  const std::uint32_t rank_, size_, root_;
  const std::uint64_t bytes_;
  const std::uint64_t share_;
  std::uint64_t chunk_;
  ScheduleBuilder plan_;
};

}  // namespace

Schedule plan_all_gather_blocks(std::uint32_t rank, std::uint32_t size, const BlockLayout& blocks, const SpreadTuning& tuning) {
  const std::uint64_t total = std::reduce(blocks.counts.begin(), blocks.counts.end());
  // Where the blocks lie is each rank's own affair, so it does not choose the algorithm.
  if (!spreads_hierarchically(total, tuning) && gathers_by_doubling(size, total, tuning)) {
    return plan_all_gather(rank, size, blocks.counts, is_packed(blocks) ? std::span<const std::uint64_t>() : blocks.displacements);
  }
  ScheduleBuilder plan;
  if (spreads_hierarchically(total, tuning)) {
    gather_hierarchically(plan, rank, *tuning.islands, blocks, {tuning.chunk, tuning.border_chunk});
  } else {
    for (std::uint32_t distance = 1; distance < size; ++distance) {
      const std::uint32_t source = (rank + size - distance) % size;
      plan.receive(source, 0, {Area::out, blocks.displacements[source]}, blocks.counts[source]);
    }
    for (std::uint32_t distance = 1; distance < size; ++distance)
      plan.send((rank + distance) % size, 0, {Area::in, 0}, blocks.counts[rank]);
  }
  own_block(plan, rank, {Area::in, 0}, {Area::out, blocks.displacements[rank]}, blocks.counts[rank], tuning);
  return plan.finish();
}

Schedule plan_broadcast(std::uint32_t rank, std::uint32_t size, std::uint32_t root, std::uint64_t bytes,
                        const SpreadTuning& tuning) {
  if (spreads_hierarchically(bytes, tuning))
    return plan_hierarchical_broadcast(rank, root, *tuning.islands, bytes, {tuning.chunk, tuning.border_chunk});
  if (broadcasts_by_tree(size, bytes, tuning)) return along_a_tree(rank, size, root, bytes);
  return Shared(rank, size, root, bytes, tuning.chunk).plan();
}

Schedule plan_gather(std::uint32_t rank, std::uint32_t size, std::uint32_t root, const BlockLayout& blocks,
                     const SpreadTuning& tuning) {
  ScheduleBuilder plan;
  if (rank != root) {
    plan.send(root, 0, {Area::in, 0}, blocks.counts[rank]);
    return plan.finish();
  }
  for (std::uint32_t distance = 1; distance < size; ++distance) {
    const std::uint32_t source = (rank + distance) % size;
    plan.receive(source, 0, {Area::out, blocks.displacements[source]}, blocks.counts[source]);
  }
  own_block(plan, rank, {Area::in, 0}, {Area::out, blocks.displacements[rank]}, blocks.counts[rank], tuning);
  return plan.finish();
}

Schedule plan_scatter(std::uint32_t rank, std::uint32_t size, std::uint32_t root, const BlockLayout& blocks,
                      const SpreadTuning& tuning) {
  ScheduleBuilder plan;
  if (rank != root) {
    plan.receive(root, 0, {Area::out, 0}, blocks.counts[rank]);
    return plan.finish();
  }
  for (std::uint32_t distance = 1; distance < size; ++distance) {
    const std::uint32_t target = (rank + distance) % size;
    plan.send(target, 0, {Area::in, blocks.displacements[target]}, blocks.counts[target]);
  }
  own_block(plan, rank, {Area::in, blocks.displacements[rank]}, {Area::out, 0}, blocks.counts[rank], tuning);
  return plan.finish();
}

}  // namespace hmc
