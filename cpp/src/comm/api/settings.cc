// Public views of what lower layers know: settings and keys.
#include <utility>

#include "base/env.h"
#include "control/channel.h"
#include "device/library.h"
#include "hmc/context.h"

namespace hmc {

std::string generate_job_key() { return generate_key(); }

void suggest_library(std::string_view variable, std::string path) { VendorLibrary::suggest(variable, std::move(path)); }

std::vector<Setting> list_settings() {
  std::vector<Setting> all;
  for (const auto& row : env_table()) all.push_back({std::string(row.name), std::string(row.fallback), std::string(row.help)});
  return all;
}

}  // namespace hmc
