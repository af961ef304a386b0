// Files that readers see whole: what was there before, or all of what is there now.
#pragma once

#include <sys/stat.h>

#include <string>
#include <string_view>

#include "hmc/status.h"

namespace hmc {

// Writes a temporary file into the folder of `path` and renames it, so that it replaces what `path` names, also a symbolic link.
// `like`: the new file gets its owner and permissions, which may be refused; null: those of a file that this process creates with
// `mode`. Errors, of the system: "cannot be written", "cannot be replaced"; no temporary file is left then.
Status replace_file(const std::string& path, std::string_view text, mode_t mode, const struct stat* like = nullptr);

// Whether replace_file() names its temporary files so: a process that is killed leaves one.
bool is_temporary_name(std::string_view name) noexcept;

}  // namespace hmc
