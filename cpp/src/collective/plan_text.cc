// CollectivePlan::str, and the rows that it is made of.
#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <string_view>

#include "collective/choose.h"
#include "collective/plan_rows.h"
#include "hmc/plan.h"

namespace hmc {
namespace {

constexpr std::size_t columns = 80, label_width = 14, shown_links = 16;

std::string link_row(const PlannedLink& link) {
  const std::string ends = std::to_string(link.source) + " -> " + std::to_string(link.target);
  char text[128];
  std::snprintf(text, sizeof text, "  %-14s %12s %10.3g us %10.4g GB/s   %s\n", ends.c_str(), bytes_text(link.bytes).c_str(),
                link.latency_us, link.bandwidth / 1e9, link.basis.c_str());
  return text;
}

}  // namespace

std::string time_text(double seconds) {
  struct Unit {
    double seconds;
    const char* name;
  };
  for (const Unit& unit : std::array<Unit, 3>{{{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}}}) {
    char text[32];
    std::snprintf(text, sizeof text, "%.3g %s", seconds / unit.seconds, unit.name);
    if (seconds >= unit.seconds || unit.seconds == 1e-6) return text;
  }
  return {};
}

std::string text_row(std::string_view label, std::string_view text) {
  std::string rows, line = "  " + std::string(label);
  line.resize(label_width, ' ');
  bool empty = true;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!empty && line.size() + 1 + word.size() > columns) {
      rows += line + "\n";
      line.assign(label_width, ' ');
      empty = true;
    }
    line += (empty ? "" : " ") + std::string(word);
    empty = false;
  }
  return rows + line + "\n";
}

std::string CollectivePlan::str() const {
  std::string text = call + " of " + bytes_text(bytes) + " among " + std::to_string(ranks) + (ranks == 1 ? " rank\n" : " ranks\n");
  text += text_row("algorithm", algorithm) + text_row("reason", reason);
  text += text_row("predicted", time_text(seconds)) + text_row("lower bound", time_text(lower_bound));
  text += text_row("runner-up", runner_up ? runner_up->algorithm + ": " + time_text(runner_up->seconds) : "none");
  std::string names;
  for (const std::string& name : algorithms) names += (names.empty() ? "" : ", ") + name;
  text += text_row("algorithms", names) + text_row("figures", figures);
  if (links.empty()) return text;
  std::vector<PlannedLink> busiest = links;
  std::ranges::stable_sort(busiest, [](const PlannedLink& a, const PlannedLink& b) { return a.bytes > b.bytes; });
  text += "  link                  bytes       latency        bandwidth   basis\n";
  for (std::size_t i = 0; i < std::min(shown_links, busiest.size()); ++i) text += link_row(busiest[i]);
  if (busiest.size() > shown_links) text += "  and " + std::to_string(busiest.size() - shown_links) + " more\n";
  return text;
}

}  // namespace hmc
