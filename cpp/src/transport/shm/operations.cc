#include "transport/shm/operations.h"

#include <limits>
#include <string>
#include <utility>

namespace hmc::shm {

Operation& Operations::add(Operation operation) {
  const std::uint64_t number = operation.number;
  return *pending_.emplace(number, std::make_unique<Operation>(std::move(operation))).first->second;
}

Operation* Operations::find(std::uint64_t number) noexcept {
  const auto place = pending_.find(number);
  return place == pending_.end() ? nullptr : place->second.get();
}

Operation* Operations::find(const Completion* done) noexcept {
  const auto place = std::ranges::find_if(pending_, [done](const auto& entry) { return entry.second->done == done; });
  return place == pending_.end() ? nullptr : place->second.get();
}

Operation& Operations::next_turn() noexcept {
  auto place = pending_.upper_bound(last_served_);
  if (place == pending_.end()) place = pending_.begin();
  last_served_ = place->first;
  return *place->second;
}

std::unique_ptr<Operation> Operations::remove(const Operation& operation) noexcept {
  const auto place = pending_.find(operation.number);
  std::unique_ptr<Operation> owned = std::move(place->second);
  pending_.erase(place);
  return owned;
}

void Operations::failed_late(const Operation& put) {
  const auto covers = [&put](const Flush& flush) { return flush.before > put.number; };
  const auto flush = std::ranges::find_if(flushes_, covers);
  Status& report = flush == flushes_.end() ? late_failure_ : flush->failure;
  if (report.ok()) report = put.failure;
}

void Operations::end_flushes() {
  if (flushes_.empty()) return;
  std::uint64_t oldest_put = std::numeric_limits<std::uint64_t>::max();
  for (const auto& [number, operation] : pending_) {
    if (!operation->is_put) continue;
    oldest_put = number;
    break;
  }
  while (!flushes_.empty() && flushes_.front().before <= oldest_put) {
    Flush ended = std::move(flushes_.front());
    flushes_.pop_front();
    ended.done->complete(std::move(ended.failure));
  }
}

void Operations::end_all(const Status& reason) {
  const auto pending = std::exchange(pending_, {});
  const auto flushes = std::exchange(flushes_, {});
  for (const auto& [number, operation] : pending) {
    if (operation->done == nullptr) continue;
    operation->done->complete(
        reason.with_context(std::to_string(operation->moved) + " of " + std::to_string(operation->bytes) + " bytes were moved"));
  }
  for (const Flush& flush : flushes) flush.done->complete(reason);
}

}  // namespace hmc::shm
