// What the ranks of an hmc.experts.Buffer agree on, and where its headers lie. Pure arithmetic.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace hmc::bindings {

enum class ExpertStep : std::uint8_t { dispatch, combine };

// Experts of a rank are contiguous; the numbers of any two ranks differ by at most one. With `once` rows are sent to ranks, not to
// experts: each rank is a single destination, and headers list the experts of every row. Else a destination is an expert.
struct ExpertLayout {
  std::int64_t ranks = 1, rank = 0, experts = 1, tokens = 0, topk = 1;
  bool once = false;

  static constexpr std::int64_t slots = 2;              // headers of calls with even and with odd numbers
  static constexpr std::int64_t descriptor_words = 64;  // most words of a descriptor
  // In place of the number of a call: the sender has closed its Buffer, or continues without the receiver.
  static constexpr std::int64_t closed = -1, masked = -2;

  bool operator==(const ExpertLayout&) const = default;

  [[nodiscard]] std::int64_t first_expert(std::int64_t of) const { return of * experts / ranks; }
  [[nodiscard]] std::int64_t local_experts() const { return first_expert(rank + 1) - first_expert(rank); }
  [[nodiscard]] std::int64_t owner(std::int64_t expert) const { return ((expert + 1) * ranks - 1) / experts; }

  [[nodiscard]] std::int64_t destinations() const { return once ? ranks : experts; }
  [[nodiscard]] std::int64_t first_destination(std::int64_t of) const { return once ? of : first_expert(of); }
  [[nodiscard]] std::int64_t destinations_of(std::int64_t of) const { return first_destination(of + 1) - first_destination(of); }
  // Most destinations of a token.
  [[nodiscard]] std::int64_t width() const { return once ? std::min(topk, ranks) : topk; }
  // Words of a row's experts and weights in a header.
  [[nodiscard]] std::int64_t facts() const { return once ? topk : 0; }

  [[nodiscard]] std::int64_t most_destinations() const { return once ? 1 : (experts + ranks - 1) / ranks; }
  // Most rows of a rank for another one.
  [[nodiscard]] std::int64_t most_pairs() const { return tokens * std::min(width(), most_destinations()); }
  [[nodiscard]] std::int64_t words(ExpertStep step) const {
    return step == ExpertStep::dispatch ? 2 + most_destinations() + most_pairs() * (1 + facts())
                                        : 2 + most_destinations() + descriptor_words;
  }
  [[nodiscard]] std::int64_t total_words() const {
    return slots * ranks * (words(ExpertStep::dispatch) + words(ExpertStep::combine));
  }
  // First word of a header: of the sender `of` in a window, of the receiver in an outbox.
  [[nodiscard]] std::int64_t place(ExpertStep step, std::int64_t number, std::int64_t of) const {
    const std::int64_t before = step == ExpertStep::dispatch ? 0 : slots * ranks * words(ExpertStep::dispatch);
    return before + (number % slots * ranks + of) * words(step);
  }
  // Puts are unordered among themselves: each slot has its own id, and has at most one header in flight from a rank.
  [[nodiscard]] static std::uint64_t notification(ExpertStep step, std::int64_t number) {
    return static_cast<std::uint64_t>(1 + slots * static_cast<std::int64_t>(step) + number % slots);
  }
};

}  // namespace hmc::bindings
