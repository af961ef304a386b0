#include "base/available_memory.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <limits>
#include <map>
#include <string_view>

#include "base/env.h"

namespace hmc {
namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

std::uint64_t leading_number(std::string_view text) noexcept {
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// Numbers by name: lines of "name value" or "name: value kB".
std::map<std::string, std::uint64_t> numbers_in(const fs::path& file) {
  std::map<std::string, std::uint64_t> found;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const auto end = line.find_first_of(": ");
    const auto digits = line.find_first_of("0123456789", end == std::string::npos ? line.size() : end);
    if (digits == std::string::npos) continue;
    found[line.substr(0, end)] = leading_number(std::string_view(line).substr(digits)) * (line.ends_with(" kB") ? 1024 : 1);
  }
  return found;
}

std::uint64_t number(const std::map<std::string, std::uint64_t>& numbers, const char* name) {
  const auto at = numbers.find(name);
  return at == numbers.end() ? 0 : at->second;
}

// Of a file of one number. Empty: no such file. "max" is unlimited.
std::optional<std::uint64_t> number_in(const fs::path& file) {
  std::ifstream in(file);
  std::string text;
  if (!(in >> text)) return std::nullopt;
  return text == "max" ? unlimited : leading_number(text);
}

std::uint64_t left_of(std::uint64_t limit, std::uint64_t used) { return limit > used ? limit - used : 0; }

std::uint64_t sum(std::uint64_t a, std::uint64_t b) { return a > unlimited - b ? unlimited : a + b; }

struct Names {
  const char *limit, *used, *inactive, *active, *swap_limit, *swap_used;
};
constexpr Names v2{"memory.max", "memory.current", "inactive_file", "active_file", "memory.swap.max", "memory.swap.current"};
constexpr Names v1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file", "", ""};

// What one control group has left; unlimited where it has no limit. `swap`: of the host.
std::uint64_t left_in(const fs::path& group, const Names& names, std::uint64_t swap) {
  const auto limit = number_in(group / names.limit);
  const auto used = number_in(group / names.used);
  // v1 writes a number near 2^63 for "no limit".
  if (!limit || !used || *limit >= unlimited / 4) return unlimited;
  const auto stat = numbers_in(group / "memory.stat");
  const std::uint64_t cache = number(stat, names.inactive) + number(stat, names.active);
  if (*names.swap_limit != 0) {
    const auto swap_limit = number_in(group / names.swap_limit);
    const auto swap_used = number_in(group / names.swap_used);
    if (swap_limit && swap_used) swap = std::min(swap, left_of(*swap_limit, *swap_used));
  }
  return sum(left_of(*limit, *used), sum(cache, swap));
}

// The group of this process in a hierarchy, and those above it up to the mount. A container may see its own group as the mount.
std::uint64_t least_left(const fs::path& mount, const fs::path& own, const Names& names, std::uint64_t swap) {
  std::uint64_t least = left_in(mount, names, swap);
  fs::path group = mount;
  for (const fs::path& part : own.relative_path()) {
    group /= part;
    least = std::min(least, left_in(group, names, swap));
  }
  return least;
}

}  // namespace

std::optional<AvailableMemory> available_memory(const fs::path& root) {
  const auto host = numbers_in(root / "proc/meminfo");
  if (number(host, "MemTotal") == 0) return std::nullopt;
  const std::uint64_t swap = number(host, "SwapTotal");
  AvailableMemory found{number(host, "MemTotal") + swap, "this host has"};
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // number:controllers:path
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const fs::path own = line.substr(second + 1);
    std::uint64_t left = unlimited;
    if (controllers == ",,") left = least_left(root / "sys/fs/cgroup", own, v2, swap);
    if (controllers.find(",memory,") != std::string::npos) left = least_left(root / "sys/fs/cgroup/memory", own, v1, swap);
    if (left < found.bytes) found = {left, "below the limit of this process's control group are"};
  }
  return found;
}

Status check_available(std::uint64_t bytes) {
  constexpr std::uint64_t small = 1 << 20;
  if (bytes < small || !env_flag("HMC_CHECK_MEMORY", true)) return {};
  const std::uint64_t with_tables = bytes + bytes / 256;  // page tables of two mappings: 8 bytes a page each
  const auto available = available_memory();
  if (!available || with_tables <= available->bytes) return {};
  return Status(Code::out_of_memory,
                "allocation of " + std::to_string(bytes) + " bytes of host memory refused: " + available->bound + " " +
                    std::to_string(available->bytes) + " bytes; allocate less (HMC_CHECK_MEMORY=0 allocates)",
                ENOMEM);
}

}  // namespace hmc
