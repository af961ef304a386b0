// LinkFigures: what measure() finds out, as ranks tell each other and as the cache file has it. Pure.
//
// The cache file is text:
//   hmc links 1
//   ... the group's key, lines of "hmc VERSION" and "rank ..."
//   measured 1795695060
//   link 0 3 1.2e-05 9.8e+08 9.9e+08      two ranks; seconds one way; bytes per second from the first to the second, and back
//   end
// A file that differs from what its reader expects, in any byte but the numbers behind "measured" and the two ranks, is not used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/blob.h"
#include "collective/measure_plan.h"
#include "hmc/measurement.h"

namespace hmc {

struct PairFigures {
  double latency = 0;                // seconds, one way
  double forward = 0, backward = 0;  // bytes per second
  friend bool operator==(const PairFigures&, const PairFigures&) = default;
};
// Within what any link has: seconds, and bytes per second.
inline constexpr double longest_latency = 1e3, lowest_rate = 1, highest_rate = 1e15;
[[nodiscard]] bool are_plausible(const PairFigures& figures) noexcept;

struct LinkFigures {
  std::int64_t time = 0;           // seconds since 1970 UTC
  std::vector<PairFigures> pairs;  // in the order of pairs_to_measure()
  friend bool operator==(const LinkFigures&, const LinkFigures&) = default;
};

Bytes encode(const LinkFigures& figures);
// Nothing: malformed, not of `pairs` pairs, or implausible.
std::optional<LinkFigures> decode_link_figures(ByteSpan bytes, std::size_t pairs);

// `key`: whole lines.
std::string cache_text(std::string_view key, std::span<const RankPair> pairs, const LinkFigures& figures);
std::optional<LinkFigures> parse_cache(std::string_view text, std::string_view key, std::span<const RankPair> pairs);

Measurement measurement_of(std::span<const RankPair> pairs, const LinkFigures& figures, bool cached);

}  // namespace hmc
