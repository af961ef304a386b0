// Operations: the pending puts, gets and flushes of one shm endpoint, in the order of posting.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "base/completion.h"
#include "transport/shm/operation.h"

namespace hmc::shm {

// All calls with the engine lock held. Those that complete may destroy the endpoint, but not this.
class Operations {
 public:
  [[nodiscard]] bool empty() const noexcept { return pending_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return pending_.size(); }
  [[nodiscard]] std::uint64_t next_number() noexcept { return ++last_number_; }
  Operation& add(Operation operation);
  [[nodiscard]] Operation* find(std::uint64_t number) noexcept;
  [[nodiscard]] Operation* find(const Completion* done) noexcept;
  // The next in turn; there is one.
  Operation& next_turn() noexcept;
  template <class Condition>
  [[nodiscard]] bool any(Condition condition) const {
    return std::ranges::any_of(pending_, [&](const auto& entry) { return condition(*entry.second); });
  }
  std::unique_ptr<Operation> remove(const Operation& operation) noexcept;

  // Completes `done` once every put posted before it has ended: call end_flushes() then.
  void flush(Completion* done) { flushes_.push_back({last_number_ + 1, done, std::exchange(late_failure_, {})}); }
  void end_flushes();
  // A put that was complete at level local has failed: the oldest flush that covers it reports that, else the next one.
  void failed_late(const Operation& put);
  void end_all(const Status& reason);

 private:
  struct Flush {
    std::uint64_t before;
    Completion* done;
    Status failure;  // of a put that it covers
  };

  std::map<std::uint64_t, std::unique_ptr<Operation>> pending_;  // by number
  std::uint64_t last_number_ = 0;
  std::uint64_t last_served_ = 0;
  std::deque<Flush> flushes_;
  Status late_failure_;  // of a put that no flush covered yet
};

}  // namespace hmc::shm
