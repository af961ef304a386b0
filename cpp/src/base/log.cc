#include "base/log.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>

#include "base/env.h"

namespace hmc {
namespace {

constexpr std::array<std::string_view, 4> level_names{"error", "warning", "info", "debug"};

int current_level() noexcept {
  static const int level = [] {
    const auto text = env_text("HMC_LOG");
    for (std::size_t i = 0; text && i < level_names.size(); ++i) {
      if (*text == level_names[i]) return static_cast<int>(i);
    }
    return static_cast<int>(LogLevel::warning);
  }();
  return level;
}

}  // namespace

bool log_enabled(LogLevel level) noexcept { return static_cast<int>(level) <= current_level(); }

void log(LogLevel level, std::string_view message) noexcept {
  if (!log_enabled(level)) return;
  // One write per line, so that lines of several processes do not mix.
  std::string line = "hmc[" + std::to_string(getpid()) + "] ";
  line += level_names[static_cast<std::size_t>(level)];
  line += ": ";
  line += message;
  line += '\n';
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) return;
}

void warn_once(std::string_view key, std::string_view message) noexcept {
  static std::mutex mutex;
  static auto& seen = *new std::set<std::string, std::less<>>;  // never destroyed: threads warn during exit
  {
    const std::scoped_lock lock(mutex);
    if (!seen.emplace(key).second) return;
  }
  log(LogLevel::warning, message);
}

}  // namespace hmc
