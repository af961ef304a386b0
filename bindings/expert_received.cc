#include "expert_received.h"

#include <algorithm>
#include <numeric>

namespace hmc::bindings {

ExpertReceived::ExpertReceived(const ExpertLayout& layout)
    : layout_(layout),
      headers_(static_cast<std::size_t>(layout.ranks)),
      starts_(static_cast<std::size_t>(layout.ranks * layout.destinations_of(layout.rank)), 0),
      lost_(static_cast<std::size_t>(layout.ranks), 0) {}

void ExpertReceived::arrange() {
  const auto destinations = static_cast<std::size_t>(layout_.destinations_of(layout_.rank));
  rows_ = 0;
  for (std::size_t destination = 0; destination < destinations; ++destination) {
    for (std::size_t rank = 0; rank < headers_.size(); ++rank) {
      starts_[rank * destinations + destination] = rows_;
      if (!headers_[rank].counts.empty()) rows_ += headers_[rank].counts[destination];
    }
  }
}

std::vector<std::int64_t> ExpertReceived::counts() const {
  std::vector<std::int64_t> total(static_cast<std::size_t>(layout_.destinations_of(layout_.rank)), 0);
  for (const DispatchHeader& header : headers_) {
    for (std::size_t i = 0; i < header.counts.size(); ++i) total[i] += header.counts[i];
  }
  return total;
}

std::span<const std::int64_t> ExpertReceived::starts_of(std::int64_t rank) const {
  const auto destinations = static_cast<std::size_t>(layout_.destinations_of(layout_.rank));
  return std::span<const std::int64_t>(starts_).subspan(static_cast<std::size_t>(rank) * destinations, destinations);
}

const std::vector<std::int64_t>& ExpertReceived::tokens_of(std::int64_t rank) const {
  return headers_.at(static_cast<std::size_t>(rank)).tokens;
}

std::vector<std::int64_t> ExpertReceived::rows_of(std::int64_t rank) const {
  const DispatchHeader& header = headers_.at(static_cast<std::size_t>(rank));
  return rows_from(starts_of(rank), header.counts);
}

std::vector<std::int64_t> ExpertReceived::facts() const {
  const auto width = static_cast<std::size_t>(layout_.facts());
  std::vector<std::int64_t> found(static_cast<std::size_t>(rows_) * width, pack_fact(-1, 0.0F));
  for (std::size_t rank = 0; rank < headers_.size(); ++rank) {
    const DispatchHeader& header = headers_[rank];
    if (lost_[rank] != 0) continue;
    const std::vector<std::int64_t> rows = rows_of(static_cast<std::int64_t>(rank));
    for (std::size_t pair = 0; pair < rows.size(); ++pair) {
      std::copy_n(header.facts.begin() + static_cast<std::ptrdiff_t>(pair * width), width,
                  found.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rows[pair]) * width));
    }
  }
  return found;
}

std::vector<std::int64_t> rows_from(std::span<const std::int64_t> starts, std::span<const std::int64_t> counts) {
  std::vector<std::int64_t> rows;
  rows.reserve(static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0})));
  for (std::size_t i = 0; i < counts.size(); ++i) {
    for (std::int64_t row = starts[i]; row < starts[i] + counts[i]; ++row) rows.push_back(row);
  }
  return rows;
}

}  // namespace hmc::bindings
