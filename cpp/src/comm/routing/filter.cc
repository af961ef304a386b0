#include "comm/routing/filter.h"

#include <algorithm>

namespace hmc {
namespace {

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

}  // namespace

Result<TransportFilter> TransportFilter::parse(std::string_view text, std::span<const std::string> known) {
  TransportFilter filter;
  text = trim(text);
  filter.text_ = std::string(text);
  if (text.empty()) return filter;
  if (text.front() == '^') {
    filter.exclude_ = true;
    text.remove_prefix(1);
  }
  while (true) {
    const auto comma = text.find(',');
    const std::string_view name = trim(text.substr(0, comma));
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      std::string message = "transports \"" + filter.text_ + "\" names \"" + std::string(name) + "\", which is not one of";
      for (const auto& k : known) message += " " + k;
      return Status(Code::invalid_argument, message + "; write \"shm,tcp\" for only these or \"^shm\" for all but");
    }
    filter.names_.emplace_back(name);
    if (comma == std::string_view::npos) return filter;
    text.remove_prefix(comma + 1);
  }
}

bool TransportFilter::names(std::string_view name) const { return std::find(names_.begin(), names_.end(), name) != names_.end(); }

bool TransportFilter::allows(std::string_view name) const { return names_.empty() || names(name) != exclude_; }

}  // namespace hmc
