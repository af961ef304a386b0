#include "base/log.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <mutex>
#include <new>
#include <set>
#include <string>

#include "base/env.h"
#include "base/fd.h"

namespace hmc {
namespace {

constexpr std::array<std::string_view, 4> level_names{"error", "warning", "info", "debug"};

// One line, so that lines of several processes do not mix, and in one piece whatever the message holds of a peer's text.
void write_line(LogLevel level, std::string_view message) {
  if (is_owned(STDERR_FILENO)) return;  // the application has closed stderr: the number is a connection of ours
  std::string line = "hmc[" + std::to_string(getpid()) + "] ";
  line += level_names[static_cast<std::size_t>(level)];
  line += ": ";
  for (const char c : message) line += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  line += '\n';
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) return;
}

int level_of_environment() noexcept {
  constexpr int fallback = static_cast<int>(LogLevel::warning);
  try {
    const auto text = env_text("HMC_LOG");
    for (std::size_t i = 0; text && i < level_names.size(); ++i) {
      if (*text == level_names[i]) return static_cast<int>(i);
    }
    if (text) write_line(LogLevel::warning, "HMC_LOG=" + *text + " is none of error, warning, info and debug; using warning");
  } catch (const std::bad_alloc&) {
    return fallback;
  }
  return fallback;
}

int current_level() noexcept {
  static const int level = level_of_environment();
  return level;
}

}  // namespace

bool log_enabled(LogLevel level) noexcept { return static_cast<int>(level) <= current_level(); }

void log(LogLevel level, std::string_view message) noexcept {
  try {
    if (log_enabled(level)) write_line(level, message);
  } catch (const std::bad_alloc&) {
    return;  // a line is not worth the process
  }
}

void warn_once(std::string_view key, std::string_view message) noexcept {
  static std::mutex mutex;
  static auto& seen = *new std::set<std::string, std::less<>>;  // never destroyed: threads warn during exit
  try {
    const std::scoped_lock lock(mutex);
    if (!seen.emplace(key).second) return;
  } catch (const std::bad_alloc&) {
    return;
  }
  log(LogLevel::warning, message);
}

}  // namespace hmc
