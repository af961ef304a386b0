// ScheduleCache: the barrier's Schedule of each local rank, and that of its last all_to_all.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "collective/plan.h"
#include "progress/engine.h"

namespace hmc {

class ScheduleCache {
 public:
  // `local`: this process's ranks among `size`.
  ScheduleCache(std::shared_ptr<Engine> engine, std::uint32_t size, std::span<const std::uint32_t> local);

  // Any thread, engine lock not held.
  [[nodiscard]] std::shared_ptr<const Schedule> barrier(std::uint32_t rank);
  [[nodiscard]] std::shared_ptr<const Schedule> all_to_all(std::uint32_t rank, std::uint64_t block, const AllToAllTuning& tuning);

 private:
  struct Entry {
    std::uint32_t rank;
    std::shared_ptr<const Schedule> barrier;
    std::shared_ptr<const Schedule> all_to_all;
    std::uint64_t block = 0;        // of all_to_all
    std::uint64_t inline_copy = 0;  // its tuning's
  };
  [[nodiscard]] Entry& entry_of(std::uint32_t rank) noexcept;

  const std::shared_ptr<Engine> engine_;
  const std::uint32_t size_;
  std::vector<Entry> entries_;  // by rank; their schedules are guarded by the engine lock
};

}  // namespace hmc
