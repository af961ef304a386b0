// EarlyCalls: what other ranks' first messages say of collectives that one local rank has not started. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "collective/call.h"

namespace hmc {

class EarlyCalls {
 public:
  struct Call {
    std::uint32_t rank = 0;
    std::uint32_t call = 0;  // of encode_call(); 0: none
  };

  // The first message of collective `sequence`, and the first of another call than that, are kept. Collectives so far ahead that
  // they share an entry are not compared before they run.
  void note(std::uint64_t sequence, Call call) noexcept {
    Entry& entry = entries_[sequence % entries_.size()];
    if (entry.sequence != sequence) {
      entry = {sequence, {call, Call{}}};
    } else if (entry.calls[1].call == 0 && different_calls(entry.calls[0].call, call.call)) {
      entry.calls[1] = call;
    }
  }

  // A call of another kind than `call` that was noted for the collective.
  [[nodiscard]] std::optional<Call> other_than(std::uint64_t sequence, std::uint32_t call) const noexcept {
    const Entry& entry = entries_[sequence % entries_.size()];
    if (entry.sequence != sequence) return std::nullopt;
    for (const Call& noted : entry.calls) {
      if (noted.call != 0 && different_calls(noted.call, call)) return noted;
    }
    return std::nullopt;
  }

 private:
  static constexpr std::uint64_t no_sequence = ~std::uint64_t{0};
  struct Entry {
    std::uint64_t sequence = no_sequence;
    std::array<Call, 2> calls{};
  };

  std::array<Entry, 8> entries_{};
};

}  // namespace hmc
