// Which rows a rank has from one dispatch. Pure arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "expert_headers.h"

namespace hmc::bindings {

// Rows are grouped by destination, then by source rank, then by token. Any thread reads once arrange() has returned.
class ExpertReceived {
 public:
  explicit ExpertReceived(const ExpertLayout& layout);

  // Before arrange().
  void take(std::int64_t rank, DispatchHeader header) { headers_[static_cast<std::size_t>(rank)] = std::move(header); }
  // Finds the place of every row.
  void arrange();
  // The rows of a rank are not there: they have no experts.
  void lose(std::int64_t rank) { lost_.at(static_cast<std::size_t>(rank)) = 1; }

  [[nodiscard]] const ExpertLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  // By destination.
  [[nodiscard]] std::vector<std::int64_t> counts() const;
  // By destination: the first row of a source.
  [[nodiscard]] std::span<const std::int64_t> starts_of(std::int64_t rank) const;
  // By pair of a source, in the order of sending.
  [[nodiscard]] const std::vector<std::int64_t>& tokens_of(std::int64_t rank) const;
  [[nodiscard]] std::vector<std::int64_t> rows_of(std::int64_t rank) const;
  // By row and choice, with `once`: words of pack_fact().
  [[nodiscard]] std::vector<std::int64_t> facts() const;

 private:
  ExpertLayout layout_;
  std::int64_t rows_ = 0;
  std::vector<DispatchHeader> headers_;  // by rank
  std::vector<std::int64_t> starts_;     // by rank and destination
  std::vector<std::uint8_t> lost_;       // by rank
};

// Row by pair: of each destination so many rows from the first one.
std::vector<std::int64_t> rows_from(std::span<const std::int64_t> starts, std::span<const std::int64_t> counts);

}  // namespace hmc::bindings
