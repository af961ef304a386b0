#include "expert_routes.h"

#include <algorithm>
#include <string>
#include <utility>

namespace hmc::bindings {
namespace {

std::span<const std::int64_t> part(const std::vector<std::int64_t>& all, std::size_t first, std::size_t count) {
  return std::span<const std::int64_t>(all).subspan(first, count);
}

Status check_experts(const ExpertLayout& layout, const ExpertChoice& choice) {
  std::vector<std::size_t> last(static_cast<std::size_t>(layout.experts), choice.tokens);  // by expert: the last token with it
  for (std::size_t token = 0; token < choice.tokens; ++token) {
    for (const std::int64_t expert : part(choice.ids, token * choice.columns, choice.columns)) {
      if (expert < 0) continue;
      if (std::exchange(last[static_cast<std::size_t>(expert)], token) != token) continue;
      return Status(Code::invalid_argument, "topk_ids[" + std::to_string(token) + "] has expert " + std::to_string(expert) +
                                                " twice; a token goes to an expert once");
    }
  }
  return {};
}

}  // namespace

Result<ExpertRoutes> ExpertRoutes::of(const ExpertLayout& layout, ExpertChoice choice) {
  HMC_TRY(check_experts(layout, choice));
  ExpertRoutes routes(layout, std::move(choice));
  routes.width_ = layout.once ? static_cast<std::size_t>(layout.width()) : routes.choice_.columns;
  if (layout.once) routes.find_ranks();
  routes.sort();
  return routes;
}

void ExpertRoutes::find_ranks() {
  const std::size_t columns = choice_.columns;
  ranks_.assign(choice_.tokens * width_, -1);
  ones_.assign(ranks_.size(), 1.0F);
  std::vector<std::int64_t> found;
  for (std::size_t token = 0; token < choice_.tokens; ++token) {
    found.clear();
    for (std::size_t k = token * columns; k < (token + 1) * columns; ++k) {
      if (choice_.ids[k] >= 0) found.push_back(layout_.owner(choice_.ids[k]));
    }
    std::ranges::sort(found);
    found.erase(std::ranges::unique(found).begin(), found.end());
    std::ranges::copy(found, ranks_.begin() + static_cast<std::ptrdiff_t>(token * width_));
  }
}

void ExpertRoutes::sort() {
  const std::vector<std::int64_t>& destinations = layout_.once ? ranks_ : choice_.ids;
  const auto count = static_cast<std::size_t>(layout_.destinations());
  counts_.assign(count, 0);
  for (const std::int64_t one : destinations) {
    if (one >= 0) ++counts_[static_cast<std::size_t>(one)];
  }
  starts_.assign(count + 1, 0);
  for (std::size_t i = 0; i < count; ++i) starts_[i + 1] = starts_[i] + counts_[i];
  pairs_.resize(static_cast<std::size_t>(starts_.back()));
  tokens_.resize(pairs_.size());
  std::vector<std::int64_t> next(starts_.begin(), starts_.end() - 1);
  std::size_t pair = 0;
  for (std::size_t token = 0; token < choice_.tokens; ++token) {
    for (std::size_t k = 0; k < width_; ++k, ++pair) {
      if (destinations[pair] < 0) continue;
      const auto at = static_cast<std::size_t>(next[static_cast<std::size_t>(destinations[pair])]++);
      pairs_[at] = static_cast<std::int64_t>(pair);
      tokens_[at] = static_cast<std::int64_t>(token);
    }
  }
}

std::span<const std::int64_t> ExpertRoutes::of_rank(const std::vector<std::int64_t>& pairs, std::int64_t rank) const {
  const auto first = static_cast<std::size_t>(starts_.at(static_cast<std::size_t>(layout_.first_destination(rank))));
  const auto end = static_cast<std::size_t>(starts_.at(static_cast<std::size_t>(layout_.first_destination(rank + 1))));
  return part(pairs, first, end - first);
}

std::span<const std::int64_t> ExpertRoutes::counts_to(std::int64_t rank) const {
  return part(counts_, static_cast<std::size_t>(layout_.first_destination(rank)),
              static_cast<std::size_t>(layout_.destinations_of(rank)));
}

std::vector<std::uint8_t> ExpertRoutes::used(std::span<const std::uint8_t> missing) const {
  if (pairs_.size() == choice_.tokens * width_ && std::ranges::count(missing, 0) == layout_.ranks) return {};
  std::vector<std::uint8_t> marks(choice_.tokens * width_, 0);
  for (std::int64_t rank = 0; rank < layout_.ranks; ++rank) {
    if (missing[static_cast<std::size_t>(rank)] != 0) continue;
    for (const std::int64_t pair : pairs_to(rank)) marks[static_cast<std::size_t>(pair)] = 1;
  }
  return marks;
}

std::vector<std::uint8_t> ExpertRoutes::lost(std::span<const std::uint8_t> missing) const {
  std::vector<std::uint8_t> marks(choice_.ids.size(), 0);
  for (std::size_t i = 0; i < marks.size(); ++i) {
    const std::int64_t expert = choice_.ids[i];
    if (expert >= 0) marks[i] = missing[static_cast<std::size_t>(layout_.owner(expert))] != 0 ? 1 : 0;
  }
  return marks;
}

}  // namespace hmc::bindings
