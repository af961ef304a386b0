// ScheduleCache: the Schedules that each local rank used last, and what they depend on.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "collective/call.h"
#include "collective/island.h"
#include "collective/plan.h"
#include "hmc/measurement.h"
#include "progress/engine.h"

namespace hmc {

class Group;

class ScheduleCache {
 public:
  // `local`: this process's ranks among `size`.
  ScheduleCache(std::shared_ptr<Engine> engine, std::uint32_t size, std::span<const std::uint32_t> local);

  // ---- any thread, engine lock not held ----
  // The islands of the cache's group; null: no hierarchy saves bytes among its ranks.
  [[nodiscard]] std::shared_ptr<const std::vector<Island>> islands(const Group& group);
  // Calls that are made from now on are planned with these figures, which are alike on every rank.
  void adopt(Measurement measured);
  [[nodiscard]] std::shared_ptr<const Measurement> measured() const;  // null: none
  [[nodiscard]] std::shared_ptr<const Schedule> barrier(std::uint32_t rank);
  [[nodiscard]] std::shared_ptr<const Schedule> all_to_all(std::uint32_t rank, std::uint64_t block, const AllToAllTuning& tuning);
  // What a Schedule depends on, besides the rank and the size of the group.
  struct Key {
    CallKind kind;
    std::uint64_t bytes = 0;
    std::uint64_t more = 0;  // the root, how the memory is used: as the call chooses
    bool operator==(const Key&) const = default;
  };
  // The Schedule of `key`, or what `make()` returns.
  template <class Make>
  [[nodiscard]] std::shared_ptr<const Schedule> get(std::uint32_t rank, const Key& key, const Make& make) {
    if (auto known = find(rank, key)) return known;
    auto made = std::make_shared<const Schedule>(make());
    keep(rank, key, made);
    return made;
  }

 private:
  struct Entry {
    Key key;
    std::shared_ptr<const Schedule> schedule;
  };
  static constexpr std::size_t kept = 8;
  struct Recent {
    std::uint32_t rank;
    std::vector<Entry> entries;  // at most `kept`
    std::size_t oldest = 0;
  };
  [[nodiscard]] std::shared_ptr<const Schedule> find(std::uint32_t rank, const Key& key);
  void keep(std::uint32_t rank, const Key& key, const std::shared_ptr<const Schedule>& schedule);
  [[nodiscard]] Recent& recent_of(std::uint32_t rank) noexcept;

  const std::shared_ptr<Engine> engine_;
  const std::uint32_t size_;
  std::vector<Recent> recent_;       // by rank; their entries are guarded by the engine lock
  mutable std::mutex places_mutex_;  // guards what follows; no other lock is taken under it
  std::shared_ptr<const Measurement> measured_;
  bool islands_found_ = false;
  std::shared_ptr<const std::vector<Island>> islands_;  // once they are found
};

}  // namespace hmc
