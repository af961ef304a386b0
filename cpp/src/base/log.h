// Log lines to stderr: "hmc[pid] warning: ...". HMC_LOG = error | warning (default) | info | debug.
#pragma once

#include <string_view>

namespace hmc {

enum class LogLevel : int { error = 0, warning = 1, info = 2, debug = 3 };
bool log_enabled(LogLevel level) noexcept;
void log(LogLevel level, std::string_view message) noexcept;
// Logs at warning level the first time `key` is seen in this process.
void warn_once(std::string_view key, std::string_view message) noexcept;

}  // namespace hmc
