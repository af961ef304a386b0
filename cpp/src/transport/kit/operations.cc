#include "transport/kit/operations.h"

#include <algorithm>
#include <string>
#include <utility>

namespace hmc::kit {

// Operations end in about the order of posting: the oldest first, then a search.
OperationTable::Queue::const_iterator OperationTable::place_of(std::uint64_t number) const {
  if (!operations_.empty() && operations_.front().first == number) [[likely]]
    return operations_.begin();
  return std::ranges::lower_bound(operations_, number, {}, &Queue::value_type::first);
}

Operation* OperationTable::find(std::uint64_t number) const {
  const auto place = place_of(number);
  return place == operations_.end() || place->first != number ? nullptr : place->second.get();
}

Operation* OperationTable::find(const Completion* done) const {
  const auto place = std::ranges::find_if(operations_, [done](const auto& entry) { return entry.second->done == done; });
  return done == nullptr || place == operations_.end() ? nullptr : place->second.get();
}

Operation& OperationTable::next(std::uint64_t number) const {
  const auto place = place_of(number + 1);
  return *(place == operations_.end() ? operations_.begin() : place)->second;
}

Operation& OperationTable::add(bool is_put) {
  const std::uint64_t number = ++last_number_;
  if (spare_.empty()) {
    operations_.emplace_back(number, type_.make());
  } else {
    type_.renew(*spare_.back());
    operations_.emplace_back(number, std::move(spare_.back()));
    spare_.pop_back();
  }
  Operation& operation = *operations_.back().second;
  operation.number = number;
  operation.is_put = is_put;
  if (is_put) ++puts_;
  return operation;
}

void OperationTable::discard(Operation& operation) {
  if (operation.is_put) --puts_;
  operations_.erase(place_of(operation.number));
}

OperationTable::Ended OperationTable::take(Operation& operation) {
  Ended ended;
  const auto place = operations_.begin() + (place_of(operation.number) - operations_.cbegin());
  ended.operation_ = std::move(place->second);
  if (place == operations_.begin()) {
    operations_.pop_front();
  } else {
    operations_.erase(place);
  }
  if (operation.is_put) put_ended(operation, ended);
  return ended;
}

void OperationTable::put_ended(const Operation& put, Ended& ended) {
  --puts_;
  const bool unreported = put.done == nullptr && !put.failure.ok();
  Status* report = &late_failure_;
  for (auto flush = flushes_.rbegin(); flush != flushes_.rend() && flush->before > put.number; ++flush) {
    --flush->puts;
    report = &flush->failure;
  }
  if (unreported && report->ok()) *report = put.failure;
  while (!flushes_.empty() && flushes_.front().puts == 0) {
    ended.flushes_.emplace_back(flushes_.front().done, std::move(flushes_.front().failure));
    flushes_.pop_front();
  }
}

void OperationTable::complete(Ended&& ended) {
  Completion* const done = ended.operation().done;
  Status outcome = std::move(ended.operation().failure);
  auto flushes = std::move(ended.flushes_);
  if (spare_.size() < max_spare) spare_.push_back(std::move(ended.operation_));
  if (done != nullptr) done->complete(std::move(outcome));
  for (auto& [flush, failure] : flushes) flush->complete(std::move(failure));
}

void OperationTable::flush(Completion* done) {
  if (puts_ == 0) return done->complete(std::exchange(late_failure_, {}));
  flushes_.push_back({last_number_ + 1, puts_, done, std::exchange(late_failure_, {})});
}

void OperationTable::end_all(const Status& reason) {
  const Queue operations = std::exchange(operations_, {});
  const auto flushes = std::exchange(flushes_, {});
  puts_ = 0;
  for (const auto& [number, operation] : operations) {
    if (operation->done == nullptr) continue;
    std::string extent = std::to_string(operation->moved) + " of " + std::to_string(operation->bytes) + " bytes were moved";
    if (operation->unconfirmed) extent += ", and the peer may still access the local memory";
    operation->done->complete(reason.with_context(extent));
  }
  for (const Flush& flush : flushes) flush.done->complete(reason);
}

}  // namespace hmc::kit
