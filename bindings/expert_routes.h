// Where the tokens of one dispatch go. Pure arithmetic.
#pragma once

#include <hmc/status.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "expert_layout.h"

namespace hmc::bindings {

// What a caller chose: experts and their weights, (tokens, columns); -1 for none.
struct ExpertChoice {
  std::size_t tokens = 0, columns = 0;
  std::vector<std::int64_t> ids;
  std::vector<float> weights;
};

// A *pair* is a token and one of its destinations. Pairs are sent grouped by destination and, within one, in the order of tokens.
// Immutable; any thread.
class ExpertRoutes {
 public:
  // Errors: invalid_argument, which names the token whose experts are refused.
  static Result<ExpertRoutes> of(const ExpertLayout& layout, ExpertChoice choice);

  [[nodiscard]] const ExpertLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] const ExpertChoice& choice() const noexcept { return choice_; }
  // Destinations of a token: columns of the sum.
  [[nodiscard]] std::size_t width() const noexcept { return width_; }
  // By token and destination: the factor of its result.
  [[nodiscard]] const std::vector<float>& factors() const noexcept { return layout_.once ? ones_ : choice_.weights; }

  // The pairs for a rank, in the order of sending: token * width + number of the destination.
  [[nodiscard]] std::span<const std::int64_t> pairs_to(std::int64_t rank) const { return of_rank(pairs_, rank); }
  // Their tokens.
  [[nodiscard]] std::span<const std::int64_t> tokens_to(std::int64_t rank) const { return of_rank(tokens_, rank); }
  // Pairs by destination of the rank.
  [[nodiscard]] std::span<const std::int64_t> counts_to(std::int64_t rank) const;
  // By token and destination: 1 for a pair of a rank that is not among `missing`. Empty where all are 1.
  [[nodiscard]] std::vector<std::uint8_t> used(std::span<const std::uint8_t> missing) const;
  // By token and column: 1 where the expert's rank is among `missing`, a mark for each rank.
  [[nodiscard]] std::vector<std::uint8_t> lost(std::span<const std::uint8_t> missing) const;

 private:
  ExpertRoutes(const ExpertLayout& layout, ExpertChoice choice) : layout_(layout), choice_(std::move(choice)) {}
  void find_ranks();
  void sort();
  // `pairs`: a value for each pair, in the order of sending.
  [[nodiscard]] std::span<const std::int64_t> of_rank(const std::vector<std::int64_t>& pairs, std::int64_t rank) const;

  ExpertLayout layout_;
  ExpertChoice choice_;
  std::size_t width_ = 0;
  std::vector<std::int64_t> ranks_;  // with `once`: destinations by token, ascending, -1 for none
  std::vector<float> ones_;
  std::vector<std::int64_t> counts_, starts_;  // by destination; starts_ has one more
  std::vector<std::int64_t> pairs_, tokens_;   // by pair, in the order of sending
};

}  // namespace hmc::bindings
