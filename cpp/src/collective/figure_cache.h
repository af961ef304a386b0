// The cache file of measured links: one per key, in HMC_CACHE, else hmc in $XDG_CACHE_HOME or ~/.cache. Any thread, no lock held.
//
// A file is replaced as a whole, so processes may write at once: the last one counts. Temporary files that a killed process
// left are removed when one is written an hour later. What cannot be read or written costs one
// warning and no more.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "collective/link_figures.h"

namespace hmc {

// Empty: caching is off, or there is no folder for it.
std::string figure_cache_folder();
std::string figure_cache_file(const std::string& folder, std::string_view key);

// Nothing: there is no such file, or it is not this user's or not what cache_text() writes, which is warned of.
std::optional<LinkFigures> read_cached_figures(std::string_view key, std::span<const RankPair> pairs);
void write_cached_figures(std::string_view key, std::span<const RankPair> pairs, const LinkFigures& figures);

}  // namespace hmc
