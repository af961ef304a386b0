// ScheduleCache: the Schedules of each local rank's last calls, what else those had planned, and what that depends on.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "collective/call.h"
#include "collective/island.h"
#include "collective/plan.h"
#include "collective/planned_call.h"
#include "hmc/measurement.h"

namespace hmc {

class Group;

class ScheduleCache {
 public:
  // `local`: this process's ranks among `size`.
  ScheduleCache(std::uint32_t size, std::span<const std::uint32_t> local);

  // ---- any thread, engine lock held or not ----
  // The islands of the cache's group; null: no hierarchy saves bytes among its ranks.
  [[nodiscard]] std::shared_ptr<const std::vector<Island>> islands(const Group& group);
  // Calls that are made from now on are planned with these figures, which are alike on every rank: what was planned is discarded.
  void adopt(Measurement measured);
  [[nodiscard]] std::shared_ptr<const Measurement> measured() const;  // null: none
  [[nodiscard]] std::shared_ptr<const Schedule> barrier(std::uint32_t rank);
  // What is planned depends on this, on the rank and the size of the group, which are constant, and on the islands, which adopt()
  // changes.
  struct Key {
    CallKind kind;
    std::uint64_t bytes = 0;
    std::uint64_t more = 0;  // the root, how the memory is used, what is planned: as the call chooses
    bool operator==(const Key&) const = default;
  };
  // What was planned for `key`, or what `make()` returns.
  template <class Make>
  [[nodiscard]] std::shared_ptr<const PlannedCall> planned(std::uint32_t rank, const Key& key, const Make& make) {
    if (auto known = find(rank, key)) return known;
    auto made = std::make_shared<const PlannedCall>(make());
    keep(rank, key, made);
    return made;
  }
  // Likewise, of calls that plan a Schedule alone.
  template <class Make>
  [[nodiscard]] std::shared_ptr<const Schedule> get(std::uint32_t rank, const Key& key, const Make& make) {
    const auto call = planned(rank, key, [&] { return PlannedCall{make()}; });
    return {call, &call->schedule};
  }

 private:
  struct Entry {
    Key key;
    std::shared_ptr<const PlannedCall> call;
  };
  static constexpr std::size_t kept = 8;
  struct Recent {
    std::uint32_t rank;
    std::vector<Entry> entries;  // at most `kept`
    std::size_t oldest = 0;
  };
  [[nodiscard]] std::shared_ptr<const PlannedCall> find(std::uint32_t rank, const Key& key);
  void keep(std::uint32_t rank, const Key& key, const std::shared_ptr<const PlannedCall>& call);
  [[nodiscard]] Recent& recent_of(std::uint32_t rank) noexcept;

  const std::uint32_t size_;
  std::vector<Recent> recent_;       // by rank
  std::mutex recent_mutex_;          // guards their entries; no other lock is taken under it
  mutable std::mutex places_mutex_;  // likewise what follows
  std::shared_ptr<const Measurement> measured_;
  bool islands_found_ = false;
  std::shared_ptr<const std::vector<Island>> islands_;  // once they are found
};

}  // namespace hmc
