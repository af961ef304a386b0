// Every environment variable that HMC reads, in one table: documented, listed by `hmc info`, checked by the documentation tests.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace hmc {

struct EnvVariable {
  std::string_view name;      // "HMC_TRANSPORTS"
  std::string_view fallback;  // what applies when unset, as text
  std::string_view help;      // one sentence
};
std::span<const EnvVariable> env_table() noexcept;

// Reads now (not at load). The name must be in the table (asserted in tests). Empty counts as unset.
std::optional<std::string> env_text(std::string_view name);
std::int64_t env_integer(std::string_view name, std::int64_t fallback, std::int64_t low, std::int64_t high);  // clamps, warns once
bool env_flag(std::string_view name, bool fallback);  // 1/0, true/false, yes/no, on/off

}  // namespace hmc
